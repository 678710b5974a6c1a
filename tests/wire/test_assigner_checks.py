"""Admission checks over HTTP: quota first, answers that come late, twice or never, and deaths."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.api.timestamps import parse_rfc3339
from rackgate.runtime import clock
from tests.support.apiserver import Object
from tests.wire.assigner_world import START, World, assigner, eventually, furnish
from tests.wire.killing import Killer, at_each, keep_running, while_running

CHECKS = ("budget", "nodes")
# Of the writes of the longest life below.
DEATHS = range(2, 14)


def furnish_checks(world: World, *checks: str) -> None:
    """Both queues name these checks, whose controller handles them."""
    names = checks or CHECKS
    strategy = {"admissionChecks": [{"name": name} for name in names]}
    furnish(world, admissionChecksStrategy=strategy)
    world.change(
        kinds.CLUSTER_QUEUES, "plain", lambda q: q["spec"].update(admissionChecksStrategy=strategy)
    )
    for name in names:
        put_check(world, name)


def put_check(world: World, name: str, active: str = "True") -> None:
    world.put(
        kinds.ADMISSION_CHECKS,
        {
            "metadata": {"name": name},
            "spec": {"controllerName": "example.com/budget"},
            "status": {"conditions": [{"type": "Active", "status": active, "reason": "R"}]},
        },
    )


def states(world: World, job: str) -> dict[str, str]:
    """State by check."""
    found = world.workload(job).get("status", {}).get("admissionChecks", [])
    return {state["name"]: state["state"] for state in found}


def answer(world: World, job: str, state: str, *checks: str, **more: Any) -> None:
    """The controller of checks writes its answer into the Workload."""

    def edit(item: Object) -> None:
        for found in item["status"]["admissionChecks"]:
            if found["name"] in (checks or CHECKS):
                found.update(state=state, message="", lastTransitionTime=START, **more)

    world.change(kinds.WORKLOADS, world.workload(job)["metadata"]["name"], edit)


def reserved(world: World, job: str, *checks: str) -> Any:
    """A question: has the Job quota, and are its checks asked?"""
    wanted = dict.fromkeys(checks or CHECKS, "Pending")

    def holds() -> bool:
        return (
            world.condition(job, "QuotaReserved")[0] == "True"
            and world.condition(job, "Evicted")[0] != "True"
            and states(world, job) == wanted
        )

    return holds


QUEUES = pytest.mark.parametrize("queue", ["queue", "plain"], ids=["topology", "quota alone"])


@QUEUES
async def test_a_job_runs_after_all_checks_are_ready_and_not_before(queue: str) -> None:
    async with World() as world, assigner(world):
        furnish_checks(world)
        world.submit("train", queue=queue)
        await eventually(reserved(world, "train"))
        assert world.condition("train", "Admitted") == ("False", "UnsatisfiedAdmissionChecks")
        answer(world, "train", "Ready", "budget")
        # Another Job that is handled meanwhile shows that nothing happens to this one.
        world.submit("other", queue=queue)
        await eventually(reserved(world, "other"))
        assert not world.runs("train")
        assert world.condition("train", "Admitted") == ("False", "UnsatisfiedAdmissionChecks")
        update = {"name": "main", "labels": {"paid": "yes"}, "annotations": {"request": "1"}}
        answer(world, "train", "Ready", podSetUpdates=[update])
        await eventually(world.started("train"))
        assert world.condition("train", "Admitted") == ("True", "Admitted")
        (part,) = world.workload("train")["status"]["admission"]["podSetAssignments"]
        if queue == "queue":
            assert part["delayedTopologyRequest"] == "Ready"
            assert part["topologyAssignment"]
        else:
            assert "topologyAssignment" not in part
        meta = world.job("train")["spec"]["template"]["metadata"]
        assert meta["labels"]["paid"] == "yes"
        assert meta["annotations"]["request"] == "1"
        assert world.broken_rules == []
        await eventually(lambda: len(world.events("QuotaReserved")) == 2)
        await eventually(lambda: len(world.events("Admitted")) == 1)


@QUEUES
async def test_a_retry_queues_again_after_the_longest_delay_with_the_checks_from_the_start(
    queue: str,
) -> None:
    async with World() as world, assigner(world):
        furnish_checks(world)
        world.submit("train", queue=queue)
        await eventually(reserved(world, "train"))
        now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

        def edit(item: Object) -> None:
            first, second = item["status"]["admissionChecks"]
            late = {"state": "Retry", "requeueAfterSeconds": 2, "lastTransitionTime": now}
            first.update(late)
            second.update({**late, "requeueAfterSeconds": 1})

        world.change(kinds.WORKLOADS, world.workload("train")["metadata"]["name"], edit)
        await eventually(world.shows("train", "Evicted", "True", "AdmissionCheck"))
        await eventually(world.shows("train", "QuotaReserved", "False", "PendingEvaluation"))
        own = world.workload("train")["status"]
        until = parse_rfc3339(own["requeueState"]["requeueAt"])
        assert (until - parse_rfc3339(now)).total_seconds() == 2
        assert [state["retryCount"] for state in own["admissionChecks"]] == [1, 1]
        assert "admission" not in own
        await eventually(reserved(world, "train"))
        assert clock.now() >= until
        assert world.condition("train", "Requeued") == ("True", "BackoffFinished")
        answer(world, "train", "Ready")
        await eventually(world.started("train"))
        assert world.broken_rules == []


@QUEUES
async def test_a_retry_after_the_start_stops_the_job_and_restores_its_template(queue: str) -> None:
    async with World() as world, assigner(world):
        furnish_checks(world)
        before = world.submit("train", queue=queue)["spec"]["template"]
        await eventually(reserved(world, "train"))
        update = {"name": "main", "labels": {"paid": "yes"}, "nodeSelector": {"zone": "z"}}
        if queue == "queue":
            del update["nodeSelector"]
        answer(world, "train", "Ready", podSetUpdates=[update])
        await eventually(world.started("train"))
        answer(world, "train", "Retry", "budget")
        await eventually(reserved(world, "train"))
        assert not world.runs("train")
        assert world.job("train")["spec"]["template"] == before
        found = world.workload("train")["status"]["admissionChecks"]
        assert all("podSetUpdates" not in state for state in found)
        answer(world, "train", "Ready")
        await eventually(world.started("train"))
        assert world.broken_rules == []


@QUEUES
async def test_a_rejection_deactivates_and_a_user_may_activate_again(queue: str) -> None:
    async with World() as world, assigner(world):
        furnish_checks(world)
        world.submit("train", queue=queue)
        await eventually(reserved(world, "train"))
        answer(world, "train", "Rejected", "nodes")
        await eventually(world.shows("train", "Evicted", "True", "DeactivatedDueToAdmissionCheck"))
        await eventually(world.shows("train", "QuotaReserved", "False"))
        own = world.workload("train")
        assert own["spec"]["active"] is False
        assert world.condition("train", "DeactivationTarget") == ("", ""), "the eviction has it"
        counted = own["status"]["schedulingStats"]["evictions"]
        cause = {"reason": "Deactivated", "underlyingCause": "AdmissionCheck", "count": 1}
        assert counted == [cause]
        await eventually(lambda: len(world.events("AdmissionCheckRejected")) == 1)
        assert states(world, "train") == dict.fromkeys(CHECKS, "Pending")
        world.change(
            kinds.WORKLOADS, own["metadata"]["name"], lambda w: w["spec"].update(active=True)
        )
        await eventually(reserved(world, "train"))
        answer(world, "train", "Ready")
        await eventually(world.started("train"))
        assert world.broken_rules == []


async def test_an_answer_from_before_the_reservation_does_not_count() -> None:
    async with World() as world, assigner(world):
        furnish_checks(world, "budget")
        world.submit("train", queue="plain", count=17)
        await eventually(world.shows("train", "QuotaReserved", "False", "ExceedsMaxQuota"))
        name = world.workload("train")["metadata"]["name"]
        early = {"name": "budget", "state": "Ready", "message": "", "lastTransitionTime": START}
        world.change(kinds.WORKLOADS, name, lambda w: w["status"].update(admissionChecks=[early]))
        more = {"name": "cpu", "nominalQuota": "80"}
        world.change(
            kinds.CLUSTER_QUEUES,
            "plain",
            lambda q: q["spec"]["resourceGroups"][0]["flavors"][0].update(resources=[more]),
        )
        await eventually(reserved(world, "train", "budget"))
        assert not world.runs("train")


async def test_checks_that_a_queue_gains_or_loses_meanwhile() -> None:
    async with World() as world, assigner(world):
        furnish_checks(world, "budget")
        world.submit("train", queue="plain")
        world.submit("runs", queue="plain")
        await eventually(reserved(world, "train", "budget"))
        await eventually(reserved(world, "runs", "budget"))
        answer(world, "runs", "Ready")
        await eventually(world.started("runs"))

        def name_checks(*names: str) -> None:
            listed = [{"name": name} for name in names]
            strategy = {"admissionChecks": listed} if names else None
            world.change(
                kinds.CLUSTER_QUEUES,
                "plain",
                lambda q: q["spec"].update(admissionChecksStrategy=strategy),
            )

        put_check(world, "more")
        name_checks("budget", "more")
        await eventually(reserved(world, "train", "budget", "more"))
        await eventually(lambda: states(world, "runs") == {"budget": "Ready", "more": "Pending"})
        assert world.runs("runs")
        # Deleted and inactive checks stop the queue; what has quota keeps it, and waits.
        world.delete(kinds.ADMISSION_CHECKS, "more")
        world.submit("late", queue="plain")
        await eventually(world.shows("late", "QuotaReserved", "False", "Misconfigured"))
        answer(world, "train", "Ready", "budget")
        world.submit("later", queue="plain")
        await eventually(world.shows("later", "QuotaReserved", "False", "Misconfigured"))
        assert not world.runs("train")
        name_checks()
        await eventually(world.started("train"))
        await eventually(world.started("late"))
        assert world.runs("runs")
        assert world.broken_rules == []


async def test_a_workload_that_is_deleted_while_it_waits_leaves_nothing() -> None:
    async with World() as world, assigner(world) as replica:
        furnish_checks(world)
        world.submit("train")
        await eventually(reserved(world, "train"))
        world.delete(kinds.WORKLOADS, world.workload("train")["metadata"]["name"])
        await eventually(reserved(world, "train"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: not world.workloads())
        await eventually(lambda: not replica.cache.totals.cluster_queues)


async def test_without_a_domain_after_the_checks_another_job_comes_first() -> None:
    async with World() as world, assigner(world) as replica:
        furnish_checks(world, "budget")
        for name in ("first", "second"):
            world.submit(name, 16, cpu="2")
            await eventually(reserved(world, name, "budget"))
        for node in ("21-1", "21-2", "23-1", "23-2"):
            world.remove(kinds.NODES, f"pool-{node}")
        await eventually(lambda: len(replica.watches.nodes.store) == 4)
        answer(world, "first", "Ready", "budget")
        answer(world, "second", "Ready", "budget")
        await eventually(lambda: world.runs("first") or world.runs("second"))
        left = "second" if world.runs("first") else "first"
        await eventually(world.shows(left, "QuotaReserved", "False", "TopologyPlacementFailed"))
        assert not world.runs(left)
        assert world.broken_rules == []


class Answering(World):
    """A cluster whose check controller answers each Workload: Retry first, then Ready."""

    def __init__(self) -> None:
        super().__init__()
        self.retried: set[str] = set()

    def answer_all(self) -> None:
        """Answer what is asked now."""
        for own in self.workloads():
            status = own.get("status", {})
            conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
            asked = [s for s in status.get("admissionChecks", []) if s["state"] == "Pending"]
            if not asked or conditions.get("QuotaReserved") != "True":
                continue
            if conditions.get("Evicted") == "True":
                continue
            name = own["metadata"]["name"]
            state = "Ready" if name in self.retried else "Retry"
            self.retried.add(name)

            def edit(item: Object, state: str = state) -> None:
                for found in item["status"]["admissionChecks"]:
                    found.update(state=state, lastTransitionTime=START)

            self.change(kinds.WORKLOADS, name, edit)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "lost"])
async def test_the_assigner_may_die_at_any_write(applied: bool) -> None:
    async def life(number: int) -> None:
        async with Answering() as world:
            furnish_checks(world)
            killer = Killer(number, applied=applied)
            world.faults.append(killer.fault())

            async def story() -> None:
                world.submit("train")

                def runs() -> bool:
                    world.answer_all()
                    return world.runs("train")

                await eventually(runs)
                assert world.retried
                world.complete("train")
                await eventually(world.shows("train", "Finished", "True", "Succeeded"))

            await while_running(keep_running(world, killer.struck), story())
            assert world.broken_rules == []

    await at_each(DEATHS, life)


async def test_the_maximum_execution_time_follows_the_label_while_checks_are_awaited() -> None:
    label = {"kueue.x-k8s.io/max-exec-time-seconds": "90"}
    async with World() as world, assigner(world):
        furnish_checks(world)
        world.submit("train", queue="plain")
        await eventually(reserved(world, "train"))
        world.change(kinds.JOBS, "train", lambda job: job["metadata"]["labels"].update(label))

        def maximum() -> object:
            return world.workload("train")["spec"].get("maximumExecutionTimeSeconds")

        await eventually(lambda: maximum() == 90)
        assert world.condition("train", "Evicted") == ("", "")
        answer(world, "train", "Ready")
        await eventually(world.started("train"))
        assert maximum() == 90
