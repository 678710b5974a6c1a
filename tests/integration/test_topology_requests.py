"""Every way to ask for a topology, from the annotation (or a Workload) to pods on their hosts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.bad_requests import BAD_REQUESTS
from tests.support.cluster import Cluster, until
from tests.support.handwritten import INDEX_LABEL, Owner, has_condition, podset, workload
from tests.support.objects import (
    BLOCK,
    HOST,
    RACK,
    Object,
    flavor,
    local_queue,
    node,
    topology_object,
)

pytestmark = pytest.mark.integration

ZONE = "example.com/zone"


async def racks(cluster: Cluster, *shapes: tuple[str, str, int], cpu: str = "8") -> None:
    """Nodes as (block, rack, hosts); a host is called `<rack>-<i>` after the pool."""
    await cluster.add_nodes(
        node(cluster.pool, block, rack, f"{rack}-{i}", cpu=cpu)
        for block, rack, hosts in shapes
        for i in range(hosts)
    )


async def request_of(cluster: Cluster, job: str) -> Object:
    """The topologyRequest that a Job's Workload carries, without the rank label."""
    request = dict((await cluster.workload_of(job))["spec"]["podSets"][0]["topologyRequest"])
    assert request.pop("podIndexLabel") == names.COMPLETION_INDEX_LABEL
    return request


def per_rack(places: Iterable[tuple[str, str, str]]) -> Counter[tuple[str, str]]:
    """Pods by (block, rack)."""
    return Counter((block, rack) for block, rack, _ in places)


def message(found: Object) -> str:
    """Why a Workload has no quota."""
    conditions = found["status"]["conditions"]
    return str(next(one["message"] for one in conditions if one["type"] == "QuotaReserved"))


@pytest.mark.requirement("TAS-06", "TAS-10", "TAS-17")
async def test_required_fills_one_domain_of_the_level(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 1), ("b1", "r2", 2), ("b2", "r3", 3))
    await cluster.add_queue()
    await cluster.submit("train", 5, required=RACK)
    assert per_rack(await cluster.places("train", 5)) == {("b2", "r3"): 5}
    assert await request_of(cluster, "train") == {"required": RACK}


@pytest.mark.requirement("TAS-07", "TAS-18")
async def test_preferred_climbs_to_the_level_that_holds_all(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 1), ("b2", "r2", 2), ("b2", "r3", 1))
    await cluster.add_queue()
    await cluster.submit("train", 6, preferred=RACK)
    assert per_rack(await cluster.places("train", 6)) == {("b2", "r2"): 4, ("b2", "r3"): 2}
    assert await request_of(cluster, "train") == {"preferred": RACK}


@pytest.mark.requirement("TAS-10")
async def test_unconstrained_takes_any_hosts_and_asks_for_none(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 2), ("b2", "r2", 1))
    await cluster.add_queue()
    marks = {names.UNCONSTRAINED_TOPOLOGY: "true"}
    await cluster.submit("train", 6, annotations=marks)
    places = await cluster.places("train", 6)
    assert per_rack(places) == {("b1", "r1"): 4, ("b2", "r2"): 2}
    assert await request_of(cluster, "train") == {"unconstrained": True}


@pytest.mark.requirement("TAS-09", "TAS-25")
async def test_a_queue_of_topology_flavors_places_jobs_that_ask_nothing(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 2))
    await cluster.add_queue()
    await cluster.submit("train", 4)
    hosts = Counter(host for _, _, host in await cluster.places("train", 4))
    assert set(hosts.values()) == {2}
    found = await cluster.workload_of("train")
    assert "topologyRequest" not in found["spec"]["podSets"][0]
    for pod in await cluster.pods_of("train"):
        assert pod["spec"]["nodeSelector"][HOST] == pod["spec"]["nodeName"]


@pytest.mark.requirement("TAS-06", "HOOK-03")
@pytest.mark.field_note("U8")
async def test_slices_stay_whole_within_their_level(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 3), ("b1", "r2", 3), ("b2", "r3", 2))
    await cluster.add_queue()
    marks = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4"}
    await cluster.submit("train", 8, required=BLOCK, annotations=marks)
    places = await cluster.places("train", 8)
    assert per_rack(places) == {("b1", "r1"): 4, ("b1", "r2"): 4}
    # Ranks of a slice follow one another.
    assert len({rack for _, rack, _ in places[:4]}) == 1
    assert await request_of(cluster, "train") == {
        "required": BLOCK,
        "podSetSliceRequiredTopology": RACK,
        "podSetSliceSize": 4,
    }


@pytest.mark.field_note("U8")
async def test_slices_alone_are_request_enough(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 1), ("b2", "r2", 2), cpu="12")
    await cluster.add_queue()
    marks = {names.SLICE_REQUIRED_TOPOLOGY: HOST, names.SLICE_SIZE: "2"}
    await cluster.submit("train", 6, annotations=marks)
    hosts = Counter(host for _, _, host in await cluster.places("train", 6))
    assert set(hosts.values()) == {2}


@pytest.mark.requirement("HOOK-03")
@pytest.mark.field_note("P6")
async def test_layers_of_slices_nest(cluster: Cluster) -> None:
    await racks(cluster, *((f"b{b}", f"r{b}{r}", 3) for b in (1, 2) for r in (1, 2)), cpu="12")
    await cluster.add_queue()
    layers = [
        {"topology": BLOCK, "size": 8},
        {"topology": RACK, "size": 4},
        {"topology": HOST, "size": 2},
    ]
    marks = {names.SLICE_CONSTRAINTS: json.dumps(layers)}
    await cluster.submit("train", 16, annotations=marks)
    places = await cluster.places("train", 16)
    assert set(Counter(block for block, _, _ in places).values()) == {8}
    assert set(per_rack(places).values()) == {4}
    assert set(Counter(host for _, _, host in places).values()) == {2}
    assert await request_of(cluster, "train") == {"podsetSliceRequiredTopologyConstraints": layers}


@pytest.mark.requirement("TAS-06")
async def test_leader_and_workers_of_a_group_share_a_rack(
    cluster: Cluster, job_controller: Cluster
) -> None:
    await racks(cluster, ("b1", "r1", 2), ("b1", "r2", 3))
    await cluster.add_queue()
    asked = {"required": RACK, "podSetGroupName": "g"}
    leader, workers = podset("leader", 1, asked), podset("workers", 4, asked)
    owner = await Owner.create(cluster, "trainer", job_controller)
    await owner.submit(leader, workers)
    for part in (leader, workers):
        for index in range(part["count"]):
            await owner.add_pod(part, index)
    hosts = [*await owner.hosts(leader), *await owner.hosts(workers)]
    # Five pods of half a host each do not fit the two hosts of rack r1.
    assert {host.removeprefix(f"{cluster.pool}-").partition("-")[0] for host in hosts} == {"r2"}
    assert max(Counter(hosts).values()) == 2


@pytest.mark.field_note("U7")
async def test_the_index_offset_of_pods_shifts_their_ranks(
    cluster: Cluster, job_controller: Cluster
) -> None:
    await racks(cluster, ("b1", "r1", 3), cpu="4")
    await cluster.add_queue()
    workers = podset("workers", 3, {"required": RACK, "podIndexLabel": INDEX_LABEL})
    owner = await Owner.create(cluster, "trainer", job_controller)
    await owner.submit(workers)
    offset = {names.POD_INDEX_OFFSET: "5"}
    for index in (7, 6, 5):
        await owner.add_pod(workers, index, offset)
    assert await owner.hosts(workers) == [f"{cluster.pool}-r1-{i}" for i in range(3)]


@pytest.mark.requirement("TAS-16")
async def test_a_workload_without_an_owner_is_admitted(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 2))
    await cluster.add_queue()
    parts = [podset("a", 2, {"required": RACK}), podset("b", 2)]
    await cluster.create(kinds.WORKLOADS, workload("alone", *parts))
    found = await has_condition(cluster, "alone", "Admitted")
    grants = found["status"]["admission"]["podSetAssignments"]
    assert [grant["count"] for grant in grants] == [2, 2]
    assert all(grant["topologyAssignment"]["levels"] == [HOST] for grant in grants)


@pytest.mark.requirement("CAP-06")
@pytest.mark.field_note("C9")
async def test_tainted_hosts_are_for_pods_that_tolerate_them(cluster: Cluster) -> None:
    tainted = node(cluster.pool, "b1", "r1", "r1-0", cpu="16")
    tainted["spec"] = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    await cluster.add_nodes([tainted, node(cluster.pool, "b1", "r2", "r2-0", cpu="8")])
    await cluster.add_queue()
    await cluster.submit("plain", 3, required=RACK)
    words = 'excluded: taint "gpu=yes:NoSchedule": 1'
    await cluster.condition("plain", "QuotaReserved", "False", "TopologyPlacementFailed", words)
    tolerations = [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    await cluster.submit("tolerant", 4, required=RACK, pod={"tolerations": tolerations})
    assert per_rack(await cluster.places("tolerant", 4)) == {("b1", "r1"): 4}


@pytest.mark.field_note("C9")
async def test_a_node_selector_narrows_the_hosts(cluster: Cluster) -> None:
    await cluster.add_nodes(
        node(cluster.pool, "b1", "r1", f"r1-{i}", labels={"disk": "fast" if i else "slow"})
        for i in range(3)
    )
    await cluster.add_queue()
    await cluster.submit("train", 3, preferred=RACK, pod={"nodeSelector": {"disk": "fast"}})
    hosts = {host for _, _, host in await cluster.places("train", 3)}
    assert hosts == {f"{cluster.pool}-r1-{i}" for i in (1, 2)}


@pytest.mark.field_note("C9")
async def test_required_node_affinity_narrows_the_hosts(cluster: Cluster) -> None:
    await cluster.add_nodes(
        node(cluster.pool, "b1", "r1", f"r1-{i}", labels={"generation": str(i)}) for i in range(4)
    )
    await cluster.add_queue()
    expressions = [
        {"key": "generation", "operator": "Gt", "values": ["0"]},
        {"key": "generation", "operator": "NotIn", "values": ["2"]},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    await cluster.submit("train", 4, required=RACK, pod={"affinity": affinity})
    hosts = {host for _, _, host in await cluster.places("train", 4)}
    assert hosts == {f"{cluster.pool}-r1-{i}" for i in (1, 3)}


@pytest.mark.requirement("TAS-13", "TAS-14", "CAP-06")
async def test_without_a_host_level_pods_are_bound_to_their_rack_alone(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 2), ("b1", "r2", 2))
    await cluster.add_queue(levels=(BLOCK, RACK))
    await cluster.submit("train", 6, required=BLOCK)
    places = await cluster.places("train", 6)
    assert sorted(per_rack(places).values()) == [2, 4]
    for pod, (block, rack, _) in zip(await _ranked(cluster, "train"), places, strict=True):
        ours = {key: pod["spec"]["nodeSelector"].get(key) for key in (BLOCK, RACK, HOST)}
        assert ours == {BLOCK: block, RACK: rack, HOST: None}


async def _ranked(cluster: Cluster, job: str) -> list[Object]:
    pods = await cluster.pods_of(job)
    label = names.COMPLETION_INDEX_LABEL
    return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"][label]))


@pytest.mark.requirement("TAS-31")
@pytest.mark.parametrize("levels", [(HOST,), (RACK, HOST), (ZONE, BLOCK, RACK, HOST)], ids=len)
async def test_any_number_of_levels_works(cluster: Cluster, levels: tuple[str, ...]) -> None:
    # Equal block and rack names in two zones are different domains.
    await cluster.add_nodes(
        node(cluster.pool, "b1", f"{zone}-r1", f"{zone}-{i}", labels={ZONE: zone}, cpu="4")
        for zone, hosts in (("z1", 2), ("z2", 3))
        for i in range(hosts)
    )
    await cluster.add_queue(levels=levels)
    await cluster.submit("train", 3, preferred=levels[0])
    places = await cluster.places("train", 3)
    if len(levels) > 1:
        assert {rack for _, rack, _ in places} == {"z2-r1"}
    assert len({host for _, _, host in places}) == 3


@pytest.mark.requirement("TAS-20")
async def test_a_flavor_without_place_gives_way_to_the_next(cluster: Cluster) -> None:
    await cluster.add_nodes(
        node(cluster.pool, "b1", kind, f"{kind}-0", cpu="16", labels={"kind": kind})
        for kind in ("near", "far")
    )
    full = f"{cluster.pool}-queue"
    await cluster.create(kinds.TOPOLOGIES, topology_object(full))
    names_of = [f"{cluster.pool}-{kind}" for kind in ("near", "far")]
    for name in names_of:
        made = flavor(name, cluster.pool, full)
        made["spec"]["nodeLabels"]["kind"] = name.rpartition("-")[2]
        await cluster.create(kinds.FLAVORS, made)
    offers = [
        {"name": name, "resources": [{"name": "cpu", "nominalQuota": "100"}]} for name in names_of
    ]
    queue: Object = {
        "apiVersion": names.API_VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": full},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": offers}],
        },
    }
    await cluster.create(kinds.CLUSTER_QUEUES, queue)
    await cluster.create(kinds.LOCAL_QUEUES, local_queue("queue", full))
    for name, rack in (("first", "near"), ("second", "far")):
        await cluster.submit(name, 4, required=RACK)
        assert per_rack(await cluster.places(name, 4)) == {("b1", rack): 4}
    await cluster.submit("third", 4, required=RACK)
    waiting = await cluster.condition("third", "QuotaReserved", "False", "TopologyPlacementFailed")
    assert all(f"flavor {name}: topology" in message(waiting) for name in names_of)


NONSENSE = ("required and preferred", "slice size 0", "slice level without size", "four layers")


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P5", "P6")
async def test_a_workload_that_makes_no_sense_is_rejected_with_its_path(cluster: Cluster) -> None:
    for name in NONSENSE:
        bad = BAD_REQUESTS[name]
        wish = workload("odd", podset("main", 8, bad.request))
        with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
            await cluster.create(kinds.WORKLOADS, wish)
        assert f"spec.podSets[0].topologyRequest{bad.field}" in caught.value.message, name
    for count in (-1, 2**31):
        with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
            await cluster.create(kinds.WORKLOADS, workload("odd", podset("main", count)))
        assert "spec.podSets[0].count" in caught.value.message


@pytest.mark.requirement("VAL-02")
@pytest.mark.field_note("P12")
async def test_a_workload_no_level_or_room_can_ever_meet_is_reported_so(cluster: Cluster) -> None:
    await racks(cluster, ("b1", "r1", 1))
    await cluster.add_queue(quota={"cpu": "100G"})
    asked: dict[str, Any] = {"podSetSliceRequiredTopology": "example.com/row", "podSetSliceSize": 2}
    await cluster.create(kinds.WORKLOADS, workload("unknown", podset("main", 4, asked)))

    async def deactivated() -> Object | None:
        found = await cluster.get(kinds.WORKLOADS, "unknown")
        return found if found["spec"].get("active") is False else None

    await until("the request is deactivated", deactivated)
    found = await has_condition(cluster, "unknown", "QuotaReserved", "False")
    path = "spec.podSets[0].topologyRequest.podSetSliceRequiredTopology"
    assert f'{path}: level "example.com/row" is not in' in message(found)
    huge = podset("main", 2**31 - 1, {"preferred": RACK})
    await cluster.create(kinds.WORKLOADS, workload("huge", huge))
    reason = "TopologyPlacementFailed"
    await has_condition(cluster, "huge", "QuotaReserved", "False", reason)
    await cluster.create(kinds.WORKLOADS, workload("right", podset("main", 2, {"required": RACK})))
    await has_condition(cluster, "right", "Admitted")
