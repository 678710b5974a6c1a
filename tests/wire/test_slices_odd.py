"""Slices that were not made as they should be, or outlive what they belong to."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import RAY_CLUSTERS, WORKLOADS
from rackgate.kube.errors import ConflictError
from rackgate.kube.events import EventRecorder
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workload_slices import controller as slices
from rackgate_assigner.workload_slices.writer import SliceWriter
from tests.support.apiserver import Fault
from tests.support.apiserver_faults import Handler
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.elastic_world import ElasticWorld, furnish, replica


def hand_made(name: str, parent: str, uid: str, *, status: Any = None) -> dict[str, Any]:
    """A workload slice of a parent that need not be there."""
    owner = {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "name": parent,
        "uid": uid,
        "controller": True,
    }
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "annotations": {names.ELASTIC_ANNOTATION: "true"},
        "finalizers": [names.IN_USE_FINALIZER],
        "ownerReferences": [owner],
    }
    podset = {"name": "small", "count": 1, "template": {"spec": {}}}
    spec = {"queueName": "plain", "podSets": [podset]}
    return {"metadata": meta, "spec": spec, "status": status or {}}


@pytest.mark.requirement("SLC-32")
@pytest.mark.field_note("E3", "E10")
async def test_slices_of_a_parent_that_is_gone_are_let_go() -> None:
    """It went while nobody acted: the owner is read live before anything is done."""
    async with ElasticWorld() as world:
        furnish(world)
        world.put(WORKLOADS, hand_made("left", "gone", "u"))
        async with replica(world):
            await eventually(lambda: not world.slices())


@pytest.mark.requirement("SLC-31")
async def test_a_parent_with_slices_is_not_admitted_again() -> None:
    async with ElasticWorld() as world, assigner(world, acts=False) as standby:
        furnish(world)
        meta = {
            "name": "job",
            "namespace": NAMESPACE,
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
        }
        parent = world.put(WORKLOADS, {"metadata": meta, "spec": {"podSets": []}})
        world.put(WORKLOADS, hand_made("job-small-0", "job", parent["metadata"]["uid"]))
        seen, key = standby.watches.workloads.store, f"{NAMESPACE}/job"
        await eventually(lambda: len(seen) == 2)
        assert not standby.slices.is_in_sync(seen[key])
        assert standby.slices.is_in_sync(seen[f"{key}-small-0"])
        world.remove(WORKLOADS, "job-small-0", NAMESPACE)
        await eventually(lambda: len(seen) == 1)
        assert standby.slices.is_in_sync(seen[key])


@pytest.mark.requirement("SLC-27")
async def test_a_slice_admitted_meanwhile_is_not_deleted_as_pending() -> None:
    async with ElasticWorld() as world, assigner(world, acts=False) as standby:
        furnish(world)
        world.put(WORKLOADS, hand_made("job-small-0", "job", "u"))
        seen, key = standby.watches.workloads.store, f"{NAMESPACE}/job-small-0"
        await eventually(lambda: key in seen)
        judged = seen[key]
        admission = {"clusterQueue": "plain", "podSetAssignments": []}
        world.change(WORKLOADS, "job-small-0", lambda o: o["status"].update(admission=admission))
        client = world.client()
        reporter = Reporter(EventRecorder(client, "test"))
        writer = SliceWriter(client, WorkloadWriter(client, client, client, reporter))
        with pytest.raises(ConflictError):
            await writer.delete(judged, in_any_version=False)
        await client.close()
        assert "deletionTimestamp" not in world.slices()[0]["metadata"]


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("acts", [True, False], ids=["meanwhile", "after a reinstall"])
async def test_a_slice_that_lost_its_finalizer_gets_it_again(acts: bool) -> None:
    """An uninstall takes it off all Workloads; the slice waits, and is resized with its parent."""

    def strip(piece: dict[str, Any]) -> None:
        piece["metadata"]["finalizers"] = []

    async with ElasticWorld() as world:
        furnish(world)
        async with replica(world):
            world.elastic("ray", {"small": 1}, cpu="40")
            await eventually(lambda: world.is_running(RAY_CLUSTERS, "ray"))
            world.scale("ray", 2)
            await eventually(world.slices)
            (piece,) = world.slices()
            name = piece["metadata"]["name"]
            if acts:
                world.change(WORKLOADS, name, strip)
                await eventually(lambda: world.slices()[0]["metadata"]["finalizers"])
        if not acts:
            world.change(WORKLOADS, name, strip)
        async with replica(world):
            await eventually(lambda: world.slices()[0]["metadata"]["finalizers"])
            (again,) = world.slices()
            assert again["metadata"]["uid"] == piece["metadata"]["uid"]
            assert again["metadata"]["finalizers"] == [names.IN_USE_FINALIZER]
            world.scale("ray", 1)
            await eventually(lambda: not world.slices())
            assert world.broken_rules == []


async def test_nothing_is_remembered_of_slices_that_are_gone() -> None:
    """Also when the watch shows that one is gone before its last write is answered."""
    async with ElasticWorld() as world, replica(world) as acting:
        furnish(world)
        world.elastic("ray", {"small": 1})
        await eventually(lambda: world.is_running(RAY_CLUSTERS, "ray"))
        seen = acting.watches.workloads.store

        async def late(_: web.Request, handle: Handler) -> web.StreamResponse:
            answer = await handle()
            await eventually(lambda: len(seen) == len(world.workloads()))
            return answer

        world.faults.append(Fault(late, method="PATCH", path="-small-", times=100))
        world.scale("ray", 4)
        await eventually(lambda: world.is_at("ray", small=4) and not world.slices())
        parent = world.parent("ray")["metadata"]
        known = acting.slices._assumed_writes._outdated  # no other sign of a leak
        await eventually(lambda: {key for _, key in known} <= {f"{NAMESPACE}/{parent['name']}"})


async def test_a_slice_that_was_made_and_is_never_seen_is_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody forced it away while the watch was being opened anew."""
    monkeypatch.setattr(slices, "ASSUMED_FOR_S", 0.5)
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1})
        await eventually(lambda: world.is_running(RAY_CLUSTERS, "ray"))

        async def nothing(request: web.Request, _: Handler) -> web.StreamResponse:
            return web.Response(status=201, body=await request.read())

        world.faults.append(Fault(nothing, method="POST", path="/workloads"))
        world.scale("ray", 2)
        await eventually(lambda: world.is_at("ray", small=2))


async def test_a_slice_whose_admission_cannot_be_read_is_made_again() -> None:
    """It holds and grants nothing, and must not keep its parent from ever being looked at."""
    async with ElasticWorld() as world, replica(world):
        furnish(world)
        world.elastic("ray", {"small": 1}, cpu="40")
        await eventually(lambda: world.is_running(RAY_CLUSTERS, "ray"))
        world.scale("ray", 2)
        await eventually(world.slices)
        before = world.slices()[0]["metadata"]

        def scribble(piece: Any) -> None:
            given = {"name": "small", "count": 1, "resourceUsage": {"cpu": "much"}}
            piece["status"] = {
                "admission": {"clusterQueue": "plain", "podSetAssignments": [given]},
                "conditions": [{"type": "QuotaReserved", "status": "True"}],
            }

        world.change(WORKLOADS, before["name"], scribble)
        await eventually(
            lambda: [w["metadata"]["uid"] for w in world.slices()] not in ([], [before["uid"]])
        )


@pytest.mark.requirement("SLC-06")
async def test_a_job_is_resized_beside_a_slice_that_kueue_replaced() -> None:
    """Kueue keeps it: a Finished elastic Workload of the same job, here the last one listed."""
    async with ElasticWorld() as world:
        furnish(world)
        async with replica(world):
            world.elastic("ray", {"small": 1}, cpu="1")
            await eventually(lambda: world.is_running(RAY_CLUSTERS, "ray"))
            await eventually(lambda: "PodsReady" in str(world.parent("ray")["status"]))
        finished = {"type": "Finished", "status": "True", "reason": "WorkloadSliceReplaced"}
        replaced = hand_made("zz", "ray", "", status={"conditions": [finished]})
        owners = world.parent("ray")["metadata"]["ownerReferences"]
        replaced["metadata"].update(finalizers=[], ownerReferences=owners)
        world.put(WORKLOADS, replaced)
        async with replica(world) as taken:
            await eventually(lambda: len(taken.watches.workloads.store) == 2)
            world.scale("ray", 2)
            await eventually(lambda: world.asked("ray")["small"] == 2)
