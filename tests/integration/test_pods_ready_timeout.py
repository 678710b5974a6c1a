"""Jobs that run out of time: pods that are never ready, a maximum execution time, retention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import RACK, Object, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

LABEL = names.MAX_EXECUTION_TIME_LABEL
RETENTION = {"workloads": {"afterFinished": 1, "afterDeactivatedByKueue": 15}}


def pods_ready_within(timeout_s: int) -> Object:
    requeuing = {"backoffBaseSeconds": 1, "backoffLimitCount": 1}
    return {"timeout": timeout_s, "requeuingStrategy": requeuing}


@pytest.fixture
def impatient(playground: Playground) -> Iterator[None]:
    """An assigner with other settings. To be asked for before `cluster`, with `usefixtures`."""
    settings = {
        "WAIT_FOR_PODS_READY": pods_ready_within(15),
        "OBJECT_RETENTION_POLICIES": RETENTION,
    }
    with playground.assigner_with(settings):
        yield


@pytest.fixture
def impatient_without_retention(playground: Playground) -> Iterator[None]:
    """The same without retention."""
    with playground.assigner_with({"WAIT_FOR_PODS_READY": pods_ready_within(15)}):
        yield


async def add_retention(cluster: Cluster) -> None:
    """The component: the right to delete jobs."""
    for document in install.documents(deploy_dir() / "retention" / "rbac.yaml"):
        role = document["kind"] == "ClusterRole"
        await cluster.create(kinds.CLUSTER_ROLES if role else kinds.CLUSTER_ROLE_BINDINGS, document)


async def gone(cluster: Cluster, kind: Any, name: str) -> None:
    async def absent() -> bool:
        return await cluster.find(kind, name) is None

    await until(f"{kind.kind} {name} is gone", absent)


def evictions(workload: Object) -> dict[tuple[str, str], int]:
    found = workload["status"]["schedulingStats"]["evictions"]
    return {(entry["reason"], entry["underlyingCause"]): entry["count"] for entry in found}


@pytest.mark.requirement("TAS-32", "OPS-11")
@pytest.mark.usefixtures("impatient")
async def test_a_job_whose_pods_are_never_ready_is_tried_again_and_then_given_up(
    cluster: Cluster,
) -> None:
    """There is quota, and no node: its pods stay pending."""
    await add_retention(cluster)
    await cluster.add_queue(topology=False, quota={"cpu": "8"})
    await cluster.submit("stuck", 2)
    workload = await cluster.condition("stuck", "Evicted", "True", "PodsReadyTimeout")
    assert workload["status"]["requeueState"]["count"] == 1
    assert evictions(workload) == {("PodsReadyTimeout", "WaitForStart"): 1}
    name = workload["metadata"]["name"]
    await cluster.event("EvictedDueToPodsReadyTimeout", name)
    reason = "DeactivatedDueToRequeuingLimitExceeded"
    await cluster.condition("stuck", "Evicted", "True", reason)
    workload = await cluster.condition("stuck", "QuotaReserved", "False", "Suspended")
    assert workload["spec"]["active"] is False
    assert "requeueState" not in workload["status"]
    assert evictions(workload)["Deactivated", "RequeuingLimitExceeded"] == 1
    assert (await cluster.get(kinds.JOBS, "stuck"))["spec"]["suspend"] is True
    await used(cluster, "0")
    await cluster.event(f"EvictedDueTo{reason}", name)
    # It is not kept forever: the job goes, and its Workload with it.
    await gone(cluster, kinds.JOBS, "stuck")
    await gone(cluster, kinds.WORKLOADS, name)


@pytest.mark.usefixtures("impatient_without_retention")
async def test_a_team_gets_back_its_quota_from_a_job_whose_pods_never_start(
    cluster: Cluster,
) -> None:
    """One node, which two teams share. The job borrows, and a gate of its user holds its pods."""
    await cluster.add_node("b1", "r1", "h1")
    quota, org = {"cpu": "4"}, f"{cluster.pool}-org"
    await cluster.add_queue("a", quota=quota, cohortName=org)
    await cluster.add_queue("b", quota=quota, flavor_of="a", cohortName=org)
    held = {"schedulingGates": [{"name": "example.com/never"}]}
    await cluster.submit("stuck", 2, queue="a", required=RACK, pod=held)
    await used(cluster, "8", queue="a")
    await cluster.submit("other", 1, queue="b", required=RACK)
    await cluster.condition("other", "QuotaReserved", "False", "WaitingForQuota")

    workload = await cluster.condition("stuck", "Evicted", "True", "PodsReadyTimeout")
    assert workload["status"]["requeueState"]["count"] == 1
    await cluster.bound("other", 1)
    await cluster.condition("stuck", "Requeued", "True", "BackoffFinished")
    await cluster.condition("stuck", "QuotaReserved", "False", "WaitingForQuota")

    # It gets a second chance, and no third one.
    await cluster.delete(kinds.JOBS, "other")
    await cluster.condition("stuck", "Admitted", "True")
    await cluster.submit("next", 2, queue="b", required=RACK)
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")
    reason = "DeactivatedDueToRequeuingLimitExceeded"
    workload = await cluster.condition("stuck", "Evicted", "True", reason)
    await cluster.bound("next", 2)
    await cluster.condition("stuck", "QuotaReserved", "False", "Suspended")
    assert (await cluster.workload_of("stuck"))["spec"]["active"] is False
    await used(cluster, "0", queue="a")
    await used(cluster, "8", queue="b")


@pytest.mark.usefixtures("impatient")
async def test_a_job_runs_for_its_maximum_and_a_finished_one_keeps_no_workload(
    cluster: Cluster,
) -> None:
    await cluster.add_node("b1", "r1", "h1")
    await cluster.add_queue(topology=False, quota={"cpu": "8"})
    for value in ("0", "soon"):
        with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
            await cluster.create(kinds.JOBS, limited("wrong", value))
        assert "not a whole number of seconds" in caught.value.message
    await cluster.create(kinds.JOBS, limited("long", "12"))
    await cluster.bound("long", 1)
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await cluster.merge(kinds.JOBS, "long", {"metadata": {"labels": {LABEL: "9999"}}})
    assert "that is not suspended cannot change" in caught.value.message
    await cluster.submit("done", 1)
    await cluster.bound("done", 1)
    own = (await cluster.workload_of("done"))["metadata"]["name"]
    await cluster.finish("done")
    await gone(cluster, kinds.WORKLOADS, own)
    ended = (await cluster.get(kinds.JOBS, "done"))["status"]["conditions"]
    assert any(entry["type"] == "Complete" and entry["status"] == "True" for entry in ended)
    workload = await cluster.condition("long", "QuotaReserved", "False", "Suspended")
    assert workload["spec"]["maximumExecutionTimeSeconds"] == 12
    assert evictions(workload) == {("Deactivated", "MaximumExecutionTimeExceeded"): 1}
    assert "accumulatedPastExecutionTimeSeconds" not in workload["status"]
    await used(cluster, "0")


def limited(name: str, value: str) -> Object:
    """A Job that may be admitted for so many seconds."""
    found = job(name, 1)
    found["metadata"]["labels"][LABEL] = value
    return found
