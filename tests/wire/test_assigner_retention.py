"""`objectRetentionPolicies`: ended Workloads are deleted after their time, and nothing else is."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs

from rackgate.api import resources as kinds
from rackgate_assigner.assigner import Assigner
from tests.support.apiserver import Object
from tests.support.apiserver_objects import Target
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings
from tests.wire.test_assigner_recovery import Losing

pytestmark = pytest.mark.steady_clock

PATIENT = 3600.0
LIMITED = {"timeout": 2, "requeuingStrategy": {"backoffLimitCount": 0}}


def replica(world: World, **workloads: float) -> AbstractAsyncContextManager[Assigner]:
    """An assigner that keeps Workloads so long, and that deactivates jobs that do not start."""
    return assigner(
        world,
        configured=settings(
            objectRetentionPolicies={"workloads": workloads}, waitForPodsReady=LIMITED
        ),
    )


async def test_a_finished_workload_is_deleted_and_not_created_again() -> None:
    async with World() as world, replica(world, afterFinished=2):
        furnish(world)
        for name in ("train", "other"):
            world.submit(name)
            await eventually(world.started(name))
        world.complete("train")
        await eventually(world.shows("train", "Finished", "True"))
        await eventually(lambda: world.workload_of(world.job("train")) is None)
        world.change(kinds.JOBS, "train", lambda job: job["metadata"]["labels"].update(a="b"))
        world.submit("next", queue="plain")
        await eventually(world.started("next"))
        assert world.workload_of(world.job("train")) is None
        assert world.admitted("other")
        assert not [r for r in world.writes() if r.method == "DELETE" and "/jobs/" in r.path]


async def test_the_time_runs_on_while_no_one_acts() -> None:
    async with World() as world:
        furnish(world)
        async with replica(world, afterFinished=PATIENT):
            world.submit("train")
            await eventually(world.started("train"))
            world.complete("train")
            await eventually(world.shows("train", "Finished", "True"))
            await eventually(lambda: not world.workload("train")["metadata"].get("finalizers"))
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, _age)
        async with replica(world, afterFinished=PATIENT):
            await eventually(lambda: world.workload_of(world.job("train")) is None)


async def test_a_job_that_rackgate_deactivated_is_deleted_and_one_of_its_user_is_not() -> None:
    async with Losing() as world:
        furnish(world)
        # Without `waitForPodsReady`: only the user deactivates this one.
        async with assigner(world):
            world.submit("off")
            await eventually(world.started("off"))
            name = world.workload("off")["metadata"]["name"]
            world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=False))
            await eventually(world.shows("off", "QuotaReserved", "False"))
        async with replica(world, afterDeactivatedByKueue=0):
            world.submit("slow")
            await eventually(lambda: world.get(kinds.JOBS, "slow", "team") is None)
            await eventually(lambda: len(world.events("Deleted")) == 1)
        assert world.job("off")["spec"]["suspend"] is True
        (deletion,) = [r for r in world.writes() if r.method == "DELETE" and "/jobs/" in r.path]
        assert b"resourceVersion" in deletion.body
        assert world.broken_rules == []


async def test_the_setting_without_the_right_is_logged_with_the_remedy() -> None:
    with capture_logs() as logs:
        async with World() as world:
            world.denied = {("delete", "jobs"), ("delete", "rayclusters")}
            async with replica(world, afterFinished=PATIENT):
                await eventually(lambda: any(one["event"] == "caches_synced" for one in logs))
            assert [one for one in logs if one["event"] == "retention_without_right"] == []
            async with replica(world, afterDeactivatedByKueue=PATIENT):
                await eventually(
                    lambda: any(one["event"] == "retention_without_right" for one in logs)
                )
    (line,) = [one for one in logs if one["event"] == "retention_without_right"]
    assert line["missing"] == ["delete jobs.batch", "delete rayclusters.ray.io"]
    assert "deploy/retention" in line["remedy"]
    assert line["log_level"] == "error"


async def test_with_the_right_nothing_is_logged() -> None:
    with capture_logs() as logs:
        async with World() as world, replica(world, afterDeactivatedByKueue=PATIENT):
            reviews = "/selfsubjectaccessreviews"
            await eventually(lambda: sum(one.path.endswith(reviews) for one in world.requests) == 3)
    assert [one for one in logs if one["event"] == "retention_without_right"] == []


class Activating(Losing):
    """Its user activates a Workload while the assigner is about to delete the job."""

    activated = False

    def _read(self, target: Target) -> None:
        of = self.get(kinds.JOBS, "slow", "team")
        own = self.workload_of(of) if of is not None else None
        if own is None or self.activated or target.name != own["metadata"]["name"]:
            return
        self.activated = True
        self.change(kinds.WORKLOADS, target.name, lambda item: item["spec"].update(active=True))

    def _do(self, target: Target, seen: Any) -> tuple[int, Object]:
        if seen.method == "GET":
            self._read(target)
        return super()._do(target, seen)


async def test_a_job_whose_workload_is_activated_in_the_last_moment_stays() -> None:
    async with Activating() as world, replica(world, afterDeactivatedByKueue=0):
        furnish(world)
        world.submit("slow")
        await eventually(lambda: world.activated)
        await eventually(world.started("slow"))
        assert world.get(kinds.JOBS, "slow", "team") is not None


def _age(own: Object) -> None:
    for condition in own["status"]["conditions"]:
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
