"""What is written on Workloads, or done to them."""

from __future__ import annotations

import copy
import uuid
from dataclasses import replace
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ServerError
from tests.security.catalog import attack
from tests.security.world import HOURS, World, priority_class
from tests.support.objects import Object

CONVERSION = "conversion webhook for kueue.x-k8s.io/"
STRIPPED: Object = {"metadata": {"ownerReferences": None, "labels": None, "finalizers": None}}


@attack(topology=None, cases={"": {"what": STRIPPED}}, bare=True, ci=("",))
async def stripped_then_deleted(world: World, what: Object) -> None:
    """The Job runs on without a Workload, and the next one finds the queue empty."""
    for number in range(3):
        name = f"train-{number}"
        await world.submit(name, 4)
        if number == 0:
            await world.runs(name, 4)
        else:
            await world.hold(4)
        for one in await world.attacker.all(kinds.WORKLOADS):
            if "admission" in one.get("status", {}):
                workload = one["metadata"]["name"]
                await world.attacker.merge(kinds.WORKLOADS, workload, what)
                await world.attacker.delete(kinds.WORKLOADS, workload)
    await world.hold(5)


@attack(
    cases={
        "owner": {"change": {"metadata": {"ownerReferences": None}}},
        "labels": {"change": {"metadata": {"labels": None}}},
        "finalizers": {"change": {"metadata": {"finalizers": None}}},
        "job-uid": {"change": {"metadata": {"labels": {names.JOB_UID_LABEL: str(uuid.uuid4())}}}},
    }
)
async def metadata_stripped(world: World, change: Object) -> None:
    """One thing after the other, then the Workload is deleted, then the next Job comes."""
    await world.submit("first", 4)
    await world.runs("first", 4)
    workload = (await world.workload_of("first"))["metadata"]["name"]
    await world.attacker.merge(kinds.WORKLOADS, workload, change)
    await world.hold(2)
    await world.attacker.delete(kinds.WORKLOADS, workload)
    await world.submit("second", 4)
    await world.hold(8)


def another_kind(world: World, workload: Object) -> list[Object]:
    return [world.owner("ConfigMap", "v1")]


def itself(world: World, workload: Object) -> list[Object]:
    meta = workload["metadata"]
    return [world.owner("Workload", names.API_VERSION, meta["name"], meta["uid"])]


def another_uid(world: World, workload: Object) -> list[Object]:
    (owner,) = workload["metadata"]["ownerReferences"]
    return [{**owner, "uid": str(uuid.uuid4()), "blockOwnerDeletion": False}]


@attack(
    cases={
        "another-kind": {"owners": another_kind},
        "itself": {"owners": itself},
        "another-uid": {"owners": another_uid},
    },
    topology=None,
    bare=True,
    ci=("another-kind", "itself"),
)
async def owner_changed_then_the_job_is_deleted(world: World, owners: Any) -> None:
    """Quota without a pod, for ever: other tenants would wait."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    workload = await world.workload_of("train")
    change = {"metadata": {"ownerReferences": owners(world, workload)}}
    await world.attacker.merge(kinds.WORKLOADS, workload["metadata"]["name"], change)
    await world.attacker.delete(kinds.JOBS, "train")
    await world.hold(3)
    await world.tenant_runs("meanwhile")


@attack(
    cases={
        "count": {"path": "/spec/podSets/0/count", "value": 1},
        "cpu": {
            "path": "/spec/podSets/0/template/spec/containers/0/resources/requests/cpu",
            "value": "1m",
        },
        "priority": {"path": "/spec/priority", "value": 1_000_000},
        "queue": {"path": "/spec/queueName", "value": "another"},
    },
    ci=("priority",),
)
async def spec_rewritten_while_it_waits(world: World, path: str, value: Any) -> None:
    """What is charged is to be less than what the Job makes: ten pods of 4 CPU."""
    await world.submit("waits", 10)
    workload = (await world.workload_of("waits"))["metadata"]["name"]
    for _ in range(10):
        change = [{"op": "add", "path": path, "value": value}]
        await world.attacker.json_patch(kinds.WORKLOADS, workload, change)
        await world.hold(0.3)
    await world.hold(5)


@attack(queue={"preemption": {"withinClusterQueue": "LowerPriority"}})
async def written_priority_preempts_the_other_tenant(world: World) -> None:
    """A number on a Workload is to drive out who was there first."""
    await world.tenant.create(kinds.JOBS, world.job("theirs", 4))
    await world.tenant.bound("theirs", 4)
    await world.submit("mine", 4)
    workload = (await world.workload_of("mine"))["metadata"]["name"]
    change = {"spec": {"priority": 1_000_000}}
    await world.attacker.merge(kinds.WORKLOADS, workload, change)
    await world.hold(8)
    assert not world.ledger.lost, f"the other tenant lost {sorted(world.ledger.lost)}"
    await world.tenant.delete(kinds.JOBS, "theirs")


@attack(queue={"preemption": {"withinClusterQueue": "LowerPriority"}})
async def priority_class_reference_rewritten(world: World) -> None:
    """The same by the class, which the Job's own label did not name."""
    high = priority_class(f"{world.pool}-high", 1_000_000)
    await world.admin.create(kinds.WORKLOAD_PRIORITY_CLASSES, high)
    await world.tenant.create(kinds.JOBS, world.job("theirs", 4))
    await world.tenant.bound("theirs", 4)
    await world.submit("mine", 4)
    workload = (await world.workload_of("mine"))["metadata"]["name"]
    reference = {
        "group": names.GROUP,
        "kind": "WorkloadPriorityClass",
        "name": f"{world.pool}-high",
    }
    change = {"spec": {"priority": 1_000_000, "priorityClassRef": reference}}
    await world.attacker.merge(kinds.WORKLOADS, workload, change)
    await world.hold(6)
    assert not world.ledger.lost, f"the other tenant lost {sorted(world.ledger.lost)}"
    await world.tenant.delete(kinds.JOBS, "theirs")


@attack(queue={"preemption": {"withinClusterQueue": "LowerPriority"}})
async def written_in_the_older_version(world: World) -> None:
    """The same through v1beta1, whose fields have other names."""
    high = priority_class(f"{world.pool}-high", 1_000_000)
    await world.admin.create(kinds.WORKLOAD_PRIORITY_CLASSES, high)
    await world.tenant.create(kinds.JOBS, world.job("theirs", 4))
    await world.tenant.bound("theirs", 4)
    await world.submit("mine", 4)
    workload = (await world.workload_of("mine"))["metadata"]["name"]
    older = replace(kinds.WORKLOADS, version=names.OLD_VERSION)
    changes: list[Object] = [
        {"priority": 1_000_000},
        {
            "priority": 1_000_000,
            "priorityClassName": f"{world.pool}-high",
            "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
        },
        {"queueName": "another"},
    ]
    for change in changes:
        try:
            await world.attacker.merge(older, workload, {"spec": change})
        except ServerError as error:
            # The API server converts by the webhook, so without it nothing is written at all.
            if not world.phase.webhooks_down or CONVERSION not in error.message:
                raise
    await world.hold(6)
    assert not world.ledger.lost, f"the other tenant lost {sorted(world.ledger.lost)}"
    await world.tenant.delete(kinds.JOBS, "theirs")


@attack()
async def status_written(world: World) -> None:
    """Admitted, finished, reclaimed, evicted: by one's own hand."""
    await world.submit("first", 4)
    await world.submit("waits", 4)
    await world.runs("first", 4)
    first = await world.workload_of("first")
    waits = (await world.workload_of("waits"))["metadata"]["name"]
    admission = first["status"]["admission"]
    changes: list[tuple[str, Object]] = [
        (waits, {"admission": admission}),
        (first["metadata"]["name"], {"admission": None}),
        (first["metadata"]["name"], {"reclaimablePods": [{"name": "main", "count": 4}]}),
        (waits, {"admissionChecks": [{"name": "budget", "state": "Ready", "message": ""}]}),
    ]
    for name, status in changes:
        await world.attacker.merge(kinds.WORKLOADS, name, {"status": status}, "status")
        await world.attacker.merge(kinds.WORKLOADS, name, {"status": status})
    await world.hold(5)


@attack()
async def made_by_hand(world: World) -> None:
    """A Workload of 16 CPU with no job at all, and one that claims a Job."""
    job = await world.submit("waits", 10)
    assert job is not None
    template = {"spec": world.pod("unused")["spec"] | {"restartPolicy": "Never"}}
    for number, owners in enumerate(
        ([], [world.owner("Job", "batch/v1", "waits", job["metadata"]["uid"])])
    ):
        workload = {
            "apiVersion": names.API_VERSION,
            "kind": "Workload",
            "metadata": {"name": f"by-hand-{number}", "ownerReferences": owners},
            "spec": {
                "queueName": "queue",
                "active": True,
                "podSets": [{"name": "main", "count": 1, "template": template}],
            },
        }
        await world.attacker.create(kinds.WORKLOADS, workload)
    await world.hold(5)
    await world.tenant_runs("meanwhile")


def less_cpu(workload: Object) -> None:
    (podset,) = workload["spec"]["podSets"]
    podset["template"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1m"}


def fewer_pods(workload: Object) -> None:
    workload["spec"]["podSets"][0]["count"] = 1


def of_another_job(workload: Object) -> None:
    workload["metadata"]["labels"] = {names.JOB_UID_LABEL: str(uuid.uuid4())}
    less_cpu(workload)


@attack(
    cases={
        "less-cpu": {"change": less_cpu},
        "fewer-pods": {"change": fewer_pods},
        "of-another-job": {"change": of_another_job},
    },
    topology=None,
    ci=("less-cpu",),
)
async def written_by_hand_for_ones_own_job(world: World, change: Any) -> None:
    """The user may create Workloads, as for a controller of their own; the Job needs 40 CPU."""
    await world.lets_create_workloads()
    job = await world.submit("waits", 10)
    assert job is not None
    own = (await world.workload_of("waits"))["metadata"]["name"]
    owner = world.owner("Job", "batch/v1", "waits", job["metadata"]["uid"])
    podset = {"name": "main", "count": 10, "template": job["spec"]["template"]}
    async for number in world.rounds(10, 0.3):
        if number % 2:
            await world.attacker.delete(kinds.WORKLOADS, own)
        for name, owners in (
            (own, [owner]),
            (f"claims-{number}", [owner]),
            (f"later-{number}", []),
        ):
            workload: Object = {
                "apiVersion": names.API_VERSION,
                "kind": "Workload",
                "metadata": {"name": name, "ownerReferences": owners},
                "spec": {"queueName": "queue", "active": True, "podSets": [copy.deepcopy(podset)]},
            }
            change(workload)
            await world.attacker.create(kinds.WORKLOADS, workload)
        claim = {"metadata": {"ownerReferences": [owner]}}
        await world.attacker.merge(kinds.WORKLOADS, f"later-{number}", claim)
    await world.hold(5)


@attack(
    cases={
        "one": {"terminate": None, "whole": False},
        "one-slow-pods": {"terminate": HOURS, "whole": False},
        "collection": {"terminate": None, "whole": True},
    },
    topology=None,
)
async def deleted_in_a_loop(world: World, terminate: str | None, whole: bool) -> None:
    """Each time the Job is stopped and queued anew; what it had is to be free at once."""
    await world.submit("first", 4, terminate=terminate)
    await world.runs("first", 4)
    await world.submit("second", 4, terminate=terminate)
    async for _ in world.rounds(6, 1.0):
        if whole:
            await world.attacker.delete_all(kinds.WORKLOADS)
        for one in await world.attacker.all(kinds.WORKLOADS):
            await world.attacker.delete(kinds.WORKLOADS, one["metadata"]["name"], grace_s=0)
    await world.hold(4)


@attack(cases={"fast-pods": {"terminate": None}, "slow-pods": {"terminate": HOURS}})
async def active_toggled_in_a_loop(world: World, terminate: str | None) -> None:
    """Stop and go, twenty times, with a second Job that waits."""
    await world.submit("first", 4, terminate=terminate)
    await world.runs("first", 4)
    await world.submit("second", 4, terminate=terminate)
    workload = (await world.workload_of("first"))["metadata"]["name"]
    async for number in world.rounds(20, 0.25):
        change = {"spec": {"active": number % 2 == 1}}
        await world.attacker.merge(kinds.WORKLOADS, workload, change)
    await world.hold(5)


@attack(
    topology=None,
    cases={"pods": {"on_workloads": False}, "workloads-and-pods": {"on_workloads": True}},
    bare=True,
    ci=("workloads-and-pods",),
)
async def chain_of_slices_claimed(world: World, on_workloads: bool) -> None:
    """Kueue's annotation names the Workload of a running Job on ten pods of another one."""
    await world.submit("runs", 4)
    await world.runs("runs", 4)
    chain = (await world.workload_of("runs"))["metadata"]["name"]
    mark = {names.KUEUE_SLICE_CHAIN_ANNOTATION: chain}
    claim = {"metadata": {"annotations": mark}}
    waits = world.job("waits", 10)
    waits["spec"]["template"]["metadata"].setdefault("annotations", {}).update(mark)
    await world.attacker.create(kinds.JOBS, waits)
    for name in ("runs", "waits") if on_workloads else ():
        workload = (await world.workload_of(name))["metadata"]["name"]
        await world.attacker.merge(kinds.WORKLOADS, workload, claim)
    await world.attacker.merge(kinds.JOBS, "waits", {"spec": {"suspend": False}})
    await world.hold(5)
    for pod in await world.attacker.all(kinds.PODS):
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], claim)
    await world.hold(5)
    # Its pods would be those of a Workload that ends.
    await world.attacker.merge(kinds.JOBS, "runs", {"spec": {"suspend": True}})
    await world.hold(5)
