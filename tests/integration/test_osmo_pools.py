"""Pools and Workflows of OSMO on a real API server, and the Topologies that KAI reads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate.api.names import OSMO_POOL_LABEL
from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS, OSMO_WORKFLOWS
from rackgate.kube.errors import ForbiddenError, ServerError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

ZONE = {"key": "zone", "label": "topology.kubernetes.io/zone"}
SPINE = {"key": "spine", "label": "topology.kubernetes.io/spine"}
RACK = {"key": "rack", "label": "topology.kubernetes.io/rack"}
UNCHANGED = {"backend": "backend-1", "scheduler": "kai", "topology_keys": [ZONE, RACK]}


def pool(cluster: Cluster, *keys: Object, **spec: Any) -> Object:
    return {
        "apiVersion": OSMO_POOLS.api_version,
        "kind": "Pool",
        "metadata": {"name": cluster.pool},
        "spec": {"backend": "backend-1", "topology_keys": [*keys], **spec},
    }


def workflow(cluster: Cluster, *requirements: Object, **resource: Any) -> Object:
    tasks = [{"name": "t1", "image": "registry.example/train:1"}, {"name": "t2"}]
    return {
        "apiVersion": OSMO_WORKFLOWS.api_version,
        "kind": "Workflow",
        "metadata": {"name": "train"},
        "spec": {
            "pool": cluster.pool,
            "groups": [{"name": "group1", "tasks": tasks}],
            "resources": {"default": {"cpu": 1, "topology": [*requirements], **resource}},
        },
    }


async def keyed(cluster: Cluster, *keys: Object) -> None:
    """Give the Pool other keys."""
    await cluster.merge(OSMO_POOLS, cluster.pool, {"spec": {"topology_keys": [*keys]}})


async def synced(cluster: Cluster, status: str, reason: str) -> Object:
    """Wait until the Pool's condition is about its spec as it is now, and says that."""

    async def says() -> Object | None:
        found = await cluster.get(OSMO_POOLS, cluster.pool)
        told = found.get("status", {})
        if told.get("observedGeneration") != found["metadata"]["generation"]:
            return None
        (condition,) = told["conditions"]
        return found if (condition["status"], condition["reason"]) == (status, reason) else None

    found = await until(f"pool {cluster.pool} is {status} {reason}", says)
    assert found is not None
    return found


async def topology(cluster: Cluster) -> Object | None:
    return await cluster.find(KAI_TOPOLOGIES, f"osmo-pool-{cluster.pool}-topology")


async def levels(cluster: Cluster) -> list[str] | None:
    found = await topology(cluster)
    return None if found is None else [level["nodeLabel"] for level in found["spec"]["levels"]]


async def refused(writing: Any, *words: str) -> str:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    told = caught.value.message
    assert all(word in told for word in words), told
    return told


@pytest.mark.requirement("OSM-01", "OSM-08", "OSM-19")
async def test_kais_topology_follows_the_keys_of_a_pool(cluster: Cluster) -> None:
    made = await cluster.create(OSMO_POOLS, pool(cluster, ZONE, RACK))
    assert made["spec"] == UNCHANGED, "spelled as users write them"
    found = await synced(cluster, "True", "InStep")
    assert found["status"]["topology"] == f"osmo-pool-{cluster.pool}-topology"
    assert await levels(cluster) == [ZONE["label"], RACK["label"]]
    before = await topology(cluster)

    await keyed(cluster, ZONE, SPINE, RACK)
    await synced(cluster, "True", "InStep")
    assert await levels(cluster) == [ZONE["label"], SPINE["label"], RACK["label"]]
    after = await topology(cluster)
    assert before
    assert after
    assert before["metadata"]["uid"] != after["metadata"]["uid"]

    await cluster.delete(KAI_TOPOLOGIES, after["metadata"]["name"])

    async def back() -> bool:
        restored = await topology(cluster)
        return bool(restored and restored["metadata"]["uid"] != after["metadata"]["uid"])

    await until("a Topology deleted by hand is back", back)

    await keyed(cluster)
    await synced(cluster, "True", "NoTopologyKeys")
    assert await topology(cluster) is None

    await keyed(cluster, RACK)
    await synced(cluster, "True", "InStep")
    await cluster.delete(OSMO_POOLS, cluster.pool)

    async def gone() -> bool:
        return await topology(cluster) is None

    await until("the Topology goes with its Pool", gone)


@pytest.mark.requirement("OSM-08")
async def test_a_topology_of_somebody_else_is_taken_only_when_handed_over(cluster: Cluster) -> None:
    name = f"osmo-pool-{cluster.pool}-topology"
    theirs = {
        "apiVersion": KAI_TOPOLOGIES.api_version,
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": RACK["label"]}]},
    }
    before = await cluster.create(KAI_TOPOLOGIES, theirs)
    await cluster.create(OSMO_POOLS, pool(cluster, RACK))
    await synced(cluster, "False", "ForeignTopology")
    assert await cluster.get(KAI_TOPOLOGIES, name) == before
    label = {"metadata": {"labels": {OSMO_POOL_LABEL: cluster.pool}}}
    await cluster.merge(KAI_TOPOLOGIES, name, label)
    await synced(cluster, "True", "InStep")
    taken = await cluster.get(KAI_TOPOLOGIES, name)
    assert taken["metadata"]["uid"] == before["metadata"]["uid"]
    assert taken["metadata"]["ownerReferences"][0]["kind"] == "Pool"


@pytest.mark.requirement("OSM-02", "OSM-07")
async def test_the_api_server_itself_keeps_wrong_pools_out(cluster: Cluster) -> None:
    other = pool(cluster, ZONE, scheduler="default-scheduler")
    names = (cluster.pool, "backend-1", "default-scheduler", "topology_keys")
    told = await refused(cluster.create(OSMO_POOLS, other), *names)
    assert "webhook" not in told, "it would hold without one"
    await cluster.create(OSMO_POOLS, pool(cluster, ZONE, RACK))
    change = {"spec": {"scheduler": "default-scheduler"}}
    await refused(cluster.merge(OSMO_POOLS, cluster.pool, change), *names)
    host = {"key": "host", "label": "kubernetes.io/hostname"}
    for keys, words in (
        ([ZONE, {**ZONE, "label": "example.com/z"}], ("spec.topology_keys", "each key")),
        ([ZONE, {**ZONE, "key": "az"}], ("spec.topology_keys", "each label")),
        ([{"key": "k", "label": "gpu clique"}], ("spec.topology_keys[0].label", "gpu clique")),
        ([{"key": "k", "label": f"a/{'a' * 64}"}], ("spec.topology_keys[0].label", "63")),
        ([host, ZONE], ("spec.topology_keys", "kubernetes.io/hostname", "last")),
        ([{"key": f"k{n}", "label": f"l{n}"} for n in range(17)], ("spec.topology_keys", "16")),
    ):
        await refused(keyed(cluster, *keys), *words)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"node_selector": {"pool": "-"}}, "spec.node_selector"),
        ({"tolerations": [{"value": "a"}]}, "operator must be Exists"),
        ({"node_selector": {"no label": "a"}}, "no label"),  # of the webhook
    )
    for fields, word in wrong:
        await refused(cluster.merge(OSMO_POOLS, cluster.pool, {"spec": fields}), word)
    stored = await cluster.get(OSMO_POOLS, cluster.pool)
    assert stored["spec"] == UNCHANGED
    mine = {"node_selector": {"pool": "a"}, "tolerations": [{"key": "team", "operator": "Exists"}]}
    await cluster.merge(OSMO_POOLS, cluster.pool, {"spec": mine})
    stored = await cluster.get(OSMO_POOLS, cluster.pool)
    assert stored["spec"] == UNCHANGED | mine


@pytest.mark.requirement("OSM-04", "OSM-06")
async def test_a_workflow_is_rejected_at_submission_in_our_words(cluster: Cluster) -> None:
    asked = workflow(cluster, {"key": "gpu-clique"})
    await refused(cluster.create(OSMO_WORKFLOWS, asked), "spec.pool", cluster.pool)
    await cluster.create(OSMO_POOLS, pool(cluster, ZONE, RACK))
    words = ("spec.resources.default.topology[0].key", "t1", "gpu-clique", "zone, rack")
    await refused(cluster.create(OSMO_WORKFLOWS, asked), *words)
    # Not pruned, though this client asks for no strict validation.
    misspelt = workflow(cluster, topologies=[{"key": "rack"}])
    await refused(cluster.create(OSMO_WORKFLOWS, misspelt), "spec.resources.default.topologies")
    fits = workflow(cluster, {"key": "rack"}, memory="1Gi")
    path = OSMO_WORKFLOWS.path(cluster.namespace)
    await cluster.client.create(path, json.dumps(fits).encode(), {"dryRun": "All"})
    assert await cluster.find(OSMO_WORKFLOWS, "train") is None
    stored = await cluster.create(OSMO_WORKFLOWS, fits)
    assert stored["spec"] == fits["spec"], "stored whole, with what only OSMO knows"
    change = {"spec": {"resources": {"default": {"topology": [{"key": "row"}]}}}}
    await refused(cluster.merge(OSMO_WORKFLOWS, "train", change), "row")


@pytest.mark.requirement("OSM-02", "OSM-06")
@pytest.mark.usefixtures("webhook_down")
async def test_without_webhook_nothing_is_stored_unjudged(cluster: Cluster) -> None:
    other = pool(cluster, ZONE, scheduler="default-scheduler")
    await refused(cluster.create(OSMO_POOLS, other), "default-scheduler")
    for kind, asked in ((OSMO_POOLS, pool(cluster)), (OSMO_WORKFLOWS, workflow(cluster))):
        with pytest.raises(ServerError, match="failed calling webhook"):
            await cluster.create(kind, asked)
    # Jobs of nobody's queue, and everything else, never notice.
    await cluster.create(kinds.CONFIG_MAPS, {"metadata": {"name": "plain"}})


@pytest.mark.requirement("OSM-08")
async def test_giving_up_a_key_in_use_warns_and_is_done(
    cluster: Cluster, playground: Playground, tmp_path: Path
) -> None:
    await cluster.create(OSMO_POOLS, pool(cluster, ZONE, RACK))
    await cluster.create(OSMO_WORKFLOWS, workflow(cluster, {"key": "rack"}))
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(yaml.safe_dump(pool(cluster, ZONE)))
    command = ("kubectl", "--state", str(playground.state), "replace", "-f", str(manifest))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "rackgate_cli", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f'"rack" is used by {cluster.namespace}/train' in done.stderr
    await synced(cluster, "True", "InStep")
    assert await levels(cluster) == [ZONE["label"]]
