"""Excluded resources, topologies switched off, and a defect of ours: on a running assigner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.runtime.metrics import REGISTRY
from rackgate_assigner.assigner import Assigner
from tests.support import objects
from tests.support.objects import RACK
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings

LICENSE = "example.com/license"
DEFECTS = "rackgate_decision_errors_total"


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def licensed(world: World, name: str) -> None:
    job = objects.job(name, 4, required=RACK)
    job["metadata"]["namespace"] = NAMESPACE
    job["spec"]["suspend"] = True
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"][LICENSE] = "7"
    world.put(kinds.JOBS, job)


@pytest.mark.field_note("C16")
async def test_an_excluded_resource_stands_in_nobodys_way(world: World) -> None:
    excluding = settings(resources={"excludeResourcePrefixes": ["example.com/"]})
    licensed(world, "train")
    async with assigner(world, configured=excluding):
        await eventually(world.started("train"))
    (grant,) = world.workload("train")["status"]["admission"]["podSetAssignments"]
    assert grant["resourceUsage"] == {"cpu": "16"}


async def test_a_resource_that_counts_and_is_not_covered_is_waited_for(world: World) -> None:
    licensed(world, "train")
    async with assigner(world):
        await eventually(world.shows("train", "QuotaReserved", "False", "NoMatchingFlavor"))


@pytest.mark.field_note("C22")
async def test_with_topologies_switched_off_only_who_asks_for_one_waits(world: World) -> None:
    off = settings(featureGates={"TopologyAwareScheduling": False})
    world.submit("plain")
    world.submit("train", required=RACK)
    async with assigner(world, configured=off):
        await eventually(world.started("plain"))
        await eventually(world.shows("train", "QuotaReserved", "False", "NoMatchingFlavor"))
    template = world.job("plain")["spec"]["template"]
    assert "schedulingGates" not in template["spec"]
    assert names.PODSET_LABEL not in template["metadata"].get("labels", {})


class _Broken(dict[str, str]):
    """A node selector that cannot be read, as only a defect of ours could make one."""

    def items(self) -> NoReturn:
        raise RuntimeError("planted")


def _break(replica: Assigner, world: World, job: str) -> None:
    key = f"{NAMESPACE}/{world.workload(job)['metadata']['name']}"
    request: Any = replica.cache.workloads[key].podsets[0].request
    object.__setattr__(request, "node_selector", _Broken())


@pytest.mark.requirement("OPS-07")
async def test_a_defect_is_reported_logged_and_counted_and_the_others_go_on(world: World) -> None:
    before = REGISTRY.get_sample_value(DEFECTS) or 0.0
    with capture_logs() as logs:
        async with assigner(world) as replica:
            world.submit("bad", 2, required=RACK, queue="later")
            await eventually(world.shows("bad", "QuotaReserved", "False", "Misconfigured"))
            _break(replica, world, "bad")
            local = objects.local_queue("later", "cq")
            local["metadata"]["namespace"] = NAMESPACE
            world.put(kinds.LOCAL_QUEUES, local)
            world.submit("good", 2, required=RACK)
            await eventually(world.shows("bad", "QuotaReserved", "False", "InternalError"))
            await eventually(world.started("good"))
    (logged,) = [entry for entry in logs if entry["event"] == "decision_failed"]
    assert logged["log_level"] == "error"
    assert "RuntimeError: planted" in logged["error"]
    assert (REGISTRY.get_sample_value(DEFECTS) or 0.0) > before
