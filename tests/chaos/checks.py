"""What must be true once the faults have stopped: every Job ends, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import KubeError, NotFoundError
from tests.chaos.composites import SetPlan, set_manifest
from tests.chaos.endings import finished
from tests.chaos.fleet import Exit, Fleet, Replica
from tests.chaos.gangs import LABEL, GangKind, GangPlan
from tests.chaos.job_options import UserAction
from tests.chaos.scenario import JobPlan
from tests.chaos.users import Users, manifest
from tests.support.cluster import Cluster, WaitedTooLongError, until
from tests.support.composite_views import jobset_selector, live_pods
from tests.support.objects import Object
from tests.support.playground import Playground, rackgate

COMPLETE_LIMIT_S = 240.0
CLEAN_LIMIT_S = 120.0
# Marks that the Job controller puts on templates, different for every Job.
OF_THE_CONTROLLER = ("controller-uid", "job-name")
JOB_KINDS = (
    kinds.JOBSETS,
    kinds.RAY_JOBS,
    kinds.RAY_CLUSTERS,
    kinds.JOBS,
    kinds.STATEFUL_SETS,
    kinds.DEPLOYMENTS,
)
LEASE_EXPIRED_SIGNAL = -signal.SIGALRM


async def wait_all_finished(users: Users) -> tuple[list[str], set[str]]:
    """Wait until every Job and JobSet is complete that completes.

    Returns:
        What is wrong with those that are not, and the names of those that came last.
    """
    cluster, scenario = users.cluster, users.scenario
    gangs = [plan for plan in scenario.gangs if plan.kind is GangKind.JOB]
    plans: list[JobPlan | SetPlan | GangPlan] = [*scenario.jobs, *scenario.sets, *gangs]
    wanted = {p.name for p in plans if p.ends and p.name in users.created}
    last: set[str] = set()

    async def complete() -> bool:
        found = await _read(cluster)
        if found is None:
            return False
        waiting = wanted - {name for name in found if finished(found[name])}
        if waiting:
            last.clear()
            last.update(waiting)
        return not waiting

    try:
        await until("all Jobs are complete", complete, timeout_s=COMPLETE_LIMIT_S)
    except WaitedTooLongError:
        found = await _read(cluster) or {}
        late = sorted(wanted - {name for name in found if finished(found[name])})
        return [await _explain_unfinished(cluster, name, found.get(name)) for name in late], last
    return [], last


async def templates_restored(users: Users) -> list[str]:
    """Templates of deactivated jobs are what they would be without Rackgate.

    One that was never started keeps what its creation brought.
    """
    wrong = []
    plans: list[JobPlan | SetPlan] = [*users.scenario.jobs, *users.scenario.sets]
    for plan in plans:
        if plan.user_action is UserAction.DEACTIVATE and plan.name in users.created:
            wrong += [fault async for fault in _differences(users.cluster, plan)]
    return wrong


async def _differences(cluster: Cluster, plan: JobPlan | SetPlan) -> Any:
    kind = kinds.JOBSETS if isinstance(plan, SetPlan) else kinds.JOBS
    # Its first start would have been the first change of its spec.
    queued = (await cluster.get(kind, plan.name))["metadata"]["generation"] == 1
    expected = await _as_created(cluster, plan, queued=queued)

    async def stopped() -> bool:
        found = await cluster.get(kind, plan.name)
        return bool(found["spec"].get("suspend")) and _plain(found) == expected

    try:
        await until(f"the template of {plan.name} is restored", stopped, timeout_s=CLEAN_LIMIT_S)
    except WaitedTooLongError:
        found = await cluster.get(kind, plan.name)
        yield (
            f"{plan.name}: suspend {found['spec'].get('suspend')}, template "
            f"{json.dumps(_plain(found), sort_keys=True)}, expected "
            f"{json.dumps(expected, sort_keys=True)}"
        )


async def _as_created(cluster: Cluster, plan: JobPlan | SetPlan, *, queued: bool) -> list[Object]:
    """The templates as the API server stores them for the same job, with or without its queue."""
    is_set, pool = isinstance(plan, SetPlan), cluster.pool
    plain = set_manifest(plan, pool) if isinstance(plan, SetPlan) else manifest(plan, pool)
    plain["metadata"] |= {"name": f"{plan.name}-plain"}
    if not queued:
        plain["metadata"] = {"name": plain["metadata"]["name"]}
    plain["spec"]["suspend"] = True
    path = (kinds.JOBSETS if is_set else kinds.JOBS).path(cluster.namespace)
    body = json.dumps(plain).encode()
    return _plain(json.loads(await cluster.client.create(path, body, {"dryRun": "All"})))


def _plain(found: Object) -> list[Object]:
    """A job's pod templates without what its controller adds."""
    parts = found["spec"].get("replicatedJobs")
    if parts is None:
        return [_plain_template(found["spec"]["template"])]
    return [_plain_template(part["template"]["spec"]["template"]) for part in parts]


def _plain_template(found: Object) -> Object:
    template: Object = json.loads(json.dumps(found))
    meta = template.get("metadata", {})
    meta.pop("creationTimestamp", None)
    labels = {
        key: value
        for key, value in meta.get("labels", {}).items()
        if not key.endswith(OF_THE_CONTROLLER)
    }
    meta.pop("labels", None)
    if labels:
        meta["labels"] = labels
    return template


async def nothing_left(cluster: Cluster) -> list[str]:
    """Delete everything that has pods; then no pod, no Workload and no usage may stay."""
    left: list[str] = []

    async def gone() -> bool:
        left.clear()
        try:
            # Child Jobs after those that would make them anew.
            for kind in JOB_KINDS:
                for entry in await _present(cluster, kind):
                    await cluster.delete(kind, entry["metadata"]["name"])
            for pod in await cluster.list_all(kinds.PODS):
                # Nothing creates it again.
                meta = pod["metadata"]
                if LABEL in meta.get("labels", {}) and not meta.get("ownerReferences"):
                    await cluster.delete(kinds.PODS, pod["metadata"]["name"])
            for entry in await _present(cluster, kinds.GANG_WORKLOADS):
                await cluster.delete(kinds.GANG_WORKLOADS, entry["metadata"]["name"])
            for kind in (*JOB_KINDS, kinds.PODS, kinds.WORKLOADS, kinds.GANG_WORKLOADS):
                left.extend(
                    f"{kind.plural}/{entry['metadata']['name']}"
                    for entry in await _present(cluster, kind)
                )
            for kind in (kinds.CLUSTER_QUEUES, kinds.LOCAL_QUEUES):
                for entry in await cluster.list_all(kind):
                    left.extend(_usage(kind.kind, entry))
        except (KubeError, TimeoutError) as error:
            left.append(str(error))
        return not left

    try:
        await until("nothing is left", gone, timeout_s=CLEAN_LIMIT_S)
    except WaitedTooLongError:
        return [f"left behind: {entry}" for entry in left]
    return []


async def _present(cluster: Cluster, kind: Resource) -> list[Object]:
    """All objects of a kind; none where the control plane has no such operator."""
    try:
        return await cluster.list_all(kind)
    except NotFoundError:
        return []


def _usage(kind: str, queue: Object) -> Iterator[str]:
    name, status = queue["metadata"]["name"], queue.get("status", {})
    for key in ("reservingWorkloads", "admittedWorkloads", "pendingWorkloads"):
        if status.get(key):
            yield f"{kind} {name}: {key} {status[key]}"
    for key in ("flavorsReservation", "flavorsUsage"):
        for entry in status.get(key, []):
            for resource in entry.get("resources", []):
                if str(resource.get("total", "0")) != "0":
                    yield f"{kind} {name}: {key} {resource['name']} {resource['total']}"


async def invariants_hold(playground: Playground) -> list[str]:
    """What `rackgate invariants` finds, also by the rules that have patience."""
    words = ("invariants", "--kubeconfig", str(playground.kubeconfig))
    try:
        await asyncio.to_thread(rackgate, *words)
    except AssertionError as error:
        return [str(error)]
    return []


async def caches_agree(fleet: Fleet) -> list[str]:
    """Each assigner compares its usage with a rebuild from the API server's objects."""
    faults = []
    for replica in fleet.of("assigner"):
        found = await _compared(replica)
        faults += [f"{replica.name}: {e}" for e in found if not e.startswith("cache_verified")]
    return faults


async def _compared(replica: Replica) -> list[str]:
    """Ask until there is an answer: a replica may end by its fence right now, and come back."""
    loop, offset = asyncio.get_running_loop(), replica.log.stat().st_size
    asked = float("-inf")

    async def answered() -> list[str]:
        nonlocal asked
        events = [e for e in _events(replica.log, offset) if e.split()[0] in VERIFICATIONS]
        # Before it is ready, the signal would end it.
        if not events and loop.time() - asked > ASK_EVERY_S and await replica.ready():
            replica.signal(signal.SIGUSR1)
            asked = loop.time()
        return events

    return await until(f"{replica.name} has compared its cache", answered, CLEAN_LIMIT_S)


ASK_EVERY_S = 5.0
VERIFICATIONS = ("cache_verified", "cache_mismatch", "cache_verification_failed")


def errors_logged(log: Path, offset: int) -> list[str]:
    """Lines of level error or beyond."""
    return [
        line
        for line in _lines(log, offset)
        if re.search(r'"level": ?"(error|critical)"', line) or "Traceback" in line[:40]
    ]


def _events(log: Path, offset: int) -> list[str]:
    found = []
    for line in _lines(log, offset):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        found.append(f"{entry.get('event', '')} {line}")
    return found


def _lines(log: Path, offset: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace").splitlines()


def odd_exits(exits: list[Exit]) -> list[str]:
    """Ends that neither a kill, nor the fence, nor a clean stop explains."""
    fine = {-signal.SIGKILL, LEASE_EXPIRED_SIGNAL}
    return [
        f"{e.name} ended with code {e.code}"
        for e in exits
        if e.code not in fine and not (e.asked and e.code in (0, -signal.SIGTERM))
    ]


async def _read(cluster: Cluster) -> dict[str, Object] | None:
    try:
        await asyncio.sleep(0.4)
        found = await cluster.list_all(kinds.JOBS) + await _present(cluster, kinds.JOBSETS)
        return {job["metadata"]["name"]: job for job in found}
    except (KubeError, TimeoutError):
        return None


async def _explain_unfinished(cluster: Cluster, name: str, found: Object | None) -> str:
    """Why a Job may not have ended, for people."""
    if found is None:
        return f"Job {name} is gone"
    words = [f"Job {name} has not ended: suspend={found['spec'].get('suspend')}"]
    words.append(f"status={json.dumps(found.get('status', {}))}")
    for obj in await cluster.list_all(kinds.WORKLOADS):
        if any(o["name"] == name for o in obj["metadata"].get("ownerReferences", [])):
            conditions = obj.get("status", {}).get("conditions", [])
            words += [
                f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions
            ]
    for pod in await cluster.pods_of(name) + await live_pods(cluster, jobset_selector(name)):
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
        phase, meta = pod["status"]["phase"], pod["metadata"]
        deleted = "deleted" if "deletionTimestamp" in meta else ""
        words.append(f"{meta['name']} {phase} {pod['spec'].get('nodeName')} {gates} {deleted}")
    return "\n    ".join(words)
