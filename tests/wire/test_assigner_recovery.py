"""Pods that are lost and stay missing: eviction, a pause, and the queue again (TAS-32)."""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.api.names import FieldManager
from rackgate.api.timestamps import parse_rfc3339
from rackgate.runtime import clock
from rackgate_assigner.assigner import Assigner
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object, Request
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings
from tests.wire.killing import Killer, at_each, keep_running, while_running
from tests.wire.kinds_world import KindsWorld
from tests.wire.kinds_world import furnish as furnish_kinds

pytestmark = [pytest.mark.requirement("TAS-32"), pytest.mark.steady_clock]

PATIENT = 3600.0
# Of the writes of the life below: the loss, the eviction, the release, what follows it, the end of
# the pause, the next admission.
DEATHS = (4, 5, 8, 9, 10, 11)


def replica(
    world: World, timeout_s: float | None = 2.0, base_s: float = 2.0
) -> AbstractAsyncContextManager[Assigner]:
    """An assigner that waits so long for lost pods, and so long after the first eviction."""
    rules: dict[str, Any] = {"requeuingStrategy": {"backoffBaseSeconds": base_s}}
    if timeout_s is not None:
        rules["recoveryTimeout"] = timeout_s
    return assigner(world, configured=settings(waitForPodsReady=rules))


class Losing(World):
    """A cluster in which pods of running Jobs get lost."""

    def __init__(self) -> None:
        super().__init__()
        self._lost: dict[str, int] = {}

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        name, status = item["metadata"]["name"], item["status"]
        if item["spec"].get("suspend"):
            self._lost.pop(name, None)
        if "ready" in status:
            lost = status["ready"] if name == "slow" else self._lost.get(name, 0)
            status["ready"] -= lost

    def lose(self, name: str, pods: int = 1) -> None:
        """So many pods of a running Job are not ready now."""
        self._lost[name] = pods
        self.change(kinds.JOBS, name, lambda _job: None)


def tries(world: World, name: str) -> Object:
    found: Object = world.workload(name).get("status", {}).get("requeueState", {})
    return found


@pytest.mark.parametrize("queue", ["queue", "plain"], ids=["topology", "quota alone"])
async def test_lost_pods_that_stay_missing_cost_the_job_its_place_for_a_while(queue: str) -> None:
    async with Losing() as world, replica(world):
        furnish(world)
        world.submit("train", queue=queue)
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        world.lose("train")
        await eventually(world.shows("train", "Evicted", "True", "PodsReadyTimeout"))
        assert world.condition("train", "Requeued") == ("False", "PodsReadyTimeout")
        assert tries(world, "train")["count"] == 1
        await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
        assert not world.runs("train")
        until = parse_rfc3339(tries(world, "train")["requeueAt"])
        await eventually(world.started("train"))
        assert clock.now() >= until
        assert tries(world, "train") == {"count": 1}
        assert world.condition("train", "Requeued") == ("True", "BackoffFinished")
        assert world.condition("train", "Evicted")[0] == "False"
        await eventually(lambda: len(world.events("EvictedDueToPodsReadyTimeout")) == 1)
        assert world.broken_rules == []


async def test_pods_that_come_back_in_time_and_pods_that_never_were_cost_nothing() -> None:
    async with Losing() as world, replica(world, timeout_s=2.0):
        furnish(world)
        world.submit("back")
        await eventually(world.shows("back", "PodsReady", "True", "Started"))
        world.lose("back")
        await eventually(world.shows("back", "PodsReady", "False", "WaitForRecovery"))
        world.lose("back", 0)
        world.submit("slow")
        await eventually(lambda: world.runs("slow"))
        assert world.condition("slow", "PodsReady") == ("", "")
        # A third Job that is evicted after them shows that their time would be over by now.
        await eventually(world.shows("back", "PodsReady", "True", "Recovered"))
        world.submit("lost", queue="plain")
        await eventually(world.shows("lost", "PodsReady", "True", "Started"))
        world.lose("lost")
        await eventually(world.shows("lost", "Evicted", "True", "PodsReadyTimeout"))
        for name in ("back", "slow"):
            assert world.runs(name)
            assert world.condition(name, "Evicted") == ("", "")


class LosingKinds(Losing, KindsWorld):
    """The same, with JobSets."""

    def lose_workers(self, name: str) -> None:
        """The two workers of a running JobSet are not ready now."""
        self.lose(f"{name}-workers-0", 2)
        self._count(name)


def train(name: str, depends: str) -> Object:
    """A JobSet whose workers depend on its leader."""
    more: dict[str, Any] = {"dependsOn": [{"name": "leader", "status": depends}]}
    leader = composite.replicated_job("leader", 1)
    return composite.jobset(name, [leader, composite.replicated_job("workers", 2, **more)])


async def test_what_a_jobset_lacks_that_starts_in_stages_may_never_have_been_there() -> None:
    async with LosingKinds() as world, replica(world):
        furnish_kinds(world)
        for name, depends in (("staged", "Complete"), ("lost", "Ready")):
            world.add(kinds.JOBSETS, train(name, depends))
            await eventually(functools.partial(_ready, world, name))
            world.lose_workers(name)
            if depends == "Complete":
                world.succeed(name, "leader", 0)
                await eventually(lambda: _told(world, "staged", "PodsReady")[0] == "False")
        # The one that lost its pods later is evicted, so the time of the other one is over, too.
        await eventually(lambda: _told(world, "lost", "Evicted") == ("True", "PodsReadyTimeout"))
        assert _told(world, "staged", "PodsReady") == ("False", "WaitForRecovery")
        assert _told(world, "staged", "Evicted") == ("", "")


def _ready(world: KindsWorld, name: str) -> bool:
    return _told(world, name, "PodsReady") == ("True", "Started")


def _told(world: KindsWorld, name: str, type_: str) -> tuple[str, str]:
    return world.state(kinds.JOBSETS, name, type_)


async def test_without_a_timeout_lost_pods_are_waited_for() -> None:
    async with Losing() as world, replica(world, timeout_s=None) as found:
        furnish(world)
        world.submit("train")
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        name = world.workload("train")["metadata"]["name"]
        world.lose("train")
        await eventually(world.shows("train", "PodsReady", "False", "WaitForRecovery"))
        world.change(kinds.WORKLOADS, name, _age)
        await eventually(functools.partial(_has_seen, found, name))
        world.submit("next", queue="plain")
        await eventually(world.started("next"))
        assert world.runs("train")


async def test_the_time_runs_on_while_no_one_acts() -> None:
    """Whoever takes over counts from the condition, and not from his own start."""
    async with Losing() as world:
        furnish(world)
        async with replica(world, PATIENT):
            world.submit("train")
            await eventually(world.shows("train", "PodsReady", "True", "Started"))
            world.lose("train")
            await eventually(world.shows("train", "PodsReady", "False", "WaitForRecovery"))
        world.change(kinds.WORKLOADS, world.workload("train")["metadata"]["name"], _age)
        async with replica(world, PATIENT, PATIENT):
            await eventually(world.shows("train", "Evicted", "True", "PodsReadyTimeout"))


async def test_others_take_the_room_while_it_waits_and_a_deactivation_ends_the_pause() -> None:
    async with Losing() as world, replica(world, base_s=PATIENT):
        furnish(world)
        world.submit("train", queue="plain", cpu="16")
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        world.lose("train")
        await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
        world.submit("next", queue="plain", cpu="16")
        await eventually(world.started("next"))
        world.complete("next")
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=False))
        await eventually(lambda: tries(world, "train") == {})
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=True))
        await eventually(world.started("train"))


class Unready(Losing):
    """The pods of a Job that is started again are not ready yet."""

    keep = False

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        if self.keep and "ready" in item["status"]:
            item["status"]["ready"] = 0


class Forgetting(Fault):
    """Writes of the job controller about the pods of a Workload."""

    def matches(self, request: Request) -> bool:
        manager = request.query.get("fieldManager")
        return self.times > 0 and request.method == "PATCH" and manager == FieldManager.JOB


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "ready"])
async def test_a_start_never_counts_the_pods_of_the_run_before_it(lost: bool) -> None:
    """Whichever comes first, the next admission or the write that forgets the old pods."""
    async with Unready() as world, replica(world, PATIENT):
        furnish(world)
        world.submit("train", queue="plain")
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        if lost:
            world.lose("train")
            await eventually(world.shows("train", "PodsReady", "False", "WaitForRecovery"))
        world.keep = True
        refused = Forgetting(Fault.status(500, "InternalError").answer, times=4)
        world.faults.append(refused)
        world.change(kinds.JOBS, "train", lambda job: job["spec"].update(suspend=True))
        await eventually(world.shows("train", "Evicted", "False", "QuotaReserved"))
        await eventually(world.started("train"))
        assert refused.times == 0
        assert world.condition("train", "PodsReady") == ("", "")


KUEUE = "kueue-admission"


async def test_what_kueue_has_applied_holds_up_neither_a_release_nor_the_end_of_a_pause() -> None:
    """Of a Workload that was taken over from Kueue, its manager owns the same fields."""
    async with Losing() as world, replica(world):
        furnish(world)
        world.submit("train", queue="plain")
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        name = world.workload("train")["metadata"]["name"]
        world.take_over(name, KUEUE, "admission", "PodsReady")
        world.lose("train")
        await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
        await eventually(lambda: "admission" not in world.workload("train")["status"])
        world.take_over(name, f"{KUEUE}-2", "requeueState")
        await eventually(world.started("train"))
        # Of PodsReady it owned the type alone since the pods were lost: no condition by itself.
        assert any(request.path.endswith("/status") for request in world.refused)
        assert tries(world, "train") == {"count": 1}
        assert world.condition("train", "PodsReady")[1] != "WaitForRecovery"
        assert world.broken_rules == []


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
async def test_a_death_at_any_write_neither_loses_nor_repeats_an_eviction(applied: bool) -> None:
    async def life(number: int) -> None:
        async with Losing() as world:
            furnish(world)
            killer = Killer(number, applied=applied)
            world.faults.append(killer.fault())
            await while_running(keep_running(world, killer.struck, replica), _life(world))
            assert world.broken_rules == []
            assert killer.struck.is_set()

    await at_each(DEATHS, life)


async def _life(world: Losing) -> None:
    world.submit("train")
    await eventually(world.shows("train", "PodsReady", "True", "Started"))
    world.lose("train")
    await eventually(world.shows("train", "Requeued", "True", "BackoffFinished"))
    await eventually(world.started("train"))
    await eventually(world.shows("train", "PodsReady", "True", "Started"))
    assert tries(world, "train") == {"count": 1}


def _age(own: Object) -> None:
    """It was admitted, and its pods were lost, long ago."""
    for condition in own["status"]["conditions"]:
        if condition["type"] in ("Admitted", "PodsReady"):
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


def _has_seen(found: Assigner, name: str) -> bool:
    own = found.watches.workloads.store[f"team/{name}"]
    ready = own.condition("PodsReady")
    return ready is not None and ready.last_transition_time == "2026-01-01T00:00:00Z"
