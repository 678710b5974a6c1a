"""How many pods a job asks for, and when."""

from __future__ import annotations

import asyncio
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, World
from tests.support.objects import Object


def many(count: int) -> Object:
    return {"spec": {"parallelism": count}}


@attack(topology=None, bare=True, ci=("",))
async def running_job_raised(world: World) -> None:
    """From four pods to four hundred."""
    await world.submit("train", 4, cpu="1", indexed=False, completions=1000)
    await world.runs("train", 4)
    await world.attacker.merge(kinds.JOBS, "train", many(400))
    await world.hold(8)


@attack(ci=True)
async def running_job_raised_and_lowered(world: World) -> None:
    """Four and two hundred, in turns, before anybody can stop it."""
    await world.submit("train", 4, cpu="1", indexed=False, completions=1000)
    await world.runs("train", 4)
    async for number in world.rounds(16, 0.4):
        await world.attacker.merge(kinds.JOBS, "train", many(200 if number % 2 == 0 else 4))
    await world.hold(4)


@attack(topology=None)
async def raised_in_the_moment_of_its_admission(world: World) -> None:
    """Asked for four, raised while the assigner admits it, at twelve different moments."""
    for number in range(12):
        name = f"race-{number}"
        await world.submit(name, 2, cpu="2", indexed=False, completions=100)
        await asyncio.sleep(number * 0.04)
        await world.attacker.merge(kinds.JOBS, name, many(30))
        await asyncio.sleep(1.0)
        await world.attacker.delete(kinds.JOBS, name)
    await world.hold(3)


@attack(words=("field is immutable",))
async def template_raised_in_the_moment_of_its_admission(world: World) -> None:
    """The same with the requests: 1 CPU becomes 16."""
    operations = [
        {
            "op": "replace",
            "path": "/spec/template/spec/containers/0/resources/requests/cpu",
            "value": "16",
        }
    ]
    for number in range(12):
        name = f"race-{number}"
        await world.submit(name, 4, cpu="1")
        await asyncio.sleep(number * 0.04)
        await world.attacker.json_patch(kinds.JOBS, name, operations)
        await asyncio.sleep(1.0)
        await world.attacker.delete(kinds.JOBS, name)
    world.note("templates edited while Jobs are admitted")
    await world.hold(3)


@attack()
async def raised_while_suspended_then_unsuspended(world: World) -> None:
    """Stopped by its user, raised, and started by its user."""
    await world.submit("train", 4, indexed=False, completions=100)
    await world.runs("train", 4)
    for _ in range(4):
        await world.attacker.merge(kinds.JOBS, "train", {"spec": {"suspend": True}})
        change = {"spec": {"suspend": False, "parallelism": 12}}
        await world.attacker.merge(kinds.JOBS, "train", change)
        await world.hold(1.5)
    await world.hold(4)


@attack()
async def suspend_flipped_in_a_loop(world: World) -> None:
    """Forty writes, with pods that take hours to go and a second Job that waits."""
    await world.submit("first", 4, terminate=HOURS)
    await world.runs("first", 4)
    await world.submit("second", 4, terminate=HOURS)
    async for number in world.rounds(40, 0.1):
        change = {"spec": {"suspend": number % 2 == 0}}
        await world.attacker.merge(kinds.JOBS, "first", change)
    await world.hold(5)


@attack()
async def none_at_first(world: World) -> None:
    """A Job of no pods has no Workload; then it asks for eight, and starts itself."""
    job = world.job("none", 0, indexed=False, completions=100)
    await world.attacker.create(kinds.JOBS, job)
    await world.hold(2)
    await world.attacker.merge(kinds.JOBS, "none", many(8))
    await world.attacker.merge(kinds.JOBS, "none", {"spec": {"suspend": False}})
    await world.hold(5)


@attack(words=("immutable",))
async def completions_fewer_than_parallelism(world: World) -> None:
    """The smaller number is charged; the larger one must not run."""
    await world.submit("few", 40, cpu="1", indexed=False, completions=4)
    await world.runs("few", 4)
    await world.attacker.merge(kinds.JOBS, "few", {"spec": {"completions": 40}})
    await world.attacker.merge(kinds.JOBS, "few", {"spec": {"completions": None}})
    await world.hold(5)


@attack()
async def work_queue_without_completions(world: World) -> None:
    """A Job without completions makes as many pods as its parallelism says at that time."""
    job = world.job("queue", 4, cpu="1", indexed=False)
    del job["spec"]["completions"]
    await world.attacker.create(kinds.JOBS, job)
    await world.runs("queue", 4)
    await world.attacker.merge(kinds.JOBS, "queue", many(60))
    await world.hold(6)


@attack(topology=None, bare=True)
async def elastic_mark_on_a_plain_job(world: World) -> None:
    """While it waits and while it runs: the gate must be there when it grows."""
    elastic = {"metadata": {"annotations": {names.ELASTIC_ANNOTATION: "true"}}}
    await world.submit("train", 4, cpu="1", indexed=False, completions=1000)
    await world.runs("train", 4)
    await world.attacker.merge(kinds.JOBS, "train", elastic)
    await world.attacker.merge(kinds.JOBS, "train", many(200))
    await world.hold(6)


@attack(topology=None, seconds=150)
async def elastic_job_alternates(world: World) -> None:
    """Two and sixty pods of 1 CPU, in turns; its pods take hours to go."""
    job = world.job("train", 2, cpu="1", terminate=HOURS)
    job["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    await world.attacker.create(kinds.JOBS, job)
    await world.runs("train", 2)
    async for number in world.rounds(10, 0.8):
        count = 60 if number % 2 == 0 else 2
        change = {"spec": {"parallelism": count, "completions": count}}
        await world.attacker.merge(kinds.JOBS, "train", change)
    await world.hold(5)


@attack()
async def elastic_job_shrinks_and_another_comes(world: World) -> None:
    """What it gave back lives on for hours."""
    job = world.job("train", 4, terminate=HOURS)
    job["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    await world.attacker.create(kinds.JOBS, job)
    await world.runs("train", 4)
    change = {"spec": {"parallelism": 1, "completions": 1}}
    await world.attacker.merge(kinds.JOBS, "train", change)
    await world.submit("next", 3)
    await world.hold(8)


@attack()
async def lowered_and_another_comes(world: World) -> None:
    """The same with a plain Job."""
    await world.submit("train", 4, terminate=HOURS, indexed=False, completions=100)
    await world.runs("train", 4)
    await world.attacker.merge(kinds.JOBS, "train", many(1))
    await world.submit("next", 3)
    await world.hold(6)
    await world.attacker.merge(kinds.JOBS, "train", many(4))
    await world.hold(5)


@attack(
    cases={
        "most": {"count": 2**31 - 1, "cpu": "4"},
        "more": {"count": 2**31, "cpu": "4"},
        "negative": {"count": -4, "cpu": "4"},
        "negative-cpu": {"count": 8, "cpu": "-4"},
        "huge-cpu": {"count": 8, "cpu": "9e18"},
        "tiny-cpu": {"count": 40, "cpu": "0.5n"},
        "overflow": {"count": 100_000, "cpu": "100000000"},
    },
    words=(
        "must be greater than or equal",
        "cannot unmarshal",
        "must be less than or equal",
        "quantities must match",
        "must not be",
        "Invalid value",
    ),
)
async def odd_numbers(world: World, count: int, cpu: str) -> None:
    """Numbers at and beyond what fits into a counter."""
    await world.submit("odd", count, cpu=cpu, indexed=False, completions=None)
    await world.attacker.merge(kinds.JOBS, "odd", {"spec": {"suspend": False}})
    world.note(f"{count} pods of {cpu} CPU")
    await world.hold(5)
    await world.tenant_runs("meanwhile")


@attack()
async def status_of_a_job_written(world: World) -> None:
    """A Job that says it is complete, or has no pods, and runs on."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    finished: dict[str, Any] = {
        "conditions": [
            {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ],
        "active": 0,
        "succeeded": 4,
    }
    await world.attacker.merge(kinds.JOBS, "train", {"status": finished}, "status")
    await world.attacker.merge(kinds.JOBS, "train", {"status": finished})
    await world.submit("next", 4)
    await world.hold(6)


@attack()
async def failing_pods_made_again(world: World) -> None:
    """Pods fail as fast as they can; each of them is replaced."""
    await world.submit("fails", 4, spec={"backoffLimit": 50}, indexed=False, completions=50)
    await world.runs("fails", 4)
    change = {"metadata": {"annotations": {"rackgate.dev/fail-after-seconds": "0"}}}
    async for _ in world.rounds(6, 1.0):
        for pod in await world.living("batch.kubernetes.io/job-name=fails"):
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.hold(4)


@attack(words=("immutable",))
async def given_to_another_controller(world: World) -> None:
    """`managedBy` somebody else: admitted, never started by anybody we know."""
    job = world.job("elsewhere", 4, spec={"managedBy": "example.com/nobody"})
    await world.attacker.create(kinds.JOBS, job)
    await world.attacker.merge(kinds.JOBS, "elsewhere", {"spec": {"suspend": False}})
    world.note("a Job of another controller")
    await world.hold(5)
