"""What `kueuectl` asks for is answered as by Kueue, with positions, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rackgate.api import resources as kinds
from tests.integration.test_visibility import available
from tests.support.cluster import Cluster, until
from tests.support.identities import add_tenant
from tests.support.kueuectl import AnswerError, Kueuectl, Row, kueuectl
from tests.support.objects import POOL_LABEL, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

EMPTY_COUNTS = {"pendingWorkloads": 0, "reservingWorkloads": 0, "admittedWorkloads": 0}
ADMINISTRATOR = "rackgate-batch-admin"


@pytest.fixture
async def admin(playground: Playground, cluster: Cluster) -> AsyncIterator[Kueuectl]:
    """The command of a batch administrator, who may also edit the test's namespace."""
    namespace, name = await add_tenant(cluster)
    group = "rbac.authorization.k8s.io"
    binding: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{cluster.pool}-admin"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ADMINISTRATOR},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    await cluster.create(kinds.CLUSTER_ROLE_BINDINGS, binding)
    await available(cluster)
    async with kueuectl(playground, cluster, (namespace, name)) as command:

        async def allowed() -> bool:
            try:
                await command.list_workloads()
            except AnswerError as error:
                return error.status != 403
            return True

        await until("the administrator has the rights", allowed)
        yield command


async def create_queues(cluster: Cluster, admin: Kueuectl) -> tuple[str, str]:
    """`create resourceflavor`, `clusterqueue` and `localqueue`; returns the last two names."""
    flavor, queue = f"{cluster.pool}-flavor", f"{cluster.pool}-queue"
    await admin.create(kinds.FLAVORS, flavor, {"nodeLabels": {POOL_LABEL: cluster.pool}}, status={})
    cpu = {"name": "cpu", "nominalQuota": "4"}
    spec: Object = {
        "resourceGroups": [
            {"coveredResources": ["cpu"], "flavors": [{"name": flavor, "resources": [cpu]}]}
        ],
        "queueingStrategy": "BestEffortFIFO",
        "namespaceSelector": {},
        "preemption": {},
    }
    await admin.create(kinds.CLUSTER_QUEUES, queue, spec, EMPTY_COUNTS)
    await admin.create(kinds.LOCAL_QUEUES, "queue", {"clusterQueue": queue}, EMPTY_COUNTS)
    for kind, name in (
        (kinds.FLAVORS, flavor),
        (kinds.CLUSTER_QUEUES, queue),
        (kinds.LOCAL_QUEUES, "queue"),
    ):
        cluster.created.append((kind, cluster.namespace if kind.namespaced else None, name))
    return queue, "queue"


async def test_kueuectl_creates_lists_stops_and_resumes(cluster: Cluster, admin: Kueuectl) -> None:
    await cluster.add_node("b1", "r1", "h1", cpu="4")
    queue, local = await create_queues(cluster, admin)
    for name in ("first", "second", "third"):
        await cluster.submit(name, 1)
        await cluster.condition(name, "QuotaReserved", "True" if name == "first" else "False")
    await cluster.bound("first", 1)

    async def listed(*rows: tuple[str, str, str]) -> None:
        """Wait until the command shows these jobs, with status and position."""
        wanted = {Row(job, local, queue, status, position) for job, status, position in rows}

        async def shown() -> bool:
            seen[:] = await admin.list_workloads(page=2)
            return set(seen) == wanted

        seen: list[Row] = []
        await until("the jobs are listed", shown, seen=lambda: seen)
        assert len(seen) == len(wanted)
        assert set(await admin.list_workloads(visibility="v1beta1")) == wanted

    admitted = ("first", "ADMITTED", "")
    await listed(admitted, ("second", "PENDING", "0"), ("third", "PENDING", "1"))

    second = (await cluster.workload_of("second"))["metadata"]["name"]
    await admin.activate(kinds.WORKLOADS, second, active=False)
    await cluster.condition("second", "QuotaReserved", "False", "Suspended")
    await listed(admitted, ("second", "PENDING", ""), ("third", "PENDING", "0"))
    await admin.activate(kinds.WORKLOADS, second, active=True)
    await listed(admitted, ("second", "PENDING", "0"), ("third", "PENDING", "1"))

    await admin.stop(kinds.LOCAL_QUEUES, local, keep_running=True)
    await cluster.condition("second", "QuotaReserved", "False", "Suspended")
    await cluster.bound("first", 1)
    await admin.resume(kinds.LOCAL_QUEUES, local)
    await cluster.condition("second", "QuotaReserved", "False", "WaitingForQuota")
    first = (await cluster.workload_of("first"))["metadata"]["name"]
    with pytest.raises(AnswerError, match="propagationPolicy: Background"):
        await admin.delete_workload(first)  # it would leave the pods of a running job behind
    await admin.stop(kinds.CLUSTER_QUEUES, queue)
    await cluster.condition("first", "Evicted", "True", "ClusterQueueStopped")
    await cluster.condition("first", "QuotaReserved", "False", "Suspended")

    async def deleted() -> bool:
        try:
            await admin.delete_workload(first)
        except AnswerError:
            return False  # its status does not say yet that it has stopped
        return True

    await until("the Workload is deleted", deleted)

    async def gone() -> bool:
        jobs = [await cluster.find(kinds.JOBS, "first"), await cluster.find(kinds.WORKLOADS, first)]
        return jobs == [None, None]

    await until("the job of the deleted Workload is gone, and the Workload", gone)
    await admin.resume(kinds.CLUSTER_QUEUES, queue)
    await cluster.bound("second", 1)
    await listed(("second", "ADMITTED", ""), ("third", "PENDING", "0"))
