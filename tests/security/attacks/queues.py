"""Queues, their order, and who belongs to which."""

from __future__ import annotations

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, RESOURCE_QUOTAS, World, priority_class
from tests.support.cluster import until
from tests.support.objects import Object, cluster_queue, local_queue


def label(value: str | None) -> Object:
    return {"metadata": {"labels": {names.QUEUE_LABEL: value}}}


@attack(queue={"queueingStrategy": "StrictFIFO"}, topology=None, ci=("",))
async def never_fits_and_stands_first(world: World) -> None:
    """A Job of more than the whole quota at the head of a StrictFIFO queue."""
    await world.submit("never", 5)
    await world.workload_of("never")
    await world.hold(2)
    await world.tenant_runs("meanwhile")
    world.note("a Job of more than the whole quota stood first")


@attack(queue={"queueingStrategy": "StrictFIFO"})
async def head_renewed_for_ever(world: World) -> None:
    """Jobs that never fit, one after the other, deactivated and active again."""
    for number in range(6):
        await world.submit(f"never-{number}", 5)
    workload = (await world.workload_of("never-0"))["metadata"]["name"]
    for number in range(6):
        change = {"spec": {"active": number % 2 == 1}}
        await world.attacker.merge(kinds.WORKLOADS, workload, change)
    await world.tenant_runs("meanwhile")
    world.note("six Jobs of more than the whole quota stood first")


@attack(seconds=180)
async def flood_of_pending_jobs(world: World) -> None:
    """Two hundred Jobs that do not fit now; the other tenant's small one does."""
    await world.submit("first", 3)
    await world.runs("first", 3)
    for number in range(200):
        await world.submit(f"flood-{number}", 4)
    await world.tenant_runs("meanwhile")


@attack(
    cases={"moved": {"to": "other"}, "removed": {"to": None}, "emptied": {"to": ""}},
    topology=None,
)
async def label_of_a_running_job_changed(world: World, to: str | None) -> None:
    """Out of the queue, and running on."""
    await world.submit("first", 4)
    await world.runs("first", 4)
    await world.attacker.merge(kinds.JOBS, "first", label(to))
    await world.submit("second", 4)
    await world.hold(6)


@attack(
    cases={
        "jobset": {"needs": ("jobset",)},
        "raycluster": {"needs": ("kuberay",)},
    },
)
async def label_of_a_running_composite_removed(world: World) -> None:
    """The same with a JobSet and a RayCluster."""
    is_set = "jobset" in world.attack.needs
    kind = kinds.JOBSETS if is_set else kinds.RAY_CLUSTERS
    made = world.jobset("first", {"workers": (4, "4")}) if is_set else world.raycluster("first", 3)
    await world.attacker.create(kind, made)
    await world.bound("", 4)
    await world.attacker.merge(kind, "first", label(None))
    await world.submit("second", 4)
    await world.hold(6)


@attack()
async def label_added_to_a_running_job(world: World) -> None:
    """An unmanaged Job that runs claims a queue."""
    job = world.job("plain", 8, managed=False)
    await world.attacker.create(kinds.JOBS, job)

    async def bound() -> bool:
        pods = await world.living("batch.kubernetes.io/job-name=plain")
        return len(pods) == 8

    await until("the unmanaged Job runs", bound)
    await world.attacker.merge(kinds.JOBS, "plain", label("queue"))
    await world.submit("train", 4)
    await world.runs("train", 4)


@attack()
async def out_of_its_queue_and_back(world: World) -> None:
    """Suspended, out of the queue, and back into it in the write that starts it."""
    await world.submit("first", 4, terminate=HOURS)
    await world.runs("first", 4)
    for _ in range(3):
        await world.attacker.merge(kinds.JOBS, "first", {"spec": {"suspend": True}})
        await world.attacker.merge(kinds.JOBS, "first", label(None))
        await world.attacker.merge(kinds.JOBS, "first", label("queue"))
        change = label("queue") | {"spec": {"suspend": False}}
        await world.attacker.merge(kinds.JOBS, "first", change)
        await world.hold(1)
    await world.submit("second", 4)
    await world.hold(5)


@attack()
async def rights_over_queues(world: World) -> None:
    """Queues, quota, priorities, topologies, namespaces and nodes are not a user's."""
    hand = world.attacker
    await hand.delete(kinds.LOCAL_QUEUES, "queue")
    await hand.create(kinds.LOCAL_QUEUES, local_queue("mine", world.pool))
    await hand.merge(kinds.LOCAL_QUEUES, "queue", {"spec": {"stopPolicy": "Hold"}})
    await hand.create(kinds.CLUSTER_QUEUES, cluster_queue("mine", world.pool, {"cpu": "1000"}))
    change = {"spec": {"stopPolicy": "Hold"}}
    await hand.merge(kinds.CLUSTER_QUEUES, world.pool, change)
    await hand.create(kinds.WORKLOAD_PRIORITY_CLASSES, priority_class(f"{world.pool}-x", 9))
    await hand.merge(kinds.NODES, world.node, {"metadata": {"labels": {"x": "y"}}})
    system = {"metadata": {"labels": {"kubernetes.io/metadata.name": "kube-system"}}}
    await hand.merge(kinds.NAMESPACES, hand.namespace, system)
    made: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "mine"},
        "spec": {"hard": {"pods": "0"}},
    }
    await hand.create(RESOURCE_QUOTAS, made)
    assert [one.by for one in hand.rejections] == ["rights"] * 9, hand.rejections
    await world.tenant_runs("meanwhile")


@attack()
async def local_queue_goes_while_its_job_runs(world: World) -> None:
    """The administrator deletes the LocalQueue; what runs is to be charged until it ends."""
    await world.submit("first", 4)
    await world.runs("first", 4)
    await world.admin.delete(kinds.LOCAL_QUEUES, "queue")
    await world.hold(2)
    await world.tenant.create(kinds.JOBS, world.job("theirs", 4))
    await world.hold(5)
    await world.tenant.delete(kinds.JOBS, "theirs")


@attack(cases={"default": {"spec": {}}, "strict": {"spec": {}}})
async def many_small_jobs_at_once(world: World, spec: Object) -> None:
    """Sixty Jobs of 1 CPU, all in one moment, that end after a second."""
    for number in range(60):
        await world.submit(f"small-{number}", 1, cpu="1", run_seconds=1, spec=spec)
    await world.hold(12)


@attack()
async def other_tenants_objects(world: World) -> None:
    """The neighbour's namespace is out of reach."""
    await world.tenant.create(kinds.JOBS, world.job("theirs", 2))
    await world.tenant.bound("theirs", 2)
    hand = world.attacker
    path = kinds.WORKLOADS.path(world.tenant.namespace, "any")
    change = [{"op": "add", "path": "/spec/active", "value": False}]
    await hand.patch_at(path, "patch the neighbour's Workload", change)
    path = kinds.JOBS.path(world.tenant.namespace, "theirs")
    await hand.patch_at(path, "patch the neighbour's Job", change)
    assert [one.by for one in hand.rejections] == ["rights"] * 2, hand.rejections
    assert not world.ledger.lost
    await world.tenant.delete(kinds.JOBS, "theirs")
