"""Two levels in one request, from the configuration of webhook and assigner to the answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from rackgate_webhook.service import WebhookService
from tests.support.apiserver import FakeApiServer
from tests.support.composite_jobs import raycluster, worker_group
from tests.support.objects import BLOCK, RACK, job
from tests.support.waiting import until
from tests.unit.webhook.reviews import body, patch_of
from tests.wire.assigner_world import World, assigner, eventually, furnish
from tests.wire.assigner_world import settings as assigner_settings
from tests.wire.test_webhook_server import calling, post, settings

ON = {"RackgateRequiredAndPreferred": True}
WHERE = "spec.template.metadata.annotations"


@pytest.mark.field_note("G6", "P6")
@pytest.mark.parametrize("gates", [{}, ON])
async def test_the_webhook_goes_by_its_configuration(gates: dict[str, bool]) -> None:
    asked = job("train", 2, required=BLOCK, preferred=RACK)
    async with FakeApiServer() as api:
        configured = settings(api).model_copy(update={"feature_gates": gates})
        service, stop = WebhookService(configured), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(service.run(stop))
            await until(lambda: not service.missing())
            bundle = service._certificate_manager.bundle if service._certificate_manager else b""
            async with calling(bundle) as session:
                port = service._server.port  # the kernel's choice
                sent = json.dumps(body("batch/Job", asked)).encode()
                _, answer, _ = await post(session, port, sent, "/validate")
            stop.set()
            await asyncio.wait_for(running, 30)
    response = json.loads(answer)["response"]
    # The mutating webhook was not asked: what it adds is not missed, both levels are judged.
    assert (WHERE in json.dumps(response)) == (not gates)
    assert response["allowed"] == bool(gates)


@pytest.mark.requirement("SLC-01", "SLC-13")
@pytest.mark.parametrize("gates", [{}, {"ElasticJobsViaWorkloadSlices": True}])
async def test_the_webhook_holds_elastic_pods_behind_its_gate_alone(
    gates: dict[str, bool],
) -> None:
    asked = raycluster("ray", [worker_group("w", 1)], autoscaling=True)
    async with FakeApiServer() as api:
        configured = settings(api).model_copy(update={"feature_gates": gates})
        service, stop = WebhookService(configured), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(service.run(stop))
            await until(lambda: not service.missing())
            bundle = service._certificate_manager.bundle if service._certificate_manager else b""
            async with calling(bundle) as session:
                sent = json.dumps(body("ray.io/RayCluster", asked)).encode()
                _, answer, _ = await post(session, service._server.port, sent, "/mutate")
            stop.set()
            await asyncio.wait_for(running, 30)
    paths = [operation["path"] for operation in patch_of(answer)]
    held = [path for path in paths if path.startswith("/spec/headGroupSpec/template/")]
    assert "/spec/suspend" in paths
    assert bool(held) == bool(gates)


@pytest.mark.field_note("G6")
async def test_the_assigner_places_by_both_levels() -> None:
    configured = assigner_settings(featureGates=ON)
    async with World() as world:
        furnish(world)
        # FX-A has two nodes of 8 cpu in a rack: 6 pods of 4 cpu need two racks, of one block.
        world.submit("train", 6, required=BLOCK, preferred=RACK)
        async with assigner(world, configured=configured):
            await eventually(world.started("train"))
        found = world.workload("train")
        (asked,) = found["spec"]["podSets"]
        request = {"required": BLOCK, "preferred": RACK}
        assert {key: asked["topologyRequest"][key] for key in request} == request
        assert found["status"]["admission"]["podSetAssignments"][0]["count"] == 6


@pytest.mark.field_note("P6")
async def test_without_the_gate_the_assigner_says_what_is_wrong_and_waits() -> None:
    async with World() as world:
        furnish(world)
        world.submit("train", 6, required=BLOCK, preferred=RACK)
        async with assigner(world):
            await eventually(world.shows("train", "QuotaReserved", "False", "Misconfigured"))
