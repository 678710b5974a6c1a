"""A control plane full of objects that Kueue wrote is taken over by Rackgate as it stands.

Kueue's own CRDs are installed, from its pinned Go module, and `tests.support.kueue_writes` acts as
its controllers, while the operators of jobs run. Then Rackgate starts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.composite_views import bound_pods, conditions, ray_selector, ray_state
from tests.support.kueue_writes import (
    ELASTIC,
    ELASTIC_GATE,
    FINALIZER,
    KueueControllers,
    Part,
    Place,
    condition,
    parts_of_job,
    parts_of_jobset,
    parts_of_raycluster,
    timestamp,
    used_cpu,
    workload_name,
)
from tests.support.objects import RACK, Object, fx_a_nodes, job, node
from tests.support.playground import SERVICES, Playground, rackgate, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MODULE = "sigs.k8s.io/kueue"
GATES = (ELASTIC_JOBS, ELASTIC_INDEXED_JOBS)
TEAM, POOL = "team", "taken"
ELASTIC_MARK = {ELASTIC: "true"}
JOB_SELECTOR = "batch.kubernetes.io/job-name={}"
JOBSET_SELECTOR = "jobset.sigs.k8s.io/jobset-name={}"
TOPOLOGY_QUEUE, PLAIN_QUEUE = f"{POOL}-queue", f"{POOL}-plain"
KINDS = (
    kinds.TOPOLOGIES,
    kinds.FLAVORS,
    kinds.COHORTS,
    kinds.CLUSTER_QUEUES,
    kinds.LOCAL_QUEUES,
    kinds.WORKLOAD_PRIORITY_CLASSES,
    kinds.WORKLOADS,
)


def host(name: str, pods: int = 1) -> Place:
    return f"{POOL}-{name}", pods


ADMITTED = [host("21-2"), host("23-2")]


@dataclass
class Plane:
    """The control plane, and what was on it before Rackgate started."""

    playground: Playground
    crds: list[str]
    before: dict[str, Any] = field(default_factory=dict)
    check: tuple[int, Object] = (0, {})


def crd_files() -> list[str]:
    done = subprocess.run(
        [shutil.which("go") or "go", "mod", "download", "-json", MODULE],
        cwd=Path(__file__).parent / "kueue_crds",
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "config" / "components" / "crd" / "bases"
    return [str(path) for path in sorted(folder.glob("kueue.x-k8s.io_*.yaml"))]


def kueue_crds(plane: Plane) -> None:
    """Install the CRDs of Kueue in place of those of Rackgate."""
    files = [word for path in plane.crds for word in ("-f", path)]
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=kueue-install")
    plane.playground.run("kubectl", *apply, *files)
    plane.playground.run("kubectl", "wait", "--for=condition=Established", "--timeout=60s", *files)


async def queues(cluster: Cluster) -> None:
    await cluster.add_queue("queue", quota={"cpu": "60"}, cohortName=POOL)
    await cluster.add_queue("plain", quota={"cpu": "4"}, topology=False)
    cohort = {"apiVersion": names.API_VERSION, "kind": "Cohort", "metadata": {"name": POOL}}
    await cluster.create(kinds.COHORTS, {**cohort, "spec": {}})
    for kind, name in (
        (kinds.TOPOLOGIES, TOPOLOGY_QUEUE),
        (kinds.FLAVORS, TOPOLOGY_QUEUE),
        (kinds.FLAVORS, PLAIN_QUEUE),
        (kinds.CLUSTER_QUEUES, TOPOLOGY_QUEUE),
        (kinds.CLUSTER_QUEUES, PLAIN_QUEUE),
    ):
        await cluster.merge(kind, name, {"metadata": {"finalizers": [FINALIZER]}})


def suspended(name: str, count: int, **more: Any) -> Object:
    """A Job as the webhook of Kueue leaves it."""
    return job(name, count, **{**more, "spec": {"suspend": True, **more.get("spec", {})}})


async def run_job(
    kueue: KueueControllers,
    manifest: Object,
    places: list[Place],
    *,
    name: str = "",
    extra: str = "",
    annotations: dict[str, str] | None = None,
    gated: int = 0,
    ends: bool = False,
) -> None:
    """Kueue admits a Job, starts it, and ungates its pods, except the last `gated` ones."""
    cluster = kueue.cluster
    found = await cluster.create(kinds.JOBS, manifest)
    parts = parts_of_job(found, places)
    workload = await kueue.create_workload(
        kinds.JOBS, found, parts, name=name, extra=extra, annotations=annotations
    )
    waits = condition("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded")
    workload = await kueue.admit(workload, parts, waits)
    flavor = await cluster.get(kinds.FLAVORS, kueue.flavor)
    await kueue.start(kinds.JOBS, found, workload, parts, flavor["spec"]["nodeLabels"])
    if ends:
        return
    selector, count = JOB_SELECTOR.format(manifest["metadata"]["name"]), parts[0].count
    if places:
        await kueue.ungate(selector, "main", places, gated=gated)
    await bound_pods(cluster, selector, count - gated)
    if not gated:
        await ready(kueue, workload, parts)


async def admitted_job(kueue: KueueControllers, manifest: Object, places: list[Place]) -> None:
    """Kueue admits a Job, and is stopped before it starts it."""
    found = await kueue.cluster.create(kinds.JOBS, manifest)
    await admitted(kueue, kinds.JOBS, found, parts_of_job(found, places))


async def admitted(
    kueue: KueueControllers, kind: Resource, found: Object, parts: list[Part]
) -> None:
    await kueue.admit(await kueue.create_workload(kind, found, parts), parts)


async def ready(kueue: KueueControllers, workload: Object, parts: list[Part]) -> None:
    said = condition("PodsReady", "True", "Started", "All pods reached readiness")
    await kueue.admit(workload, parts, said)


def chain(first: str, before: str = "") -> dict[str, str]:
    """Annotations of a Workload slice: the first slice of the job, and the one that it replaces."""
    found = {**ELASTIC_MARK, f"{names.GROUP}/workload-slice-name": first}
    if before:
        found[f"{names.GROUP}/workload-slice-replacement-for"] = f"{TEAM}/{before}"
    return found


async def first_slice(kueue: KueueControllers, found: Object, part: Part) -> Object:
    """The Workload of an elastic job before it grows; Kueue names itself as the first slice."""
    name = workload_name("Job", "batch", found, "1")
    return await kueue.create_workload(
        kinds.JOBS, found, [part], name=name, annotations=chain(name), finalizers=()
    )


async def next_slice(
    kueue: KueueControllers, found: Object, parts: list[Part], old: Object, before: list[Part]
) -> Object:
    """Kueue admits a Workload for all pods, and finishes the one before."""
    name = old["metadata"]["name"]
    workload = await kueue.create_workload(
        kinds.JOBS, found, parts, extra="2", annotations=chain(name, name)
    )
    replaced = condition("Finished", "True", "WorkloadSliceReplaced", "Replaced to accommodate")
    await kueue.admit(old, before, replaced)
    return await kueue.admit(workload, parts)


async def elastic_manifest(kueue: KueueControllers, name: str, count: int, cpu: str) -> Object:
    gated = {"schedulingGates": [ELASTIC_GATE]}
    manifest = suspended(name, count, queue="elastic", cpu=cpu, annotations=None, pod=gated)
    manifest["metadata"]["annotations"] = dict(ELASTIC_MARK)
    return await kueue.cluster.create(kinds.JOBS, manifest)


async def elastic_job(kueue: KueueControllers) -> None:
    """A Job that was scaled from one pod to two: one slice is Finished, the next one admitted."""
    cluster = kueue.cluster
    found = await elastic_manifest(kueue, "elastic", 2, "4")
    parts = parts_of_job(found)
    (one,) = parts
    before = [Part("main", 1, one.template, one.request)]
    first = await first_slice(kueue, found, before[0])
    workload = await next_slice(kueue, found, parts, first, before)
    flavor = await cluster.get(kinds.FLAVORS, kueue.flavor)
    await kueue.start(kinds.JOBS, found, workload, parts, flavor["spec"]["nodeLabels"])
    places = [host("23-1", 2)]
    await kueue.ungate(JOB_SELECTOR.format("elastic"), "main", places, gate=ELASTIC_GATE)
    await bound_pods(cluster, JOB_SELECTOR.format("elastic"), 2)
    await ready(kueue, workload, parts)


async def grown_job(kueue: KueueControllers) -> None:
    """A Job that grew from one pod to three while it ran; Kueue has not released the new pods.

    Its template names the slice that it was started with, which is Finished.
    """
    cluster = kueue.cluster
    found = await elastic_manifest(kueue, "grown", 1, "1")
    before = parts_of_job(found)
    first = await kueue.admit(await first_slice(kueue, found, before[0]), before)
    flavor = await cluster.get(kinds.FLAVORS, kueue.flavor)
    await kueue.start(kinds.JOBS, found, first, before, flavor["spec"]["nodeLabels"])
    selector = JOB_SELECTOR.format("grown")
    await kueue.ungate(selector, "main", [host("35-1")], gate=ELASTIC_GATE)
    await bound_pods(cluster, selector, 1)
    larger = {"spec": {"parallelism": 3, "completions": 3}}
    found = await cluster.merge(kinds.JOBS, "grown", larger)
    await next_slice(kueue, found, parts_of_job(found), first, before)

    async def created() -> bool:
        return len(await cluster.list_all(kinds.PODS, labelSelector=selector)) == 3

    await until("the new pods exist", created)


async def admitted_composites(kueue: KueueControllers) -> None:
    """Kueue admits a JobSet and a RayCluster, and is stopped before it starts them."""
    cluster = kueue.cluster
    parts = [replicated_job("driver", 1), replicated_job("workers", 2)]
    found = await cluster.create(kinds.JOBSETS, jobset("set-next", parts, suspend=True))
    places = {"driver": [host("35-1")], "workers": [host("35-1"), host("35-2")]}
    await admitted(kueue, kinds.JOBSETS, found, parts_of_jobset(found, places))
    groups = [worker_group("small", 2)]
    ray = raycluster("ray-next", groups, suspend=True)
    found = await cluster.create(kinds.RAY_CLUSTERS, ray)
    places = {"head": [host("35-2")], "small": [host("35-1"), host("35-2")]}
    await admitted(kueue, kinds.RAY_CLUSTERS, found, parts_of_raycluster(found, places))


async def jobset_and_raycluster(kueue: KueueControllers) -> None:
    cluster = kueue.cluster
    places = {"driver": [host("23-2")], "workers": [host("23-2", 2)]}
    parts = [replicated_job("driver", 1, cpu="1"), replicated_job("workers", 2, cpu="2")]
    found = await cluster.create(kinds.JOBSETS, jobset("set", parts, suspend=True))
    await run_composite(kueue, kinds.JOBSETS, found, parts_of_jobset(found, places))
    ray_places = {"head": [host("21-1")], "small": [host("21-1"), host("21-2")]}
    groups = [worker_group("small", 2, cpu="2")]
    found = await cluster.create(kinds.RAY_CLUSTERS, raycluster("ray", groups, suspend=True))
    await run_composite(kueue, kinds.RAY_CLUSTERS, found, parts_of_raycluster(found, ray_places))
    await ray_state(cluster, "ray", "ready")


async def run_composite(
    kueue: KueueControllers, kind: Resource, found: Object, parts: list[Part]
) -> None:
    workload = await kueue.create_workload(kind, found, parts)
    workload = await kueue.admit(workload, parts)
    flavor = await kueue.cluster.get(kinds.FLAVORS, kueue.flavor)
    await kueue.start(kind, found, workload, parts, flavor["spec"]["nodeLabels"])
    name = found["metadata"]["name"]
    selector = (
        JOBSET_SELECTOR if kind is kinds.JOBSETS else f"{names.RAY_CLUSTER_LABEL}={{}}"
    ).format(name)
    for part in parts:
        await kueue.ungate(selector, part.name, part.places)
    await bound_pods(kueue.cluster, selector, sum(part.count for part in parts))
    await ready(kueue, workload, parts)


async def waiting(kueue: KueueControllers) -> None:
    """Three Jobs that wait for the quota of `occupant`, not in the order of their names."""
    for name in ("zz-first", "yy-second", "aa-evicted"):
        found = await kueue.cluster.create(kinds.JOBS, suspended(name, 1, queue="plain"))
        parts = parts_of_job(found)
        workload = await kueue.create_workload(kinds.JOBS, found, parts)
        said = [
            condition(
                "QuotaReserved",
                "False",
                "WaitingForQuota",
                "couldn't assign flavors to pod set main: insufficient unused quota for cpu",
            )
        ]
        status: Object = {
            "conditions": said,
            "resourceRequests": [{"name": "main", "resources": {"cpu": "4"}}],
        }
        if name == "aa-evicted":
            said += [
                condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout"),
                condition("Admitted", "False", "NoReservation", "The workload has no reservation"),
                condition("Requeued", "True", "BackoffFinished", "The backoff finished"),
                condition("PodsReady", "False", "WaitForStart", "Not all pods are ready"),
            ]
            status["requeueState"] = {"count": 1}
            status["schedulingStats"] = {
                "evictions": [
                    {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
                ]
            }
        await kueue.apply_status(workload, status)
        created = workload["metadata"]["creationTimestamp"]

        async def later(created: str = created) -> bool:  # times have whole seconds
            return timestamp() > created

        await until("the next second begins", later)


async def done(kueue: KueueControllers) -> None:
    """A Job that has ended under Kueue, which removes its finalizer then."""
    await run_job(kueue, suspended("done", 1, queue="elastic", run_seconds=0.0), [], ends=True)
    found = await until("the Job ends", lambda: completed(kueue.cluster, "done"))
    assert found is not None
    workload = await kueue.cluster.workload_of("done")
    parts = parts_of_job(found)
    finished = condition("Finished", "True", "Succeeded", "Job finished successfully")
    ran = condition("PodsReady", "True", "Started", "All pods reached readiness")
    await kueue.admit(workload, parts, ran, finished)
    name = workload["metadata"]["name"]
    await kueue.cluster.merge(kinds.WORKLOADS, name, {"metadata": {"finalizers": None}})


async def foreign(kueue: KueueControllers) -> None:
    """An admitted Workload of an object of a kind that Rackgate does not manage."""
    labels = {names.QUEUE_LABEL: "queue"}
    owner: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign"}}
    owner["metadata"]["labels"] = labels
    found = await kueue.cluster.create(kinds.CONFIG_MAPS, owner)
    parts = [Part("main", 1, job("foreign", 1, cpu="3")["spec"]["template"])]
    workload = await kueue.create_workload(kinds.CONFIG_MAPS, found, parts)
    await kueue.admit(workload, parts)


async def completed(cluster: Cluster, name: str) -> Object | None:
    found = await cluster.get(kinds.JOBS, name)
    ended = [one["type"] for one in found.get("status", {}).get("conditions", ())]
    return found if "Complete" in ended else None


async def as_kueue_leaves_it(plane: Plane) -> None:
    async with plane.playground.client() as client:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
        await client.create(kinds.NAMESPACES.path(), json.dumps(space).encode())
        cluster = Cluster(client, TEAM, POOL)
        await add_nodes(cluster)
        await queues(cluster)
        await cluster.add_queue("elastic", quota={"cpu": "24"}, topology=False)
        topology = KueueControllers(cluster, TOPOLOGY_QUEUE, TOPOLOGY_QUEUE)
        plain = KueueControllers(cluster, PLAIN_QUEUE, PLAIN_QUEUE)
        elastic = KueueControllers(cluster, f"{POOL}-elastic", f"{POOL}-elastic")
        rack = [host("11-1"), host("11-2")]
        await run_job(topology, suspended("running", 2, required=RACK), rack)
        places = [host("12-1", 2), host("12-2", 2)]
        await run_job(topology, suspended("starting", 4, cpu="2"), places, gated=2)
        labels = {f"{names.GROUP}/prebuilt-workload-name": "made-by-hand"}
        one = suspended("prebuilt", 1, labels=labels, cpu="1")
        await run_job(topology, one, [host("11-1")], name="made-by-hand")
        await run_job(plain, suspended("occupant", 1, queue="plain"), [])
        await run_job(elastic, suspended("failing", 1, queue="elastic"), [])
        await admitted_job(topology, suspended("admitted", 2, cpu="1"), ADMITTED)
        await admitted_composites(topology)
        await elastic_job(elastic)
        await grown_job(elastic)
        await jobset_and_raycluster(topology)
        await foreign(topology)
        await waiting(plain)
        await done(elastic)
        plane.before = await seen(cluster)
        # These are to change: they start.
        starting = ("Job admitted", "JobSet set-next", "Job set-next-", "RayCluster ray-next")
        jobs = plane.before["jobs"]
        plane.before["jobs"] = {
            name: was for name, was in jobs.items() if not name.startswith(starting)
        }


async def add_nodes(cluster: Cluster) -> None:
    more = [node(POOL, "block-3", "rack-5", f"35-{at}") for at in (1, 2)]
    for one in [*fx_a_nodes(POOL), *more]:
        await cluster.create(kinds.NODES, one)


async def seen(cluster: Cluster) -> dict[str, Any]:
    """What a takeover must not change."""
    jobs = {
        f"{kind.kind} {one['metadata']['name']}": {
            "spec": one["spec"],
            "uid": one["metadata"]["uid"],
        }
        for kind in (kinds.JOBS, kinds.JOBSETS, kinds.RAY_CLUSTERS)
        for one in await cluster.list_all(kind)
    }
    pods = {
        one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"].get("nodeName"))
        for one in await cluster.list_all(kinds.PODS)
        if one["spec"].get("nodeName")
    }
    workloads = {
        one["metadata"]["name"]: {
            "uid": one["metadata"]["uid"],
            "created": one["metadata"]["creationTimestamp"],
            "deleted": one["metadata"].get("deletionTimestamp"),
            "finished": [
                said for said in one["status"]["conditions"] if said["type"] == "Finished"
            ],
            "admission": one["status"].get("admission"),
            "evicted": [said for said in one["status"]["conditions"] if said["type"] == "Evicted"],
        }
        for one in await cluster.list_all(kinds.WORKLOADS)
    }
    return {"jobs": jobs, "pods": pods, "workloads": workloads}


def check(state: Path) -> tuple[int, Object]:
    """Exit code and report of `rackgate migrate check`."""
    command = [sys.executable, "-m", "rackgate_cli", "migrate", "check", "-o", "json"]
    done = subprocess.run(
        [*command, "--state", str(state)], capture_output=True, text=True, timeout=240, check=False
    )
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    state = tmp_path_factory.mktemp("takeover") / "state"
    playground = start_playground(state, nodes=0, services=(), operators=("jobset", "kuberay"))
    found = Plane(playground, crd_files())
    try:
        # Of Rackgate, only CRDs and operators are left; Kueue's CRDs replace the first.
        playground.run("uninstall", "--yes")
        kueue_crds(found)
        asyncio.run(as_kueue_leaves_it(found))
        found.check = check(state)
        gates = ",".join(f"{gate}=true" for gate in GATES)
        options = ("--nodes", "0", "--services", ",".join(SERVICES), "--feature-gates", gates)
        rackgate("up", "--state", str(state), *options, limit_s=600)
        yield found
    finally:
        playground.stop()


@pytest.fixture
async def taken(plane: Plane) -> AsyncIterator[Cluster]:
    async with plane.playground.client() as client:
        yield Cluster(client, TEAM, POOL)


def unchanged(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs of the objects that were there before."""
    return [
        f"{part} {name}: {was} -> {now[part].get(name)}"
        for part, listed in before.items()
        for name, was in listed.items()
        if now[part].get(name) != was
    ]


def test_the_check_names_each_object_and_what_blocks(plane: Plane) -> None:
    code, report = plane.check
    assert code == 3
    items = {(one["kind"], one["name"]): one for one in report["items"]}
    (blocking,) = [one for one in report["items"] if one["blocks"]]
    assert blocking["kind"] == "Workload"
    assert blocking["name"].startswith("configmap-foreign-")
    assert {name for kind, name in items if kind == "Workload"} == set(plane.before["workloads"])
    same = {
        ("Topology", TOPOLOGY_QUEUE),
        ("ResourceFlavor", TOPOLOGY_QUEUE),
        ("Cohort", POOL),
        ("LocalQueue", "queue"),
        ("Job", "running"),
        ("JobSet", "set"),
        ("RayCluster", "ray"),
    }
    assert {items[one]["result"] for one in same} == {"same"}
    assert items["ClusterQueue", TOPOLOGY_QUEUE]["result"] == "better"
    (prebuilt,) = items["Job", "prebuilt"]["findings"]
    assert prebuilt["path"] == f"metadata.labels[{names.GROUP}/prebuilt-workload-name]"


async def test_nothing_that_runs_is_touched_and_the_half_started_job_is_released(
    plane: Plane, taken: Cluster
) -> None:
    await bound_pods(taken, JOB_SELECTOR.format("starting"), 4)
    # A new Job has gone through all services, so they have seen the others.
    await taken.submit("new", 1, cpu="1")
    await taken.bound("new", 1)
    await taken.condition("starting", "PodsReady", "True")
    placed = await taken.bound("starting", 4)
    hosts = sorted(pod["spec"]["nodeName"] for pod in placed)
    assert hosts == sorted(
        name for name, count in (host("12-1", 2), host("12-2", 2)) for _ in range(count)
    )
    differs = unchanged(plane.before, await seen(taken))
    assert not differs, "\n".join(differs)


async def test_a_job_that_was_admitted_and_not_started_starts_on_its_hosts(
    plane: Plane, taken: Cluster
) -> None:
    pods = await taken.bound("admitted", 2)
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == [name for name, _ in ADMITTED]
    workload = await taken.workload_of("admitted")
    before = plane.before["workloads"][workload["metadata"]["name"]]
    assert workload["status"]["admission"] == before["admission"]
    assert "Evicted" not in conditions(workload)


@pytest.mark.parametrize(
    ("kind", "name", "selector"),
    [
        (kinds.JOBSETS, "set-next", JOBSET_SELECTOR.format("set-next")),
        (kinds.RAY_CLUSTERS, "ray-next", ray_selector("ray-next")),
    ],
    ids=["JobSet", "RayCluster"],
)
async def test_a_composite_that_was_admitted_and_not_started_starts_on_its_hosts(
    plane: Plane, taken: Cluster, kind: Resource, name: str, selector: str
) -> None:
    pods = await bound_pods(taken, selector, 3)
    workload = await taken.workload_of(name)
    before = plane.before["workloads"][workload["metadata"]["name"]]
    assert workload["metadata"]["uid"] == before["uid"]
    assert workload["status"]["admission"] == before["admission"]
    assert "Evicted" not in conditions(workload)
    assert {pod["spec"]["nodeName"] for pod in pods} == {f"{POOL}-35-1", f"{POOL}-35-2"}
    assert not (await taken.get(kind, name))["spec"]["suspend"]


async def test_the_usage_of_admitted_workloads_is_kept(plane: Plane, taken: Cluster) -> None:
    expected: dict[str, int] = {}
    for workload in plane.before["workloads"].values():
        admission = workload["admission"]
        if admission is not None and not workload["finished"]:
            total = sum(int(one["resourceUsage"]["cpu"]) for one in admission["podSetAssignments"])
            queue = admission["clusterQueue"]
            expected[queue] = expected.get(queue, 0) + total
    expected[TOPOLOGY_QUEUE] += 1  # the new Job
    for queue, total in expected.items():

        async def counted(queue: str = queue, total: int = total) -> bool:
            found = await taken.get(kinds.CLUSTER_QUEUES, queue)
            return used_cpu(found["status"]) == str(total)

        await until(f"{queue} uses {total}", counted)
    told = await asyncio.to_thread(plane.playground.run, "invariants")
    assert "no breach" in told


async def test_those_that_wait_are_admitted_in_their_order_when_quota_is_released(
    plane: Plane, taken: Cluster
) -> None:
    async def admitted(name: str) -> bool:
        workload = await taken.workload_of(name)
        return workload["status"].get("admission") is not None

    order = ("occupant", "zz-first", "yy-second", "aa-evicted")
    for ends, follows in itertools.pairwise(order):
        assert not await admitted(follows)
        await taken.bound(ends, 1)
        await taken.finish(ends)
        await taken.condition(ends, "Finished", "True", "Succeeded")
        await taken.bound(follows, 1)
    found = await taken.workload_of("aa-evicted")
    assert found["metadata"]["uid"] in {one["uid"] for one in plane.before["workloads"].values()}


@pytest.mark.parametrize("name", ["running", "failing"], ids=["topology", "quota alone"])
async def test_a_pod_that_is_created_again_is_bound(taken: Cluster, name: str) -> None:
    """Its template names the Workload, so the webhook gates it; the ungater releases it."""
    before = await taken.pods_of(name)
    count = len(before)
    lost = before[0]
    await taken.delete(kinds.PODS, lost["metadata"]["name"], grace_s=0)

    async def replaced() -> bool:
        pods = await taken.pods_of(name)
        uids = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        return len(uids) == count and lost["metadata"]["uid"] not in uids

    await until("another pod is bound in its place", replaced)
    hosts = sorted(pod["spec"]["nodeName"] for pod in await taken.pods_of("running"))
    assert hosts == [f"{POOL}-11-1", f"{POOL}-11-2"]


async def live_slice(taken: Cluster, name: str, count: int) -> None:
    """Wait until a job has one Workload that is not Finished, with this count."""

    async def counted() -> bool:
        found = [
            one
            for one in await taken.list_all(kinds.WORKLOADS)
            if one["metadata"]["ownerReferences"][0]["name"] == name
            and "Finished" not in conditions(one)
        ]
        return [one["spec"]["podSets"][0]["count"] for one in found] == [count]

    await until("the slice is counted in its parent", counted)


async def test_an_elastic_job_grows_and_its_new_pod_is_released(
    plane: Plane, taken: Cluster
) -> None:
    """It has two Workloads: the slice that Kueue replaced is Finished, the other one grows."""
    await taken.merge(kinds.JOBS, "elastic", {"spec": {"parallelism": 3, "completions": 3}})
    pods = await taken.bound("elastic", 3)
    before = set(plane.before["pods"])
    assert len([pod for pod in pods if pod["metadata"]["name"] in before]) == 2
    await live_slice(taken, "elastic", 3)


async def test_a_job_that_grew_under_kueue_has_its_new_pods_released_and_grows_further(
    plane: Plane, taken: Cluster
) -> None:
    """Its pods name the slice that it was started with, which Kueue has replaced."""
    pods = await taken.bound("grown", 3)
    assert len({pod["metadata"]["name"] for pod in pods} & set(plane.before["pods"])) == 1
    await taken.merge(kinds.JOBS, "grown", {"spec": {"parallelism": 4, "completions": 4}})
    await taken.bound("grown", 4)
    await live_slice(taken, "grown", 4)


async def test_the_condition_of_a_field_without_effect_follows_edits_of_a_running_job(
    taken: Cluster,
) -> None:
    """Also through an eviction, whose writes leave out what another write has added."""
    boost = f"{names.GROUP}/priority-boost"

    async def said(text: str) -> None:
        async def found() -> bool:
            known = conditions(await taken.workload_of("starting"))
            message = str(known.get("UnsupportedFields", {}).get("message", ""))
            return text in message if text else not message

        await until(f"UnsupportedFields says {text!r}", found)

    async def annotate(value: str | None) -> None:
        await taken.merge(kinds.JOBS, "starting", {"metadata": {"annotations": {boost: value}}})

    await annotate("5")
    await said(boost)
    await annotate(None)
    await said("")
    await annotate("5")
    await said(boost)
    name = (await taken.workload_of("starting"))["metadata"]["name"]
    await taken.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})
    await taken.condition("starting", "Admitted", "False")
    await annotate(None)
    await said("")
    await taken.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    await taken.bound("starting", 4)


async def test_a_prebuilt_workload_is_stopped_and_started_again(taken: Cluster) -> None:
    """It keeps the name that Kueue or its user gave it."""
    await taken.merge(kinds.WORKLOADS, "made-by-hand", {"spec": {"active": False}})

    async def stopped() -> bool:
        found = await taken.get(kinds.JOBS, "prebuilt")
        template = json.dumps(found["spec"]["template"])
        return bool(found["spec"]["suspend"]) and f"{names.GROUP}/" not in template

    await until("the Job is as its user wrote it", stopped)
    await taken.merge(kinds.WORKLOADS, "made-by-hand", {"spec": {"active": True}})
    await taken.bound("prebuilt", 1)
    assert (await taken.workload_of("prebuilt"))["metadata"]["name"] == "made-by-hand"


async def test_each_job_that_ran_before_ends_normally_and_releases_its_quota(
    taken: Cluster,
) -> None:
    for name in ("running", "starting", "prebuilt", "elastic", "failing"):
        await taken.finish(name)

        async def ended(name: str = name) -> bool:
            found = [
                one
                for one in await taken.list_all(kinds.WORKLOADS)
                if one["metadata"]["ownerReferences"][0]["name"] == name
                and conditions(one)["Finished"]["reason"] == "Succeeded"
            ]
            return bool(found) and FINALIZER not in found[0]["metadata"].get("finalizers", ())

        await until(f"the Workload of {name} is Finished and has no finalizer", ended)
    for pod in await taken.list_all(kinds.PODS, labelSelector=JOBSET_SELECTOR.format("set")):
        change = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
        await taken.merge(kinds.PODS, pod["metadata"]["name"], change)
    await taken.condition("set", "Finished", "True", "Succeeded")


async def test_a_raycluster_that_kueue_started_is_stopped_restored_and_started_again(
    taken: Cluster,
) -> None:
    workload = await taken.workload_of("ray")
    name = workload["metadata"]["name"]
    await taken.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})

    async def restored() -> bool:
        found = await taken.get(kinds.RAY_CLUSTERS, "ray")
        return bool(found["spec"]["suspend"]) and f"{names.GROUP}/" not in json.dumps(found["spec"])

    await until("the RayCluster is as its user wrote it", restored)
    await taken.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    await ray_state(taken, "ray", "ready")
    await bound_pods(taken, ray_selector("ray"), 3)


async def test_kueue_can_read_everything_on_the_way_back(plane: Plane, taken: Cluster) -> None:
    """The schemas of Kueue accept each object that Rackgate wrote, without a field too many."""
    written = {kind: await taken.list_all(kind) for kind in KINDS}
    for service in SERVICES:
        await asyncio.to_thread(plane.playground.run, "stop", service)
    await asyncio.to_thread(plane.playground.run, "uninstall", "--yes")
    await asyncio.to_thread(kueue_crds, plane)
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    for kind, listed in written.items():
        for one in listed:
            meta = one["metadata"]
            now = await taken.get(kind, meta["name"])
            body = {**one, "apiVersion": kind.api_version, "kind": kind.kind}
            body["metadata"] = {**meta, "resourceVersion": now["metadata"]["resourceVersion"]}
            namespace = taken.namespace if kind.namespaced else None
            path = kind.path(namespace, meta["name"])
            await taken.client.replace(path, json.dumps(body).encode(), strict)
            if "status" in one:
                await taken.client.replace(f"{path}/status", json.dumps(body).encode(), strict)
            ours = [
                key
                for part in ("labels", "annotations")
                for key in meta.get(part, {})
                if "rackgate" in key
            ]
            assert ours == [], f"{kind.kind} {meta['name']}"
