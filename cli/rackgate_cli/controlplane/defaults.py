"""The objects of a new playground: simulated nodes in blocks and racks, one flavor, one queue."""

from __future__ import annotations

from typing import Any, Final

from rackgate.api import names

BLOCK_LABEL: Final = "cloud.provider.com/topology-block"
RACK_LABEL: Final = "cloud.provider.com/topology-rack"
NODE_GROUP_LABEL: Final = "cloud.provider.com/node-group"
NODE_GROUP: Final = "tas"
NODES_PER_RACK: Final = 8
QUEUE: Final = "default"  # both queues have this name
QUEUE_NAMESPACE: Final = "default"  # of the LocalQueue
RACKS_PER_BLOCK: Final = 4
PER_NODE: Final = {"cpu": 8, "memory": 32, "nvidia.com/gpu": 8}
_PODS_PER_NODE: Final = "110"

Document = dict[str, Any]


def node_documents(count: int) -> list[Document]:
    """Return `count` simulated nodes, filled rack by rack and block by block.

    64 of them are 2 blocks x 4 racks x 8 nodes. A node's name is its domain: "b2-r4-n8" is the
    last one. Rack labels repeat from block to block, as in production clusters.
    """
    per_block = NODES_PER_RACK * RACKS_PER_BLOCK
    return [
        _node(
            f"b{index // per_block + 1}",
            f"r{index % per_block // NODES_PER_RACK + 1}",
            f"n{index % NODES_PER_RACK + 1}",
        )
        for index in range(count)
    ]


def _node(block: str, rack: str, node: str) -> Document:
    name = f"{block}-{rack}-{node}"
    room = {
        "cpu": str(PER_NODE["cpu"]),
        "memory": f"{PER_NODE['memory']}Gi",
        "nvidia.com/gpu": str(PER_NODE["nvidia.com/gpu"]),
        "pods": _PODS_PER_NODE,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                BLOCK_LABEL: block,
                RACK_LABEL: rack,
                NODE_GROUP_LABEL: NODE_GROUP,
                names.HOSTNAME_LABEL: name,
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"allocatable": room, "capacity": room},
    }


def queue_documents(nodes: int) -> list[Document]:
    """Return the Topology, the flavor and the queues whose quota is all of `nodes` nodes."""
    quota = {
        "cpu": str(PER_NODE["cpu"] * nodes),
        "memory": f"{PER_NODE['memory'] * nodes}Gi",
        "nvidia.com/gpu": str(PER_NODE["nvidia.com/gpu"] * nodes),
    }
    levels = (BLOCK_LABEL, RACK_LABEL, names.HOSTNAME_LABEL)
    flavor = {
        "name": "tas",
        "resources": [{"name": key, "nominalQuota": value} for key, value in quota.items()],
    }
    return [
        _own("Topology", "default", {"levels": [{"nodeLabel": level} for level in levels]}),
        _own(
            "ResourceFlavor",
            "tas",
            {"nodeLabels": {NODE_GROUP_LABEL: NODE_GROUP}, "topologyName": "default"},
        ),
        _own(
            "ClusterQueue",
            QUEUE,
            {
                "namespaceSelector": {},
                "resourceGroups": [{"coveredResources": list(quota), "flavors": [flavor]}],
            },
        ),
        _own("LocalQueue", QUEUE, {"clusterQueue": QUEUE}, namespace=QUEUE_NAMESPACE),
    ]


def _own(kind: str, name: str, spec: Document, namespace: str | None = None) -> Document:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
