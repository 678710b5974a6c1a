"""Admission checks on a real control plane; the test is their controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.runtime import clock
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import RACK, Object
from tests.support.reviewed import reviewed

pytestmark = pytest.mark.integration

MANAGER = "example-check-controller"


async def activate(cluster: Cluster, name: str) -> None:
    """The controller of a check says that it handles it."""
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Handled",
        "message": "",
        "lastTransitionTime": rfc3339(clock.now()),
    }
    status = {"status": {"conditions": [condition]}}
    await cluster.merge(kinds.ADMISSION_CHECKS, name, status, "status")


async def add_queue(
    cluster: Cluster, queue: str = "queue", *, topology: bool = True, cpu: int = 16, **spec: Any
) -> str:
    """A queue with one check, which is not active yet; returns the name of the check."""
    name = f"{cluster.pool}-check"
    check = {
        "apiVersion": names.API_VERSION,
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": "example.com/check"},
    }
    await cluster.create(kinds.ADMISSION_CHECKS, check)
    strategy = {"admissionChecks": [{"name": name}]}
    await cluster.add_queue(
        queue,
        quota={"cpu": str(cpu)},
        topology=topology,
        admissionChecksStrategy=strategy,
        **spec,
    )
    return name


async def answer(cluster: Cluster, job: str, check: str, state: str, **more: Any) -> None:
    """The controller of a check answers, as the manager of its own fields."""
    own = await cluster.workload_of(job)
    meta = own["metadata"]
    found = {
        "name": check,
        "state": state,
        "message": f"it is {state}",
        "lastTransitionTime": rfc3339(clock.now()),
        **more,
    }
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "status": {"admissionChecks": [found]},
    }
    path = kinds.WORKLOADS.path(meta["namespace"], meta["name"], "status")
    await reviewed(lambda: cluster.client.apply(path, json.dumps(body).encode(), MANAGER))


async def asked(cluster: Cluster, job: str, check: str) -> Object:
    """Wait until a Job has quota, and its check is asked; returns the Workload."""

    async def holds() -> Object | None:
        own = await cluster.workload_of(job)
        status = own.get("status", {})
        true = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
        states = {s["name"]: s["state"] for s in status.get("admissionChecks", [])}
        asked = "QuotaReserved" in true and "Evicted" not in true
        return own if asked and states == {check: "Pending"} else None

    found = await until(f"the check of {job} is asked", holds)
    assert found is not None
    return found


@pytest.mark.parametrize("topology", [True, False], ids=["topology", "quota alone"])
async def test_a_job_runs_while_its_check_is_ready(cluster: Cluster, topology: bool) -> None:
    await cluster.add_fx_a()
    check = await add_queue(cluster, topology=topology)
    wanted = {"required": RACK} if topology else {}
    await cluster.submit("train", 3, **wanted)
    await cluster.condition("train", "QuotaReserved", "False", "Misconfigured", "is inactive")
    await activate(cluster, check)
    own = await asked(cluster, "train", check)
    (part,) = own["status"]["admission"]["podSetAssignments"]
    assert part.get("delayedTopologyRequest") == ("Pending" if topology else None)
    await cluster.condition("train", "Admitted", "False", "UnsatisfiedAdmissionChecks")
    # Another Job of the queue is decided meanwhile: it shows that the first one holds its quota.
    await cluster.submit("other", 2, **wanted)
    await cluster.condition("other", "QuotaReserved", "False", "WaitingForQuota")
    assert await cluster.pods_of("train") == []
    (podset,) = own["spec"]["podSets"]
    update = {"name": "main", "labels": {"paid": "yes"}, "annotations": {"request": "one"}}
    await answer(cluster, "train", check, "Ready", podSetUpdates=[update])
    pods = await cluster.bound("train", 3)
    assert {pod["metadata"]["labels"]["paid"] for pod in pods} == {"yes"}
    assert {pod["metadata"]["annotations"]["request"] for pod in pods} == {"one"}
    await cluster.condition("train", "Admitted", "True", "Admitted")

    # It is asked for again: the job stops, and nothing that was added stays.
    await answer(cluster, "train", check, "Retry", requeueAfterSeconds=2)
    await cluster.condition("train", "Evicted", "True", "AdmissionCheck")
    await asked(cluster, "other", check)
    job = await cluster.get(kinds.JOBS, "train")
    assert (job["spec"]["suspend"], job["spec"]["template"]) == (True, podset["template"])
    await cluster.condition("train", "Requeued", "True", "BackoffFinished")
    own = await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")
    assert own["status"]["admissionChecks"][0]["retryCount"] == 1
    assert "podSetUpdates" not in own["status"]["admissionChecks"][0]

    # The other one is rejected, and does not come back before its user says so.
    await answer(cluster, "other", check, "Rejected")
    own = await cluster.condition("other", "Evicted", "True", "DeactivatedDueToAdmissionCheck")
    await cluster.event("AdmissionCheckRejected", own["metadata"]["name"])
    await asked(cluster, "train", check)
    own = await cluster.condition("other", "QuotaReserved", "False")
    assert own["spec"]["active"] is False
    await answer(cluster, "train", check, "Ready")
    pods = await cluster.bound("train", 3)
    assert all("paid" not in pod["metadata"]["labels"] for pod in pods)
    await cluster.finish("train")
    await cluster.condition("train", "Finished", "True", "Succeeded")
    await cluster.merge(kinds.WORKLOADS, own["metadata"]["name"], {"spec": {"active": True}})
    await asked(cluster, "other", check)
    await answer(cluster, "other", check, "Ready")
    await cluster.bound("other", 2)


async def test_a_check_that_answers_late_keeps_no_quota_from_the_team_that_lends_it(
    cluster: Cluster,
) -> None:
    """The queue of team a has a check. It borrows from team b, which has none and reclaims."""
    await cluster.add_fx_a()
    org, reclaim = f"{cluster.pool}-org", {"reclaimWithinCohort": "Any"}
    check = await add_queue(cluster, "a", cpu=8, cohortName=org)
    await activate(cluster, check)
    await cluster.add_queue(
        "b", quota={"cpu": "8"}, flavor_of="a", cohortName=org, preemption=reclaim
    )
    await cluster.submit("train", 4, queue="a", required=RACK)
    await asked(cluster, "train", check)

    # While it waits it is preempted like any other. The answer comes after that.
    await cluster.submit("own", 2, queue="b", required=RACK)
    await cluster.bound("own", 2)
    await cluster.condition("train", "Preempted", "True", "InCohortReclamation")
    await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")
    await answer(cluster, "train", check, "Ready")
    await cluster.delete(kinds.JOBS, "own")
    await asked(cluster, "train", check)
    assert await cluster.pods_of("train") == []

    # A team that would have to borrow itself waits. Retry and Rejected let it in.
    await cluster.submit("more", 4, queue="b", required=RACK)
    await cluster.condition("more", "QuotaReserved", "False", "WaitingForQuota")
    await answer(cluster, "train", check, "Retry", requeueAfterSeconds=1)
    await cluster.condition("train", "Evicted", "True", "AdmissionCheck")
    await cluster.bound("more", 4)
    await cluster.condition("train", "Requeued", "True", "BackoffFinished")
    await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.delete(kinds.JOBS, "more")
    await asked(cluster, "train", check)
    await cluster.submit("last", 4, queue="b", required=RACK)
    await cluster.condition("last", "QuotaReserved", "False", "WaitingForQuota")
    await answer(cluster, "train", check, "Rejected")
    await cluster.bound("last", 4)
    await cluster.condition("train", "Evicted", "True", "DeactivatedDueToAdmissionCheck")
    await cluster.condition("train", "QuotaReserved", "False", "Suspended")
    await used(cluster, "0", queue="a")
