"""Objects at the edge of what is stored: assignments of many bytes, templates of many levels."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from rackgate.kube.errors import PayloadTooLargeError
from rackgate.topology.assignment import (
    MAX_SLICES,
    TopologyAssignment,
    decode,
    encode,
    encoded_size,
)
from rackgate.wire.depth import truncate_depth
from rackgate_assigner.workload.object_size import assignment_room
from tests.support.cluster import Cluster, until
from tests.support.handwritten import podset, workload
from tests.support.manifests import HOSTNAME, assigned
from tests.support.objects import RACK

pytestmark = pytest.mark.integration

FIELD = "podSetAssignments"


def hosts(names: list[str]) -> TopologyAssignment:
    return TopologyAssignment((HOSTNAME,), tuple(((name,), 1) for name in names))


def sized(size: int) -> TopologyAssignment:
    """Hosts with nothing in common, so many that their list takes about so many bytes."""
    noise = random.Random(size)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return hosts(["".join(noise.choices(letters, k=37)) for _ in range(size // 40)])


async def put(cluster: Cluster, name: str, found: TopologyAssignment) -> Any:
    """Write it into the status of a Workload of its own; its admission as stored."""
    await cluster.create(kinds.WORKLOADS, workload(name, podset("main", 1), queue="none"))
    path = kinds.WORKLOADS.path(cluster.namespace, name, "status")
    body = json.dumps({"status": assigned(encode(found), count=found.count)}).encode()
    answer = await cluster.client.patch(path, body, PatchType.MERGE)
    return json.loads(answer)["status"]["admission"][FIELD][0]["topologyAssignment"]


@pytest.mark.requirement("TAS-30")
@pytest.mark.field_note("C23")
@pytest.mark.usefixtures("assigner_away")
async def test_as_many_slices_as_there_may_be_are_stored(cluster: Cluster) -> None:
    found = hosts([f"n{number:06}" for number in range(100_000)])
    assert len(encode(found)["slices"]) == MAX_SLICES
    assert decode(await put(cluster, "slices", found)) == found


@pytest.mark.requirement("TAS-30")
@pytest.mark.field_note("C23")
@pytest.mark.usefixtures("assigner_away")
async def test_what_counts_as_storable_is_stored_and_more_is_rejected_as_too_large(
    cluster: Cluster,
) -> None:
    largest = sized(assignment_room(65_536) - 2000)
    assert decode(await put(cluster, "largest", largest)) == largest
    for name, size in (("store", 1_600_000), ("client", 2_400_000), ("body", 4_000_000)):
        found = sized(size)
        assert encoded_size(found) > size * 0.98
        with pytest.raises(PayloadTooLargeError):
            await put(cluster, name, found)


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("depth", [1500, 9000])
async def test_a_template_nested_without_end_stops_no_one(cluster: Cluster, depth: int) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    odd = workload("a-deep", podset("main", 1))
    odd["spec"]["podSets"][0]["template"]["spec"]["unknown"] = "DEEP"
    body = json.dumps(odd).replace('"DEEP"', "[" * depth + "]" * depth).encode()
    await cluster.client.create(kinds.WORKLOADS.path(cluster.namespace), body)
    path = kinds.WORKLOADS.path(cluster.namespace, "a-deep")

    async def admitted() -> bool:
        found = truncate_depth(await cluster.client.get(path))
        conditions = json.loads(found).get("status", {}).get("conditions", [])
        return any((one["type"], one["status"]) == ("Admitted", "True") for one in conditions)

    try:
        await cluster.submit("train", 2, required=RACK)
        await cluster.bound("train", 2)
        await until("the odd Workload is admitted as well", admitted)
    finally:
        await cluster.client.delete(path)
