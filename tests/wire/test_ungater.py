"""The ungater against an API server that loses answers, refuses, throttles and cuts watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import PODS, WORKLOADS
from rackgate_ungater.state_machine.events import WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import decode_workload
from tests.support.apiserver import Fault
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.ungater_world import FOREIGN, R1, R2, STREAMS, Replica, World, sample

Start = Callable[..., Replica]


@pytest.mark.requirement("UNG-08", "TAS-27", "TAS-15")
@pytest.mark.field_note("U15")
async def test_one_patch_takes_off_our_gate_and_adds_the_selector(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    before = world.pod(0)
    start()
    await world.released(1)
    (patch,) = world.asked("PATCH")
    assert patch.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert json.loads(patch.body) == {
        "metadata": {
            "uid": before["metadata"]["uid"],
            "resourceVersion": before["metadata"]["resourceVersion"],
        },
        "spec": {
            "schedulingGates": [{"$patch": "delete", "name": names.TOPOLOGY_GATE}],
            "nodeSelector": {"block": "b1", "rack": "r1"},
        },
    }
    pod = world.server.get(PODS, "train-0", "team")
    assert pod is not None
    assert pod["spec"]["schedulingGates"] == [{"name": FOREIGN}]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "block": "b1", "rack": "r1"}


@pytest.mark.requirement("UNG-01", "UNG-19", "RNK-04", "RNK-07")
async def test_a_workload_is_released_by_rank_and_measured(world: World, start: Start) -> None:
    labels = {"name": names.TOPOLOGY_GATE, "cluster_queue": "cq"}
    waits = sample("pod_scheduling_gate_removal_seconds_count", **labels)
    batches = sample("ungate_batch_pods_count")
    world.workload({R2: 4, R1: 2})
    world.pods(5, 3)
    replica = start()
    await world.released(2)
    await replica.has_no_open_requests()
    world.pods(1, 0, 2, 4)
    await world.released(6)
    await replica.has_no_open_requests()
    await replica.idle()
    assert world.domains() == {
        **{f"train-{rank}": R2 for rank in range(4)},
        **{f"train-{rank}": R1 for rank in (4, 5)},
    }
    assert sample("pod_scheduling_gate_removal_seconds_count", **labels) == waits + 6
    # Two, or more where the pods are seen one after another.
    assert 2 <= sample("ungate_batch_pods_count") - batches <= 6
    assert sample("open_expectations") == 0


@pytest.mark.requirement("UNG-19")
async def test_what_is_under_way_and_what_became_of_it_is_measured(
    world: World, start: Start
) -> None:
    def counted(result: str) -> float:
        return sample("ungated_pods_total", result=result)

    world.workload({R1: 3})
    world.pods(0, 1, 2)
    before = {result: counted(result) for result in ("ungated", "refused", "gone")}
    under_way: list[float] = []

    async def answer(_: web.Request, handle: Handler) -> web.StreamResponse:
        under_way.append(sample("open_expectations"))
        return await handle()

    world.server.faults += [
        Fault(answer, method="PATCH", path="/pods/train-0"),
        Fault.status(422, "Invalid", method="PATCH", path="/pods/train-1"),
        Fault.status(404, "NotFound", method="PATCH", path="/pods/train-2"),
    ]
    replica = start(lead=False)
    await replica.knows(3)
    replica.lead()
    await until(lambda: counted("ungated") == before["ungated"] + 1)
    assert under_way == [3]
    assert counted("refused") == before["refused"] + 1
    assert counted("gone") == before["gone"] + 1


@pytest.mark.requirement("UNG-03")
async def test_pods_of_jobs_without_topology_never_reach_the_service(
    world: World, start: Start
) -> None:
    """They have neither label."""
    world.workload({R1: 1})
    pod = world.pod(0)
    del pod["metadata"]["labels"][names.TAS_LABEL]
    del pod["metadata"]["labels"][names.PODSET_LABEL]
    world.server.put(PODS, pod)
    replica = start()
    await replica.synced()
    assert dict(replica.ungater.pods.store) == {}


@pytest.mark.requirement("OPS-14")
async def test_pods_of_a_job_that_kueue_started_are_released(world: World, start: Start) -> None:
    """Kueue writes no label `tas` since 0.14."""
    world.workload({R1: 1})
    pod = world.pod(0)
    del pod["metadata"]["labels"][names.TAS_LABEL]
    world.server.put(PODS, pod)
    start()
    await world.released(1)
    assert world.counts() == {R1: 1}


@pytest.mark.requirement("OPS-14")
async def test_a_gated_pod_of_a_podset_that_is_admitted_without_topology_is_released(
    world: World, start: Start
) -> None:
    """The webhook gates a pod whose template names a Workload, as those of Kueue all do."""
    found = world.workload({R1: 1})
    (assignment,) = found["status"]["admission"]["podSetAssignments"]
    del assignment["topologyAssignment"]
    assignment["count"] = 1
    world.server.put(WORKLOADS, found)
    world.pods(0, 1)
    start()
    await world.released(1)


@pytest.mark.requirement("UNG-14", "UNG-10")
@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_never_leads_to_one_more_release(
    world: World, start: Start, applied: bool
) -> None:
    world.workload({R1: 2})
    world.server.faults.append(Fault.cut(applied=applied, method="PATCH", times=2))
    world.pods(0, 1, 2)
    replica = start()
    await world.released(2)
    await replica.has_no_open_requests()
    assert world.counts() == {R1: 2}
    if not applied:  # else the watch may settle the doubt first
        assert world.asked("GET", "/pods/train-"), "the pod in doubt is read live"


@pytest.mark.requirement("UNG-10", "UNG-17")
async def test_conflicts_are_read_again_and_all_places_are_filled(
    world: World, start: Start
) -> None:
    world.server.faults.append(Fault.status(409, "Conflict", method="PATCH", times=15))
    world.workload({R1: 5, R2: 5})
    replica = start(batch_window=0)
    await replica.synced()
    for number in range(12):
        world.pod(number)
        await asyncio.sleep(0)
    await world.released(10)
    await replica.has_no_open_requests()
    assert world.counts() == {R1: 5, R2: 5}


@pytest.mark.requirement("UNG-17")
async def test_one_failing_pod_does_not_stop_the_rest(world: World, start: Start) -> None:
    refusal = Fault.status(422, "Invalid", method="PATCH", path="/train-1", times=3)
    world.server.faults.append(refusal)
    world.workload({R1: 4})
    world.pods(0, 1, 2, 3)
    start()
    await until(lambda: len(world.domains()) == 3)
    assert "train-1" not in world.domains()
    assert refusal.times > 0, "the others did not wait for its retries"
    refusal.times = 0
    await world.released(4)


@pytest.mark.requirement("UNG-17")
async def test_throttling_is_waited_for(world: World, start: Start) -> None:
    headers = {"Retry-After": "0"}
    fault = Fault.status(429, "TooManyRequests", headers=headers, method="PATCH", times=7)
    world.server.faults.append(fault)
    world.workload({R1: 2})
    world.pods(0, 1)
    start()
    await world.released(2)
    assert world.counts() == {R1: 2}


@pytest.mark.requirement("UNG-17")
async def test_no_more_requests_are_under_way_than_allowed(world: World, start: Start) -> None:
    under_way, most = 0, 0

    async def slow(_: Any, handle: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return await handle()

    world.server.faults.append(Fault(slow, method="PATCH", times=1000))
    for name in ("one", "two", "three"):
        world.workload({R1: 10}, name=name)
        world.pods(*range(10), workload=name)
    start(concurrency=4)
    await world.released(30)
    assert most == 4


@pytest.mark.steady_clock
@pytest.mark.requirement("UNG-17")
async def test_pods_are_released_no_faster_than_the_rate_allows(world: World, start: Start) -> None:
    world.workload({R1: 11})
    world.pods(*range(11))
    replica = start(lead=False, qps=20)
    await replica.knows(11)
    time = asyncio.get_running_loop().time
    began = time()
    replica.lead()
    await world.released(11)
    assert time() - began >= 10 / 20


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("gone", [False, True])
async def test_after_a_watch_break_missed_pods_are_released(
    world: World, start: Start, gone: bool
) -> None:
    world.workload({R1: 4})
    replica = start(expectation_timeout=60)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    world.pods(0, 1)
    for stream in tuple(world.server.streams):
        stream.cut()
    if gone:
        world.server.compact()
    world.pods(2, 3)
    await world.released(4)
    await replica.has_no_open_requests()
    assert world.counts() == {R1: 4}


@pytest.mark.requirement("UNG-05")
async def test_a_release_is_expected_before_its_request_is_sent(world: World, start: Start) -> None:
    world.workload({R1: 2})
    uids = {world.pod(number)["metadata"]["uid"] for number in (0, 1)}
    expected: list[set[str]] = []

    async def answer(_: web.Request, handle: Handler) -> web.StreamResponse:
        expected.append({str(uid) for uid in replica.ungater.machine.expectations})
        return await handle()

    world.server.faults.append(Fault(answer, method="PATCH", path="/pods/", times=2))
    replica = start()
    await world.released(2)
    assert expected[0] == uids, "those of a batch are recorded together"


@pytest.mark.requirement("UNG-06")
async def test_the_expectation_of_a_pod_that_is_not_found_ends(world: World, start: Start) -> None:
    world.workload({R1: 1})
    world.pods(0, 1)
    missing = Fault.status(404, "NotFound", method="PATCH", path="/pods/train-0", times=9)
    world.server.faults.append(missing)
    start(expectation_timeout=600)
    await world.released(1)
    assert world.domains() == {"train-1": R1}
    assert missing.times == 8


@pytest.mark.requirement("UNG-06", "UNG-07", "UNG-18")
async def test_a_release_that_no_event_confirms_is_looked_up(world: World, start: Start) -> None:
    world.workload({R1: 1})
    world.pods(0, 1)
    overdue = sample("overdue_expectations_total")
    replica = start(lead=False, expectation_timeout=0.2)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    world.server.faults.append(Fault.slow(30, watch=True, path="/pods", times=100))
    for stream in tuple(world.server.streams):
        stream.cut()
    replica.lead()
    await world.released(1)
    await replica.has_no_open_requests()
    assert sample("overdue_expectations_total") == overdue + 1
    assert world.counts() == {R1: 1}


@pytest.mark.requirement("UNG-11")
async def test_the_workload_is_read_right_before_acting(world: World, start: Start) -> None:
    admitted = world.workload({R1: 2})
    world.pods(0, 1)
    replica = start(lead=False)
    await replica.synced()
    replica_view = decode_workload(json.dumps(admitted).encode())
    world.server.faults.append(Fault.slow(30, watch=True, path="/workloads", times=100))
    for stream in tuple(world.server.streams):
        stream.cut()
    world.workload({R1: 2}, conditions=("Evicted",))
    assert replica.ungater.machine.workload_states[replica_view.key].workload == replica_view, (
        "a stale cache"
    )
    replica.lead()
    await until(lambda: world.asked("GET", "/workloads/train"))
    await replica.idle()
    assert world.asked("PATCH") == []
    assert replica.ungater.machine.handle(WorkloadSeen(replica_view)) is None


@pytest.mark.requirement("UNG-11")
async def test_a_deleted_workload_releases_nothing(world: World, start: Start) -> None:
    world.workload({R1: 1})
    replica = start()
    await replica.synced()
    world.server.remove(WORKLOADS, "train", "team")
    world.pods(0)
    await until(replica.ungater.machine.orphans)
    assert world.asked("PATCH") == []


@pytest.mark.requirement("UNG-12")
async def test_surplus_pods_are_reported_once(world: World, start: Start) -> None:
    world.workload({R1: 1})
    replica = start()
    for number in range(4):
        world.pod(number)
        await replica.knows(number + 1)
    await world.released(1)

    def surplus() -> list[dict[str, Any]]:
        return [event for event in world.events() if event["reason"] == "SurplusPods"]

    await until(surplus)
    world.pod(9)
    await replica.knows(5)
    await replica.idle()
    (event,) = surplus()
    assert event["regarding"]["kind"] == "Workload"
    assert len(world.asked("PATCH")) == 1


@pytest.mark.requirement("UNG-08")
async def test_a_conflicting_selector_is_reported_on_its_pod(world: World, start: Start) -> None:
    world.workload({R1: 2})
    world.pod(0, nodeSelector={"rack": "r7"})
    world.pod(1)
    start()
    await world.released(1)
    await until(lambda: len(world.events()) == 2)
    assert {event["regarding"]["kind"] for event in world.events()} == {"Pod", "Workload"}
    assert {event["reason"] for event in world.events()} == {"NodeSelectorConflict"}


@pytest.mark.field_note("U14")
async def test_gated_pods_without_workload_are_found_and_reported(
    world: World, start: Start
) -> None:
    world.pods(0, 1)
    start(resync_period=1)
    await until(lambda: sample("gated_pods_without_workload") == 2)
    await until(world.events)
    (event,) = world.events()
    assert event["reason"] == "WorkloadMissing"
    world.workload({R1: 2})
    await world.released(2)
    await until(lambda: sample("gated_pods_without_workload") == 0)


@pytest.mark.requirement("UNG-13")
@pytest.mark.field_note("U1")
async def test_killed_at_any_write_the_next_one_counts_again(world: World, start: Start) -> None:
    world.workload({R1: 6, R2: 6})
    world.pods(*range(14))
    for kills in range(1, 7):
        replica = start(concurrency=2)
        await world.released(min(12, kills * 2))
        await replica.kill()
    replica = start()
    await world.released(12)
    await replica.has_no_open_requests()
    assert world.counts() == {R1: 6, R2: 6}


@pytest.mark.requirement("UNG-13", "UNG-15")
async def test_a_new_leader_with_a_stale_watch_lists_before_its_first_act(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    standby = start(lead=False)
    await standby.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    world.pods(0, 1)
    await standby.knows(2)
    world.server.faults.append(Fault.slow(30, watch=True, path="/pods", times=100))
    for stream in tuple(world.server.streams):
        stream.cut()
    world.change(1, spec={"schedulingGates": [], "nodeSelector": {"block": "b1", "rack": "r1"}})
    standby.lead()
    await until(lambda: standby.leads)
    await standby.idle()
    assert world.domains() == {"train-1": R1}


@pytest.mark.requirement("UNG-15")
@pytest.mark.field_note("U11")
async def test_a_new_leader_acts_without_any_new_event(world: World, start: Start) -> None:
    # The third pod never comes, so that the batch of the first leader waits for its window.
    world.workload({R1: 3})
    idle = start(batch_window=60)
    standby = start(lead=False)
    await idle.synced()
    await until(lambda: idle.leads)
    world.pods(0, 1)
    await standby.knows(2)
    idle.stop.set()
    assert idle.leading is not None
    await idle.leading
    assert world.domains() == {}
    standby.lead()
    await world.released(2)


@pytest.mark.requirement("OPS-08")
async def test_asked_to_stop_it_ends_what_is_under_way_and_begins_nothing(
    world: World, start: Start
) -> None:
    world.server.faults.append(Fault.slow(0.2, method="PATCH", times=100))
    world.workload({R1: 20})
    world.pods(*range(20))
    replica = start(concurrency=4)
    await until(lambda: len(world.asked("PATCH")) == 4)
    replica.stop.set()
    assert replica.leading is not None
    await replica.leading
    assert len(world.asked("PATCH")) == 4
    assert len(world.domains()) == 4
