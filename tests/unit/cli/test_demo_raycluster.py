"""What the demo submits as a RayCluster, and how many of its workers it says fit a block."""

from __future__ import annotations

from rackgate.api import names
from rackgate.jobframework.registry import RAYCLUSTER
from rackgate_cli.controlplane.defaults import NODES_PER_RACK, PER_NODE, RACKS_PER_BLOCK
from rackgate_cli.demo.raycluster import ASKED, FIRST, MOST, WORKERS, manifest
from rackgate_cli.demo.story import BLOCK, GPU, GPUS_PER_NODE


def test_the_demos_cluster_may_be_resized_and_asks_for_one_block() -> None:
    cluster = manifest()
    assert RAYCLUSTER.is_elastic(cluster)
    assert RAYCLUSTER.shape_errors(cluster) == []
    head, workers = RAYCLUSTER.podsets(cluster)
    assert (head["count"], workers["name"], workers["count"]) == (1, WORKERS, FIRST)
    annotations = workers["template"]["metadata"]["annotations"]
    assert annotations[names.REQUIRED_TOPOLOGY] == BLOCK


def test_a_block_has_room_for_fewer_workers_than_are_asked_for() -> None:
    assert PER_NODE[GPU] == GPUS_PER_NODE
    assert MOST == NODES_PER_RACK * RACKS_PER_BLOCK < ASKED
