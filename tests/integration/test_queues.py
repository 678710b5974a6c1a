"""Queues: quota, order, stop policies, activity and counters."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, RACK, Object, local_queue, topology_object

pytestmark = pytest.mark.integration


async def active(
    cluster: Cluster, name: str, status: str, *words: str, reason: str | None = None
) -> None:
    """Wait for the ClusterQueue's Active condition, its reason and words of its message.

    As long as a flavor or Topology has not been heard of, that is what it tells of.
    """

    found: list[Object] = []

    async def holds() -> bool:
        queue = await cluster.get(kinds.CLUSTER_QUEUES, name)
        conditions = queue.get("status", {}).get("conditions", [])
        found[:] = [entry for entry in conditions if entry["type"] == "Active"]
        return any(
            entry["status"] == status
            and reason in (None, entry["reason"])
            and all(word in entry["message"] for word in words)
            for entry in found
        )

    await until(f"ClusterQueue {name} Active={status}", holds, seen=lambda: found)


@pytest.mark.requirement("TAS-20")
async def test_quota_holds_a_job_that_has_room(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    await cluster.submit("first", 3, required=RACK)
    await cluster.bound("first", 3)
    await cluster.submit("second", 2, required=RACK)
    await cluster.condition("second", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.submit("small", 1, required=RACK)
    await cluster.bound("small", 1)


async def test_strict_fifo_lets_no_one_pass_the_head(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"}, queueingStrategy="StrictFIFO")
    await cluster.submit("first", 3, required=RACK)
    await cluster.bound("first", 3)
    await cluster.submit("head", 2, required=RACK)
    await cluster.condition("head", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.submit("small", 1, required=RACK)
    await cluster.workload_of("small")
    await cluster.delete(kinds.JOBS, "first")
    await cluster.bound("head", 2)
    await cluster.bound("small", 1)


async def test_no_tenant_is_kept_waiting_by_a_head_that_can_never_fit(cluster: Cluster) -> None:
    """Two LocalQueues share a StrictFIFO ClusterQueue; the first asks for more than it has."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"}, queueingStrategy="StrictFIFO")
    await cluster.create(kinds.LOCAL_QUEUES, local_queue("other", f"{cluster.pool}-queue"))
    await cluster.wait_queues_seen()
    await cluster.submit("beyond", 5, required=BLOCK)
    await cluster.condition("beyond", "QuotaReserved", "False", "ExceedsMaxQuota", "(20) > ")
    await cluster.submit("nowhere", 1, required=RACK, pod={"nodeSelector": {"no": "node"}})
    await cluster.condition("nowhere", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.submit("tenant", 1, required=RACK, queue="other")
    await cluster.bound("tenant", 1)

    def grow(queue: Object) -> None:
        queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "24"

    await cluster.replace(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue", grow)
    await cluster.bound("beyond", 5)


async def test_a_higher_priority_goes_first(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    urgent = {
        "apiVersion": names.API_VERSION,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": f"{cluster.pool}-urgent"},
        "value": 1000,
    }
    await cluster.create(kinds.WORKLOAD_PRIORITY_CLASSES, urgent)
    await cluster.submit("running", 4, required=RACK)
    await cluster.bound("running", 4)
    await cluster.submit("normal", 4, required=RACK)
    await cluster.condition("normal", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.submit(
        "urgent", 4, required=RACK, labels={names.PRIORITY_CLASS_LABEL: f"{cluster.pool}-urgent"}
    )
    await cluster.condition("urgent", "QuotaReserved", "False", "WaitingForQuota")

    async def counts() -> bool:
        return bool((await cluster.workload_of("urgent"))["spec"]["priority"] == 1000)

    await until("its class makes it urgent", counts)
    await cluster.delete(kinds.JOBS, "running")
    await cluster.bound("urgent", 4)
    assert await cluster.pods_of("normal") == []


@pytest.mark.requirement("VAL-07", "VAL-08")
@pytest.mark.parametrize(
    ("controller", "kind"),
    [
        (names.MULTIKUEUE_CONTROLLER, "MultiKueue"),
        (names.PROVISIONING_CONTROLLER, "ProvisioningRequest"),
    ],
)
async def test_a_topology_queue_with_an_unsupported_check_is_inactive(
    cluster: Cluster, controller: str, kind: str
) -> None:
    await cluster.add_fx_a()
    check = {
        "apiVersion": names.API_VERSION,
        "kind": "AdmissionCheck",
        "metadata": {"name": f"{cluster.pool}-check"},
        "spec": {"controllerName": controller},
    }
    await cluster.create(kinds.ADMISSION_CHECKS, check)
    strategy = {"admissionChecks": [{"name": f"{cluster.pool}-check"}]}
    await cluster.add_queue(admissionChecksStrategy=strategy)
    words = f"TAS is not supported with a {kind} admission check"
    await active(cluster, f"{cluster.pool}-queue", "False", words)


@pytest.mark.requirement("VAL-10")
async def test_a_queue_waits_for_its_topology(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    name = f"{cluster.pool}-queue"
    await active(cluster, name, "True")
    flavor = {
        "apiVersion": names.API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": f"{cluster.pool}-other"},
        "spec": {
            "nodeLabels": {"test.rackgate.dev/pool": cluster.pool},
            "topologyName": f"{cluster.pool}-late",
        },
    }
    await cluster.create(kinds.FLAVORS, flavor)
    group = {
        "coveredResources": ["cpu"],
        "flavors": [
            {
                "name": f"{cluster.pool}-other",
                "resources": [{"name": "cpu", "nominalQuota": "1000"}],
            }
        ],
    }
    await cluster.merge(kinds.CLUSTER_QUEUES, name, {"spec": {"resourceGroups": [group]}})
    await active(cluster, name, "False", reason="TopologyNotFound")
    await cluster.create(kinds.TOPOLOGIES, topology_object(f"{cluster.pool}-late"))
    await active(cluster, name, "True")


async def test_hold_and_drain_empties_a_queue_and_none_fills_it_again(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    name = f"{cluster.pool}-queue"
    await cluster.merge(kinds.CLUSTER_QUEUES, name, {"spec": {"stopPolicy": "HoldAndDrain"}})

    async def drained() -> bool:
        return await cluster.pods_of("train") == []

    await until("no pod is left", drained)
    await cluster.merge(kinds.CLUSTER_QUEUES, name, {"spec": {"stopPolicy": "None"}})
    await cluster.bound("train", 4)


async def test_queues_count_pending_and_admitted_workloads(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    await cluster.submit("first", 4, required=RACK)
    await cluster.submit("second", 4, required=RACK)

    async def counted() -> bool:
        seen = []
        for kind, name in (
            (kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue"),
            (kinds.LOCAL_QUEUES, "queue"),
        ):
            status = (await cluster.get(kind, name)).get("status", {})
            numbers = [
                status.get(key)
                for key in ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
            ]
            usage = [
                entry["total"]
                for flavor in status.get("flavorsUsage", [])
                for entry in flavor["resources"]
            ]
            seen.append((numbers, usage))
        return seen == [([1, 1, 1], ["16"])] * 2

    await until("both queues say 1 pending, 1 admitted, 16 CPU", counted)
