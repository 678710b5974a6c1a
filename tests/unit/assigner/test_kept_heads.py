"""Heads that stay from plan to plan, and what becomes of those that wait for the same room."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.planner import Planner
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
    Requeue,
)
from tests.unit.assigner.builders import (
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespace,
    podset,
    workload,
)

STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


class Kept:
    """A cache, and plans with kept queues; fair sharing if there are strategies."""

    def __init__(self, total: str, fair: tuple[str, ...] | None = None) -> None:
        self.cache, self.fair, self.version = Cache(), fair, 0
        self.planner = Planner(self.cache)
        self.cache.set_namespace(namespace())
        self.cache.set_flavor(flavor("f", None, {}))
        self.cache.set_cohort(cohort("x", None, {"f": {"cpu": total}}))

    def queue(self, name: str, nominal: str = "0", **spec: Any) -> None:
        quotas = {"f": {"cpu": nominal}}
        self.cache.set_cluster_queue(cluster_queue(name, quotas, cohortName="x", **spec))
        self.cache.set_local_queue(local_queue(name, name))

    def show(self, name: str, queue: str, cpu: int, *, at: int = 0, runs: bool = False) -> None:
        self.version += 1
        part = PodSetAssignment("main", {"cpu": "f"}, {"cpu": 1000 * cpu}, 1)
        time = f"2026-08-01T12:00:{at:02}Z"
        shown = workload(
            name,
            [podset(requests={"cpu": str(cpu)})],
            queue=queue,
            created=time,
            reserved_at=time,
            version=str(self.version),
            assignment=Assignment(queue, (part,)) if runs else None,
        )
        self.cache.set_workload(shown)

    def plan(self) -> list[Decision]:
        """Plans until nothing is due; what is admitted runs."""
        found: list[Decision] = []
        while True:
            snapshot, queues = self.planner.prepare(lambda _key: False)
            decided = plan(snapshot, self.cache.features, fair_sharing=self.fair, queues=queues)
            for one in decided:
                if isinstance(one, Admit):
                    self.cache.assume(one.workload, one.assignment)
            found += decided
            if not self.planner.is_due:
                return found


def admitted(decisions: list[Decision]) -> list[str]:
    return [one.workload for one in decisions if isinstance(one, Admit)]


@pytest.mark.requirement("STR-07")
def test_who_no_longer_fits_after_a_head_that_stays_is_tried_again_when_it_goes() -> None:
    """The head of a StrictFIFO queue keeps room in each cycle although it cannot use it yet."""
    kept = Kept("0")
    kept.queue("strict", "3", queueingStrategy="StrictFIFO")
    kept.queue("other")
    kept.show("runs", "strict", 1, runs=True)
    kept.show("stays", "strict", 3, at=1)
    kept.show("waits", "other", 1, at=2)
    messages = {one.workload: one.message for one in kept.plan() if isinstance(one, Requeue)}
    assert messages["team/waits"] == "Workload no longer fits after processing another workload"
    assert kept.plan() == []
    kept.cache.drop_workload("team/stays")
    assert admitted(kept.plan()) == ["team/waits"]


@pytest.mark.requirement("STR-07")
def test_a_preemptor_takes_the_room_made_for_it_before_its_condition_shows_what_it_waits_for() -> (
    None
):
    """With fair sharing, the queue of the victims has the smaller share now."""
    kept = Kept("6", STRATEGIES)
    kept.queue("a", preemption={"reclaimWithinCohort": "Any"})
    kept.queue("b")
    kept.show("u", "b", 2, at=1, runs=True)
    kept.show("v2", "b", 3, at=2, runs=True)
    kept.show("v1", "b", 1, at=3, runs=True)
    kept.show("w", "a", 4, at=9)
    victims = {one.workload for one in kept.plan() if isinstance(one, Preempt)}
    assert victims == {"team/v1", "team/v2"}
    kept.show("v1", "b", 1, at=3)
    kept.show("v2", "b", 3, at=4)
    assert admitted(kept.plan()) == ["team/w"]
