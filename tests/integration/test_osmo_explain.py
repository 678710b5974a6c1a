"""`rackgate osmo explain` reads nodes and pods of a real API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate_cli.__main__ import main
from tests.support.cluster import Cluster
from tests.support.objects import BLOCK, POOL_LABEL, RACK, node
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

KEYS = [{"key": "block", "label": BLOCK}, {"key": "rack", "label": RACK}]
WORKFLOW = {
    "workflow": {
        "name": "w",
        "groups": [{"name": "g", "tasks": [{"name": "t1"}, {"name": "t2"}]}],
    },
    "resources": {"default": {"cpu": 6, "topology": [{"key": "rack"}]}},
}


@pytest.mark.requirement("OSM-25")
async def test_room_of_a_cluster_is_what_its_nodes_offer_less_what_pods_take(
    playground: Playground,
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [("r1", "x1"), ("r1", "x2"), ("r2", "x3")]
    await cluster.add_nodes([node(cluster.pool, "b1", *place) for place in places])
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"name": "p", "topology_keys": KEYS}))
    (tmp_path / "workflow.yaml").write_text(yaml.safe_dump(WORKFLOW))

    async def explained(*more: str) -> dict[str, Any]:
        line = [
            *("osmo", "explain", "--json", "--state", str(playground.state)),
            *("-f", str(tmp_path / "workflow.yaml"), "--pool", str(tmp_path / "pool.yaml")),
            *("-l", f"{POOL_LABEL}={cluster.pool}", *more),
        ]
        assert await asyncio.to_thread(main, line) == 0
        return dict(json.loads(capsys.readouterr().out))

    free = await explained()
    assert (free["answer"], free["kaiResult"], free["nodes"]) == ("scheduled", "scheduled", 3)
    (group,) = free["groups"]
    assert group["subgroups"][0]["domain"] == ["b1", "r1"]
    container = {
        "name": "main",
        "image": "registry.example/other:1",
        "resources": {"requests": {"cpu": "3"}},
    }
    await cluster.create(
        kinds.PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "other"},
            "spec": {"nodeName": f"{cluster.pool}-x1", "containers": [container]},
        },
    )
    taken = await explained()
    (short,) = taken["groups"][0]["shortages"]
    assert (taken["answer"], taken["warnings"]) == ("pending", [])
    assert (short["key"], short["takes"], short["missing"]) == ("rack", 1, 1)
    # Its own pods, once they are bound, are no obstacle to it.
    container["resources"] = {"requests": {"cpu": "6"}}
    for name in ("x2", "x3"):
        metadata = {"name": f"own-{name}", "annotations": {"pod-group-name": "w-g"}}
        spec = {"nodeName": f"{cluster.pool}-{name}", "containers": [container]}
        await cluster.create(
            kinds.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
    running = await explained("-n", cluster.namespace)
    assert (running["answer"], running["kaiResult"]) == ("scheduled", "scheduled")
    assert running["groups"][0]["summary"] == "all 2 pods run"
    assert [place["domain"] for place in running["groups"][0]["running"]] == [
        ["b1", "r1"],
        ["b1", "r2"],
    ]
    assert (await explained("-n", "another"))["answer"] == "pending"
