"""Room that ended pods gave back, and that is taken again."""

from __future__ import annotations

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import RUN, World
from tests.support.cluster import until
from tests.support.objects import Object

SET = f"{names.JOBSET_NAME_LABEL}=set"
DONE: Object = {"metadata": {"annotations": {RUN: "0"}}}


async def reclaimed(world: World) -> None:
    """Wait until the JobSet's Workload says that pods are reclaimed."""

    async def told() -> bool:
        found = await world.workload_of("set")
        return bool(found.get("status", {}).get("reclaimablePods"))

    await until("room is reclaimed", told, 60.0)


async def half_done(world: World) -> None:
    """A JobSet of two replicatedJobs of 8 CPU each; the first has succeeded and is reclaimed."""
    made = world.jobset("set", {"first": (2, "4"), "second": (2, "4")})
    await world.attacker.create(kinds.JOBSETS, made)
    await world.bound(SET, 4)
    for pod in await world.living(f"{SET},{names.REPLICATED_JOB_LABEL}=first"):
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], DONE)
    await reclaimed(world)


@attack(needs=("jobset",), topology=None, ci=("",))
async def finished_child_deleted_when_its_room_is_taken(world: World) -> None:
    """The JobSet makes it again, and it would run once more."""
    await half_done(world)
    await world.submit("taker", 2)
    await world.runs("taker", 2)
    async for _ in world.rounds(3, 3.0):
        await world.attacker.delete(kinds.JOBS, "set-first-0")
    await world.hold(6)


@attack(needs=("jobset",))
async def finished_child_deleted_while_its_room_is_free(world: World) -> None:
    """The room is free, the child comes back into it; then others want it."""
    await half_done(world)
    await world.attacker.delete(kinds.JOBS, "set-first-0")
    await world.hold(1)
    await world.submit("taker", 2)
    await world.hold(8)


@attack(needs=("jobset",), words=("immutable", "Invalid value"))
async def child_that_succeeded_asked_for_more(world: World) -> None:
    """Parallelism and completions of a child that is done; suspended and started again."""
    await half_done(world)
    await world.submit("taker", 2)
    await world.runs("taker", 2)
    for change in (
        {"spec": {"parallelism": 4, "completions": 4}},
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
    ):
        await world.attacker.merge(kinds.JOBS, "set-first-0", change)
    await world.hold(5)


@attack()
async def pods_that_succeeded_deleted_uncounted(world: World) -> None:
    """Without its finalizer a pod that succeeded is gone before the Job counts it."""
    await world.submit("train", 4, indexed=False, completions=40)
    await world.runs("train", 4)
    async for _ in world.rounds(4, 1.5):
        for pod in await world.living("batch.kubernetes.io/job-name=train"):
            name = pod["metadata"]["name"]
            await world.attacker.merge(kinds.PODS, name, {"metadata": {"finalizers": None}})
            await world.attacker.merge(kinds.PODS, name, DONE)
            await world.attacker.delete(kinds.PODS, name, grace_s=0)
    await world.submit("next", 4)
    await world.hold(4)


@attack(needs=("jobset",))
async def jobset_suspended_and_resumed_after_reclaim(world: World) -> None:
    """Queued anew, it needs all its room again, and others have taken half of it."""
    await half_done(world)
    await world.submit("taker", 2)
    await world.runs("taker", 2)
    await world.attacker.merge(kinds.JOBSETS, "set", {"spec": {"suspend": True}})
    await world.hold(2)
    await world.attacker.merge(kinds.JOBSETS, "set", {"spec": {"suspend": False}})
    await world.hold(6)
