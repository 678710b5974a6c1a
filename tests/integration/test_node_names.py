"""Released pods name their node by field, and the real API server and scheduler take it so."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object

pytestmark = pytest.mark.integration


def terms(pod: Object) -> list[Object]:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found: list[Object] = required.get("nodeSelectorTerms", [])
    return found


def named(pod: Object) -> Object:
    return {"key": "metadata.name", "operator": "In", "values": [pod["spec"]["nodeName"]]}


async def naming(cluster: Cluster, name: str, **more: Any) -> list[Object]:
    """Four pods of a Job, each of which names some node by field.

    The ungater leaves that out while it cannot be sure, as when it has just begun to follow nodes,
    or does so anew. Nothing tells when that is over, so further Jobs try it out.
    """
    numbers = itertools.count()

    async def all_named() -> list[Object]:
        job = f"{name}-{next(numbers)}"
        await cluster.submit(job, 4, required=RACK, **more)
        pods = await cluster.bound(job, 4)
        if all(any("matchFields" in term for term in terms(pod)) for pod in pods):
            return pods
        await cluster.delete(kinds.JOBS, job)
        return []

    return await until(f"pods of a Job {name} name their nodes", all_named)


@pytest.mark.requirement("UNG-08")
async def test_a_pod_names_its_node_beside_its_label_and_its_own_demands(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    own = [
        {"matchExpressions": [{"key": RACK, "operator": "Exists"}]},
        {"matchExpressions": [{"key": "never", "operator": "Exists"}]},
    ]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}
        }
    }
    for pod in await naming(cluster, "plain"):
        assert terms(pod) == [{"matchFields": [named(pod)]}]
    for pod in await naming(cluster, "picky", pod={"affinity": affinity}):
        assert terms(pod) == [{**term, "matchFields": [named(pod)]} for term in own]
