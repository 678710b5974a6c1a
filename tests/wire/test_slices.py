"""Running RayClusters grow and shrink, over HTTP: docs/design/races/slices.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import WORKLOADS
from tests.support import composite_jobs as composite
from tests.support.apiserver import Fault
from tests.support.objects import RACK
from tests.wire.assigner_world import assigner, eventually
from tests.wire.elastic_world import ElasticWorld, furnish, replica


def rises(samples: list[int]) -> bool:
    return samples == sorted(samples)


async def running(world: ElasticWorld, name: str = "ray", **workers: int) -> None:
    """Wait until a cluster runs at this size, and start to count."""
    await eventually(
        lambda: world.is_running(kinds.RAY_CLUSTERS, name) and world.is_at(name, **workers)
    )
    world.held.clear()


@pytest.mark.requirement(
    "SLC-02", "SLC-06", "SLC-10", "SLC-18", "SLC-20", "SLC-21", "SLC-30", "SLC-33"
)
@pytest.mark.requirement("USR-09")
@pytest.mark.field_note("E18")
async def test_a_cluster_grows_slice_by_slice_and_is_never_suspended() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 2})
        await running(world, small=2)
        writes = len(world.writes())
        world.scale("ray", 5)
        await eventually(lambda: world.is_at("ray", small=5))
        assert rises(world.held)
        assert world.held[-1] == 5
        assert world.told == ["True", "False"]
        assert world.suspensions() == 0
        assert not [r for r in world.writes()[writes:] if "/rayclusters" in r.path]
        made = [r for r in world.accepted() if r.method == "POST" and "/workloads" in r.path]
        assert len(made) == 1 + 3, "its own and a slice for each worker"
        # A slice is gone in a moment: its parent's Events tell.
        told = {event["regarding"]["name"] for event in world.events("QuotaReserved")}
        assert not [name for name in told if "-small-" in name]
        assert world.broken_rules == []


@pytest.mark.requirement("SLC-21")
async def test_usage_in_the_cache_only_rises_while_a_cluster_grows() -> None:
    """Sampled with every event, also between a fold and the end of its slices."""
    async with ElasticWorld() as world, replica(world) as running_replica:
        furnish(world)
        world.elastic("ray", {"small": 1})
        await running(world, small=1)
        cache, samples = running_replica.cache, list[int]()

        def sample(*_: object) -> None:
            samples.append(cache.totals.used()["plain"]["plain", "cpu"])

        running_replica.watches.workloads.add_listener(sample, sample)
        world.scale("ray", 6)
        await eventually(lambda: world.is_at("ray", small=6))
        await eventually(lambda: not running_replica.slices.queue)
        assert rises(samples)
        assert samples[-1] - samples[0] <= 5_000
        assert samples[-1] == 8_000  # six workers, the head and what is beside it


@pytest.mark.requirement("SLC-05", "SLC-07", "SLC-08")
@pytest.mark.parametrize("hosts", [1, 2])
async def test_slices_are_owned_by_the_parent_and_wait_in_its_queue(hosts: int) -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1}, cpu=str(40 // hosts), hosts=hosts)
        await running(world, small=hosts)
        world.scale("ray", 2)
        await eventually(world.slices)
        (piece,), parent = world.slices(), world.parent("ray")
        owner = piece["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"]) == ("Workload", parent["metadata"]["uid"])
        assert piece["metadata"]["name"] == f"{parent['metadata']['name']}-small-0"
        label = names.JOB_UID_LABEL
        assert piece["metadata"]["labels"][label] == parent["metadata"]["labels"][label]
        assert piece["spec"]["queueName"] == parent["spec"]["queueName"]
        workers = parent["spec"]["podSets"][1]
        assert piece["spec"]["podSets"] == [{**workers, "count": hosts}]


@pytest.mark.requirement("SLC-10", "SLC-30")
@pytest.mark.field_note("E19")
async def test_the_user_is_reported_what_was_asked_admitted_and_why_the_rest_waits() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 2}, cpu="10")
        await running(world, small=2)
        world.scale("ray", 8)
        told = "6 admitted, 2 pending in 2 slices because WaitingForQuota: "
        await eventually(lambda: told in world.resize("ray")[2])
        status, reason, message = world.resize("ray")
        assert (status, reason) == ("True", "WaitingForSlices")
        assert message.startswith('podset "small" from ')
        assert f" to 8 pods: 8 requested, {told}" in message
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 2)
        because = "2 pending in 2 slices because WaitingForQuota"

        def heard() -> set[str]:
            events = world.events("ResizeRequested")
            return {event["regarding"]["kind"] for event in events if because in event["note"]}

        await eventually(lambda: heard() == {"Workload", "RayCluster"})
        assert world.is_running(kinds.RAY_CLUSTERS, "ray")


@pytest.mark.requirement("SLC-12", "SLC-24", "SLC-25", "SLC-26")
async def test_a_cluster_shrinks_in_place_at_once_and_what_it_gave_is_used() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 6}, cpu="10")
        await running(world, small=6)
        world.submit("other", 4, cpu="10", queue="plain")
        await eventually(world.shows("other", "QuotaReserved", "False"))
        world.scale("ray", 1)
        await eventually(lambda: world.is_at("ray", small=1))
        await eventually(world.started("other"))
        assert world.told == ["True", "False"]
        assert world.suspensions() == 0
        world.scale("ray", 6)  # what was given up must be won again
        await eventually(lambda: world.resize("ray")[1] == "WaitingForSlices")
        await eventually(lambda: world.granted("ray")["small"] == 2)
        world.complete("other")
        await eventually(lambda: world.is_at("ray", small=6))


@pytest.mark.requirement("SLC-27", "SLC-35")
async def test_what_waits_goes_first_when_less_is_asked_for() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 2}, cpu="10")
        await running(world, small=2)
        world.scale("ray", 9)
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 3)
        ordinals = {piece["metadata"]["name"][-1] for piece in world.slices()}
        world.scale("ray", 7)
        await eventually(lambda: len(world.slices()) == 1)
        assert world.slices()[0]["metadata"]["name"][-1] == min(ordinals)
        world.scale("ray", 3)
        await eventually(lambda: world.is_at("ray", small=3))


@pytest.mark.requirement("SLC-34")
async def test_worker_groups_grow_and_shrink_each_by_itself() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"Small": 2, "big": 2}, hosts=2)
        await running(world, small=4, big=4)
        world.scale("ray", 4)
        world.scale("ray", 1, group=1)
        await eventually(lambda: world.is_at("ray", small=8, big=2))
        assert world.suspensions() == 0


@pytest.mark.requirement("SLC-36", "SLC-09")
async def test_grown_pods_stay_in_the_rack_that_is_required() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        rack = composite.marks(required=RACK)
        world.elastic("ray", {"small": 2}, queue="queue", cpu="4", annotations=rack)
        await running(world, small=2)
        world.scale("ray", 3)
        await eventually(lambda: world.is_at("ray", small=3))
        admission = world.parent("ray")["status"]["admission"]
        places = admission["podSetAssignments"][1]["topologyAssignment"]
        assert sum(counts_of(places)) == 3
        world.scale("ray", 5)  # a rack has two nodes of 8 cpu, wherever the head is
        await eventually(lambda: "TopologyPlacementFailed" in world.resize("ray")[2])
        assert world.resize("ray")[1] == "WaitingForSlices"


def counts_of(places: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for part in places["slices"]:
        counts = part["podCounts"]
        found += counts.get("individual") or [counts["universal"]] * part["domainCount"]
    return found


@pytest.mark.requirement("SLC-31")
@pytest.mark.field_note("E2", "E15")
async def test_an_evicted_cluster_loses_all_of_it_and_comes_back_at_its_size() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 2}, cpu="10")
        await running(world, small=2)
        world.scale("ray", 8)
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 2)
        hold = {"stopPolicy": "HoldAndDrain"}
        world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(hold))
        await eventually(lambda: not world.slices() and not world.granted("ray"))
        assert not world.is_running(kinds.RAY_CLUSTERS, "ray")
        assert world.held[-1] == 0
        world.scale("ray", 3)
        world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy="None"))
        await running(world, small=3)
        assert world.broken_rules == []


@pytest.mark.requirement("SLC-32")
async def test_a_cluster_deleted_while_it_grows_leaves_nothing_behind() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 2}, cpu="10")
        await running(world, small=2)
        world.scale("ray", 8)
        await eventually(lambda: world.resize("ray")[1] == "WaitingForSlices")
        world.delete(kinds.RAY_CLUSTERS, "ray")
        await eventually(lambda: not world.workloads())
        assert world.held[-1] == 0


@pytest.mark.requirement("SLC-05")
async def test_a_slice_that_its_user_deletes_is_taken_in_or_made_again() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1}, cpu="40")
        await running(world, small=1)
        world.scale("ray", 2)
        await eventually(world.slices)
        before = world.slices()[0]["metadata"]["uid"]
        world.delete(WORKLOADS, world.slices()[0]["metadata"]["name"])

        def replaced() -> bool:
            uids = [piece["metadata"]["uid"] for piece in world.slices()]
            return len(uids) == 1 and uids != [before]

        await eventually(replaced)
        assert world.is_running(kinds.RAY_CLUSTERS, "ray")


@pytest.mark.requirement("SLC-06", "SLC-19")
async def test_a_slice_made_twice_is_made_once() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1})
        await running(world, small=1)
        cut = Fault.cut(applied=True, method="POST", path="/workloads")
        world.faults.append(cut)
        world.scale("ray", 3)
        await eventually(lambda: world.is_at("ray", small=3))
        assert rises(world.held)


@pytest.mark.requirement("SLC-19", "SLC-21")
async def test_a_fold_that_is_rejected_or_lost_counts_nothing_twice() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1})
        await running(world, small=1)
        name = world.parent("ray")["metadata"]["name"]
        status = f"/workloads/{name}/status"
        world.faults.append(Fault.status(409, "Conflict", method="PATCH", path=status))
        world.faults.append(Fault.cut(applied=True, method="PATCH", path=status, times=2))
        world.scale("ray", 4)
        await eventually(lambda: world.is_at("ray", small=4))
        assert rises(world.held)


@pytest.mark.requirement("SLC-11", "SLC-01", "SLC-02")
@pytest.mark.field_note("E16")
@pytest.mark.parametrize("gate", [True, False])
async def test_nothing_is_done_to_a_workload_without_the_annotation(gate: bool) -> None:
    """Without autoscaling, or without the gate, another size is queued as a whole."""
    async with ElasticWorld() as world, replica(world) if gate else assigner(world):
        furnish(world)
        world.elastic("ray", {"small": 1}, autoscaling=not gate)
        await running(world, small=1)
        assert names.ELASTIC_ANNOTATION not in world.parent("ray")["metadata"].get(
            "annotations", {}
        )
        world.scale("ray", 2)
        await running(world, small=2)
        assert world.suspensions() >= 1  # refused ones are repeated
        assert not [r for r in world.writes() if "-small-" in r.path]


@pytest.mark.requirement("SLC-01")
async def test_slices_are_cleared_away_when_the_gate_is_switched_off() -> None:
    async with ElasticWorld() as world:
        furnish(world)
        async with replica(world):
            world.elastic("ray", {"small": 1}, cpu="40")
            await running(world, small=1)
            world.scale("ray", 2)
            await eventually(world.slices)
        async with assigner(world):
            await eventually(lambda: not world.slices())
            assert world.broken_rules == []


@pytest.mark.requirement("SLC-35")
async def test_a_flapping_size_ends_where_it_ends() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1})
        await running(world, small=1)
        for size in (5, 2, 7, 0, 3, 9, 1, 4):
            world.scale("ray", size)
            before = len(world.held)
            if size % 2:
                await eventually(lambda before=before: len(world.held) > before)  # type: ignore[misc]  # bound at once
        await eventually(lambda: world.is_at("ray", small=4))
        assert max(world.held) <= 9
        assert world.suspensions() == 0


async def test_no_write_ever_goes_to_the_replicas_of_a_job() -> None:
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1})
        await running(world, small=1)
        world.scale("ray", 3)
        await eventually(lambda: world.is_at("ray", small=3))
        bodies = [json.loads(r.body) for r in world.writes() if "/rayclusters" in r.path]
        assert not [op for body in bodies for op in body if op["path"].endswith("/replicas")]
