"""The main job: one annotation, every pod gated, one assignment, ranks in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, RACK, Object, node
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

SEEDS = Path(__file__).parents[1] / "seeds"
SEEDS_NAMESPACE = "tas-example-job"


@pytest.mark.requirement("USR-01", "TAS-06", "TAS-17", "TST-08")
async def test_a_required_rack_holds_all_four_pods_in_one_rack(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    places = await cluster.places("train", 4)
    assert len({(block, rack) for block, rack, _ in places}) == 1


@pytest.mark.requirement("USR-01", "TST-07", "CAP-07", "TAS-20")
async def test_five_pods_wait_with_a_reason_until_a_rack_grows(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 5, required=RACK)
    words = "allows to fit only 4 out of 5 pod(s)"
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed", words)
    assert await cluster.pods_of("train") == []
    await cluster.add_node("block-2", "rack-3", "grown")
    places = await cluster.places("train", 5)
    assert {(block, rack) for block, rack, _ in places} == {("block-2", "rack-3")}


@pytest.mark.requirement("USR-02", "TAS-07", "TAS-18", "TAS-19", "TST-08")
@pytest.mark.parametrize(("count", "blocks", "racks"), [(4, 1, 1), (6, 1, 2), (16, 2, 4)])
async def test_a_preferred_rack_widens_step_by_step(
    cluster: Cluster, count: int, blocks: int, racks: int
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", count, preferred=RACK)
    places = await cluster.places("train", count)
    assert len({block for block, _, _ in places}) == blocks
    assert len({(block, rack) for block, rack, _ in places}) == racks


@pytest.mark.requirement("USR-02", "TAS-19")
async def test_seventeen_pods_wait_for_room_even_when_they_only_prefer(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 17, preferred=RACK)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    assert await cluster.pods_of("train") == []


@pytest.mark.requirement("USR-03", "TAS-14", "CAP-02")
async def test_two_workloads_never_race_for_a_rack(cluster: Cluster) -> None:
    await cluster.add_nodes(
        node(cluster.pool, "block-1", f"rack-{r}", f"r{r}-{i}") for r in (1, 2, 3) for i in (1, 2)
    )
    await cluster.add_queue()
    await cluster.submit("wide", 8, required=BLOCK)
    await cluster.submit("narrow", 4, required=RACK)
    wide = {rack for _, rack, _ in await cluster.places("wide", 8)}
    narrow = {rack for _, rack, _ in await cluster.places("narrow", 4)}
    assert len(wide) == 2
    assert len(narrow) == 1
    assert not wide & narrow


@pytest.mark.requirement("USR-08", "RNK-01", "RNK-02", "RNK-04", "RNK-05")
async def test_consecutive_ranks_share_a_rack(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 8, preferred=BLOCK)
    racks = [(block, rack) for block, rack, _ in await cluster.places("train", 8)]
    assert len(set(racks[:4])) == 1
    assert len(set(racks[4:])) == 1
    assert racks[0] != racks[4]
    assert racks[0][0] == racks[4][0]


@pytest.mark.requirement("TAS-25", "TST-09", "HOOK-04", "HOOK-10", "TAS-09", "UNG-08", "TST-10")
async def test_every_pod_is_born_gated_and_released_with_its_selector(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    seen = await cluster.submit("train", 4, required=RACK)
    assert seen["spec"]["suspend"] is True
    pods = await cluster.bound("train", 4)
    workload = await cluster.workload_of("train")
    for pod in pods:
        assert pod["metadata"]["labels"][names.PODSET_LABEL] == "main"
        assert pod["metadata"]["labels"][names.TAS_LABEL] == "true"
        assert (
            pod["metadata"]["annotations"][names.WORKLOAD_ANNOTATION]
            == (workload["metadata"]["name"])
        )
        assert pod["spec"].get("schedulingGates", []) == []
        assert pod["spec"]["nodeSelector"][names.HOSTNAME_LABEL] == pod["spec"]["nodeName"]
    started = await cluster.get(kinds.JOBS, "train")
    gates = started["spec"]["template"]["spec"]["schedulingGates"]
    assert gates == [{"name": names.TOPOLOGY_GATE}]


@pytest.mark.requirement("TAS-10", "TAS-11", "TAS-13")
async def test_admission_carries_quota_and_one_assignment(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    workload = await cluster.condition("train", "Admitted")
    assert workload["spec"]["podSets"][0]["topologyRequest"] == {
        "required": RACK,
        "podIndexLabel": names.COMPLETION_INDEX_LABEL,
    }
    grant = workload["status"]["admission"]["podSetAssignments"][0]
    assert grant["flavors"] == {"cpu": f"{cluster.pool}-queue"}
    assert grant["resourceUsage"] == {"cpu": "16"}
    assert grant["count"] == 4
    assert grant["topologyAssignment"]["levels"] == [names.HOSTNAME_LABEL]


@pytest.mark.requirement("CAP-02", "CAP-08", "OPS-09")
async def test_the_next_job_starts_when_the_first_ends(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("first", 16, required=None, preferred=RACK)
    await cluster.bound("first", 16)
    await cluster.submit("second", 4, required=RACK)
    await cluster.condition("second", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.event("TopologyPlacementFailed", (await _name(cluster, "second")))
    await cluster.finish("first")
    await cluster.condition("first", "Finished", "True", "Succeeded")
    await cluster.bound("second", 4)


async def _name(cluster: Cluster, job: str) -> str:
    return str((await cluster.workload_of(job))["metadata"]["name"])


@pytest.mark.requirement("USR-04")
async def test_the_sources_job_of_ten_runs_unchanged_inside_one_large_rack(
    cluster: Cluster, playground: Playground, tmp_path: Path
) -> None:
    """As printed it has a namespace and no name; a name is all that it is given."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SEEDS_NAMESPACE}}
    await cluster.create(kinds.NAMESPACES, namespace)
    printed = SEEDS / "job.yaml"
    with pytest.raises(AssertionError, match="name or generateName is required"):
        playground.run("kubectl", "create", "--dry-run=server", "-f", str(printed))
    named = tmp_path / "job.yaml"
    named.write_text(printed.read_text().replace("metadata:\n", "metadata:\n  name: sample\n", 1))
    there = Cluster(cluster.client, SEEDS_NAMESPACE, cluster.pool)
    try:
        await there.add_fx_a()
        await there.add_queue("user-queue")
        playground.run("kubectl", "apply", "-f", str(named))
        await there.condition("sample", "QuotaReserved", "False", "TopologyPlacementFailed")
        assert await there.pods_of("sample") == []
        await there.add_nodes(
            node(cluster.pool, "block-1", f"rack-{r}", f"large-{r}-{i}")
            for r in (8, 9)
            for i in range(5)
        )
        places = await there.places("sample", 10)
        assert {rack for _, rack, _ in places} in ({"rack-8"}, {"rack-9"})
    finally:
        await there.leave()


@pytest.mark.requirement("TST-11", "TAS-24", "TAS-26")
async def test_a_stopped_workload_gives_back_template_and_room_and_returns(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    name = await _name(cluster, "train")
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})

    async def released() -> bool:
        job = await cluster.get(kinds.JOBS, "train")
        workload = await cluster.get(kinds.WORKLOADS, name)
        template = job["spec"]["template"]
        return (
            job["spec"]["suspend"]
            and "admission" not in workload["status"]
            and not _reserved(template)
        )

    await until("the Job is stopped and restored", released)
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    await cluster.bound("train", 4)


def _reserved(template: Object) -> list[str]:
    meta = template["metadata"]
    gates = [gate["name"] for gate in template["spec"].get("schedulingGates", [])]
    keys = [*meta.get("labels", {}), *meta.get("annotations", {}), *gates]
    reserved = (names.PODSET_LABEL, names.TAS_LABEL, names.WORKLOAD_ANNOTATION, names.TOPOLOGY_GATE)
    return [key for key in keys if key in reserved]


@pytest.mark.requirement("CAP-03", "CAP-04")
async def test_a_plain_pod_on_a_node_takes_room(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    host = f"{cluster.pool}-11-1"
    container = {
        "name": "main",
        "image": "registry.example/agent:1",
        "resources": {"requests": {"cpu": "2"}},
    }
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {"nodeName": host, "containers": [container]},
    }
    await cluster.create(kinds.PODS, plain)
    await cluster.wait_pods_seen()
    await cluster.submit("train", 4, required=RACK)
    places = await cluster.places("train", 4)
    assert {(block, rack) for block, rack, _ in places} != {("block-1", "rack-1")}
    await cluster.submit("rest", 11, preferred=RACK)
    hosts = Counter(name for _, _, name in await cluster.places("rest", 11))
    assert hosts[host] == 1
