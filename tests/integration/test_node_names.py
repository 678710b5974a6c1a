"""Released pods name their node by field, and the real API server and scheduler take it so."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster
from tests.support.objects import RACK, Object

pytestmark = pytest.mark.integration


def terms(pod: Object) -> list[Object]:
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    found: list[Object] = required["nodeSelectorTerms"]
    return found


def named(pod: Object) -> Object:
    return {"key": "metadata.name", "operator": "In", "values": [pod["spec"]["nodeName"]]}


async def knows_nodes(cluster: Cluster) -> None:
    """The ungater has heard of the nodes; nothing waits for that, so it is tried out."""
    for number in range(4):
        await cluster.submit(f"probe-{number}", 1, required=RACK)
        (pod,) = await cluster.bound(f"probe-{number}", 1)
        if "affinity" in pod["spec"]:
            return
    pytest.fail("four pods in a row do not name their node")


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
    await knows_nodes(cluster)
    await cluster.submit("plain", 4, required=RACK)
    await cluster.submit("picky", 4, required=RACK, pod={"affinity": affinity})
    for pod in await cluster.bound("plain", 4):
        assert terms(pod) == [{"matchFields": [named(pod)]}]
    for pod in await cluster.bound("picky", 4):
        assert terms(pod) == [{**term, "matchFields": [named(pod)]} for term in own]
