"""Jobs that end while their pods do not."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, World
from tests.support.objects import Object

HELD = ["example.com/held"]


@attack(topology=None, bare=True, ci=("",))
async def held_by_a_finalizer_and_its_workload_deleted(world: World) -> None:
    """Deleted, and yet it runs on: three times."""
    for number in range(3):
        name = f"held-{number}"
        job = world.job(name, 4)
        job["metadata"]["finalizers"] = HELD
        await world.attacker.create(kinds.JOBS, job)
        if number == 0:
            await world.runs(name, 4)
        else:
            await world.hold(4)
        await world.attacker.delete(kinds.JOBS, name)
        for one in await world.attacker.all(kinds.WORKLOADS):
            await world.attacker.delete(kinds.WORKLOADS, one["metadata"]["name"])
    await world.hold(5)


@attack(
    cases={
        "jobset": {"needs": ("jobset",)},
        "raycluster": {"needs": ("kuberay",)},
    }
)
async def composite_held_by_a_finalizer(world: World) -> None:
    """The same with a JobSet and a RayCluster, whose controllers may leave the pods."""
    is_set = "jobset" in world.attack.needs
    kind = kinds.JOBSETS if is_set else kinds.RAY_CLUSTERS
    for number in range(2):
        name = f"held-{number}"
        made = (
            world.jobset(name, {"workers": (4, "4")}, terminate=HOURS)
            if is_set
            else (world.raycluster(name, 3, terminate=HOURS))
        )
        made["metadata"]["finalizers"] = HELD
        await world.attacker.create(kind, made)
        if number == 0:
            await world.bound("", 4)
        else:
            await world.hold(6)
        await world.attacker.delete(kind, name)
        for one in await world.attacker.all(kinds.WORKLOADS):
            await world.attacker.delete(kinds.WORKLOADS, one["metadata"]["name"])
    await world.hold(5)


@attack(topology=None, bare=True, ci=("",))
async def suspended_while_its_pods_take_hours_to_go(world: World) -> None:
    """Suspended, and its pods are still there; four Jobs one after another."""
    for number in range(4):
        name = f"slow-{number}"
        await world.submit(name, 4, terminate=HOURS)
        if number == 0:
            await world.runs(name, 4)
        else:
            await world.hold(4)
        await world.attacker.merge(kinds.JOBS, name, {"spec": {"suspend": True}})
        await world.hold(1)
    await world.hold(5)


@attack(
    cases={
        "orphan": {"how": "Orphan", "terminate": None},
        "orphan-slow": {"how": "Orphan", "terminate": HOURS},
        "foreground": {"how": "Foreground", "terminate": HOURS},
        "background": {"how": "Background", "terminate": HOURS},
    },
    topology=None,
    bare=True,
    ci=("orphan",),
)
async def deleted_and_made_again(world: World, how: str, terminate: str | None) -> None:
    """`kubectl delete job --cascade=...` in a loop."""
    for number in range(3):
        name = f"train-{number}"
        await world.submit(name, 4, terminate=terminate)
        if number == 0:
            await world.runs(name, 4)
        else:
            await world.hold(4)
        await world.attacker.delete(kinds.JOBS, name, how=how)
        await world.hold(1)
    await world.hold(5)


@attack()
async def all_jobs_deleted_at_once_and_orphaned(world: World) -> None:
    """One request for the whole collection."""
    for number in range(3):
        for part in range(2):
            await world.submit(f"train-{number}-{part}", 2)
        if number == 0:
            await world.runs("train-0-0", 2)
            await world.runs("train-0-1", 2)
        else:
            await world.hold(4)
        await world.attacker.delete_all(kinds.JOBS, how="Orphan")
    await world.hold(5)


@attack(
    cases={
        "jobset": {"needs": ("jobset",)},
        "raycluster": {"needs": ("kuberay",)},
    },
    topology=None,
)
async def composite_deleted_and_its_parts_orphaned(world: World) -> None:
    """Child Jobs and pods of a composite that is no more, and the next composite."""
    is_set = "jobset" in world.attack.needs
    kind = kinds.JOBSETS if is_set else kinds.RAY_CLUSTERS
    for number in range(3):
        name = f"train-{number}"
        made = (
            world.jobset(name, {"workers": (4, "4")})
            if is_set
            else (world.raycluster(name, 3, cpu="4"))
        )
        await world.attacker.create(kind, made)
        if number == 0:
            await world.bound("", 4)
        else:
            await world.hold(6)
        await world.attacker.delete(kind, name, how="Orphan")
    await world.hold(6)


@attack()
async def same_name_again_and_again(world: World) -> None:
    """Its Workload may still be going when the next Job of that name comes."""
    await world.submit("same", 4, terminate=HOURS)
    await world.runs("same", 4)
    async for _ in world.rounds(6, 0.7):
        await world.attacker.delete(kinds.JOBS, "same", how="Background")
        await world.submit("same", 4, terminate=HOURS)
    await world.hold(5)


def deadline() -> Object:
    return {"activeDeadlineSeconds": 20}


def one_failure() -> Object:
    return {"backoffLimit": 0}


@attack(cases={"deadline": {"spec": deadline()}, "failure": {"spec": one_failure()}}, topology=None)
async def job_fails_while_its_pods_take_hours_to_go(world: World, spec: Object) -> None:
    """A Job that has failed gives its quota back; its pods are to be gone by then."""
    for number in range(2):
        name = f"fails-{number}"
        await world.submit(name, 4, terminate=HOURS, spec=spec)
        if number == 0:
            pods = await world.runs(name, 4)
            if "backoffLimit" in spec:
                change = {"metadata": {"annotations": {"rackgate.dev/fail-after-seconds": "0"}}}
                await world.attacker.merge(kinds.PODS, pods[0]["metadata"]["name"], change)
        await world.hold(8 + spec.get("activeDeadlineSeconds", 0))
    await world.hold(4)


@attack()
async def finished_at_once_by_a_success_policy(world: World) -> None:
    """One index succeeds, the Job is complete, the other pods take hours to go."""
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await world.submit("early", 4, terminate=HOURS, spec={"successPolicy": policy})
    pods = await world.runs("early", 4)
    index = "batch.kubernetes.io/job-completion-index"
    (first,) = [one for one in pods if one["metadata"]["labels"].get(index) == "0"]
    change = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
    await world.attacker.merge(kinds.PODS, first["metadata"]["name"], change)
    await world.hold(3)
    await world.submit("next", 4)
    await world.hold(8)


@attack()
async def leaves_the_queue_while_its_pods_take_hours_to_go(world: World) -> None:
    """Suspended, then no longer managed; the next Job finds the queue empty."""
    await world.submit("leaves", 4, terminate=HOURS)
    await world.runs("leaves", 4)
    await world.attacker.merge(kinds.JOBS, "leaves", {"spec": {"suspend": True}})
    await world.hold(2)
    change = {"metadata": {"labels": {names.QUEUE_LABEL: None}}}
    await world.attacker.merge(kinds.JOBS, "leaves", change)
    await world.submit("next", 4)
    await world.hold(8)


@attack(
    cases={
        "second-queue": {"labels": {"kueue.x-k8s.io/queue-name": "nowhere"}},
    }
)
async def moves_to_another_queue_while_its_pods_take_hours_to_go(world: World, labels: Any) -> None:
    """Suspended and sent to a queue that does not exist."""
    await world.submit("moves", 4, terminate=HOURS)
    await world.runs("moves", 4)
    await world.attacker.merge(kinds.JOBS, "moves", {"spec": {"suspend": True}})
    await world.hold(2)
    await world.attacker.merge(kinds.JOBS, "moves", {"metadata": {"labels": labels}})
    await world.submit("next", 4)
    await world.hold(8)
