"""The controller of usage histories: what it observes, settles, releases and takes over."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rackgate.api.timestamps import rfc3339
from rackgate.features import Features
from rackgate.runtime import clock
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.queues.usage_controller import UsageController
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing, UsageHistory
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    cluster_queue,
    flavor,
    local_queue,
    namespace,
    podset,
    workload,
)

USAGE_BASED = {"admissionMode": "UsageBasedAdmissionFairSharing"}
# Nothing decays in a test; an admission counts as half of what the Workload requests.
RULES = AdmissionFairSharing(half_life_s=1e9, sampling_interval_s=1e9)
ASSIGNMENT = Assignment("cq", (PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 8000}, 8),))


class Fixture:
    """A ClusterQueue with LocalQueue `lq`; `changed` collects what the controller reports."""

    def __init__(self) -> None:
        self.cache = Cache(Features(), admission_fair_sharing=RULES)
        self.cache.set_namespace(namespace())
        self.cache.set_flavor(flavor("plain", None, {}))
        quota = {"plain": {"cpu": "64"}}
        self.cache.set_cluster_queue(cluster_queue("cq", quota, admissionScope=USAGE_BASED))
        assert self.cache.usage_history is not None
        self.history: UsageHistory = self.cache.usage_history
        self.changed: list[str] = []
        self.cycles = 0
        self.controller = UsageController(
            self.cache, self.history, on_change=self.changed.append, request_cycle=self._cycle
        )
        self.put_queue()

    def _cycle(self) -> None:
        self.cycles += 1

    def put_queue(self) -> None:
        queue = local_queue("lq")
        self.cache.set_local_queue(queue)
        self.controller.on_local_queue_upsert(None, queue)

    def put(self, **more: Any) -> None:
        self.cache.set_workload(workload("w", [podset(count=8)], **more))
        item = msgspec.convert(
            {"metadata": {"name": "w", "namespace": "team"}, "spec": {"queueName": "lq"}},
            kueue.Workload,
        )
        self.controller.on_workload_upsert(None, item)

    def charged(self) -> float:
        return round(self.history.charged("team/lq").get("cpu", 0.0), 3)

    def consumed(self) -> float:
        return round(self.history.consumed("team/lq")[0].get("cpu", 0.0), 3)


def test_a_standby_observes_nothing() -> None:
    found = Fixture()
    found.put(assignment=ASSIGNMENT, version="2")
    found.controller.update()
    assert "team/lq" not in found.history
    assert found.changed == []


def test_the_penalty_is_pending_until_the_admission_is_seen() -> None:
    found = Fixture()
    found.controller.take_over()
    found.put()
    found.cache.assume("team/w", ASSIGNMENT)
    found.controller.update()
    assert (found.charged(), found.consumed()) == (4.0, 0.0)
    found.put(assignment=ASSIGNMENT, version="2")
    found.controller.update()
    assert (found.charged(), found.consumed()) == (4.0, 4.0)
    assert "team/lq" in found.changed


def test_a_rejected_admission_costs_nothing() -> None:
    found = Fixture()
    found.controller.take_over()
    found.put()
    found.cache.assume("team/w", ASSIGNMENT)
    found.cache.forget("team/w")
    found.controller.update()
    assert found.charged() == 0.0


def test_a_workload_that_is_deleted_before_it_is_admitted_costs_nothing() -> None:
    found = Fixture()
    found.controller.take_over()
    found.put()
    found.cache.assume("team/w", ASSIGNMENT)
    found.cache.drop_workload("team/w")
    found.controller.update()
    assert found.charged() == 0.0


def test_a_workload_that_waits_for_its_checks_keeps_its_penalty_over_a_takeover() -> None:
    reserved = {"QuotaReserved": ("True", "QuotaReserved", ""), "Admitted": ("False", "", "")}
    found = Fixture()
    found.put(assignment=ASSIGNMENT, version="2", conditions=reserved)
    found.controller.take_over()
    found.controller.update()
    assert (found.charged(), found.consumed()) == (4.0, 0.0)
    found.put(assignment=ASSIGNMENT, version="3")
    found.controller.update()
    assert found.consumed() == 4.0


def test_a_workload_that_loses_its_reservation_has_no_penalty() -> None:
    reserved = {"QuotaReserved": ("True", "QuotaReserved", ""), "Admitted": ("False", "", "")}
    found = Fixture()
    found.put(assignment=ASSIGNMENT, version="2", conditions=reserved)
    found.controller.take_over()
    found.put(version="3")
    found.controller.update()
    assert found.charged() == 0.0


def test_a_new_local_queue_starts_empty_also_under_the_name_of_a_deleted_one() -> None:
    found = Fixture()
    found.controller.take_over()
    found.put()
    found.cache.assume("team/w", ASSIGNMENT)
    found.put(assignment=ASSIGNMENT, version="2")
    found.controller.update()
    found.cache.drop_workload("team/w")
    found.cache.drop_local_queue("team/lq")
    found.put_queue()
    found.controller.update()
    assert (found.charged(), found.consumed()) == (0.0, 0.0)


def test_an_event_that_changes_no_usage_is_not_reported() -> None:
    found = Fixture()
    found.controller.take_over()
    found.changed.clear()
    found.put()
    found.controller.update()
    assert found.changed == []


async def test_every_interval_all_local_queues_are_sampled_and_a_cycle_is_requested() -> None:
    found = Fixture()
    rules = AdmissionFairSharing(half_life_s=0.01, sampling_interval_s=0.01)
    found.history.rules = rules
    found.put(assignment=ASSIGNMENT, version="2")
    found.history.restore("team/lq", {"cpu": 100.0}, 0)
    found.controller.take_over()
    running = asyncio.create_task(found.controller.run())
    try:
        async with asyncio.timeout(30):
            while found.cycles < 3 or found.consumed() != 8.0:
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
    assert found.changed.count("team/lq") >= 3


def test_a_local_queue_that_is_created_with_a_status_continues_its_history() -> None:
    found = Fixture()
    found.controller.take_over()
    found.cache.drop_local_queue("team/lq")
    stored: dict[str, Any] = {"lastUpdate": rfc3339(clock.now())}
    for amount in ("3", "5"):
        # The second one is a status that somebody edits: this replica has observed it by now.
        stored["consumedResources"] = {"cpu": amount}
        shown = {"fairSharing": {"admissionFairSharingStatus": stored}}
        status = msgspec.convert(shown, kueue.QueueStatus)
        queue = msgspec.structs.replace(local_queue("lq"), status=status)
        found.cache.set_local_queue(queue)
        found.controller.on_local_queue_upsert(None, queue)
        found.controller.update()
        assert found.consumed() == 3.0
