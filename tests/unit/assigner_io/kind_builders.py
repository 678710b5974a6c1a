"""JobSets, their child Jobs and RayClusters as the watches decode them, and their Workloads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rackgate.api import names
from rackgate.features import Features
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.jobset.wire import JobSet
from rackgate.jobframework.raycluster.wire import RayCluster
from rackgate.jobframework.registry import JOB, JOBSET, RAYCLUSTER
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.patches import workload_body
from rackgate_assigner.jobs.state import JobState, Priority, read_job_state, workload_name_of
from rackgate_assigner.watches import decode_workload
from tests.support import composite_jobs as composite
from tests.unit.assigner_io.builders import AT, UID

TAS: dict[str, Any] = {"levels": [], "slices": []}


def jobset(
    parts: Sequence[Mapping[str, Any]] = (),
    *,
    suspend: bool = True,
    started: bool = False,
    states: Mapping[str, Mapping[str, int]] | None = None,
    ended: str = "",
    restarts: int = 0,
    **spec: Any,
) -> JobSet:
    """A JobSet of these replicatedJobs, by default of one with two Jobs of three pods."""
    found = list(parts) or [composite.replicated_job("workers", 3, replicas=2)]
    body = composite.jobset("train", [dict(part) for part in found], suspend=suspend, **spec)
    conditions = [{"type": ended, "status": "True", "message": "so it ended"}] if ended else []
    body["status"] = {
        "conditions": conditions,
        "restartsCountTowardsMax": restarts,
        "replicatedJobsStatus": [{"name": k, **counts} for k, counts in (states or {}).items()],
    }
    return JOBSET.decode(_stored(body, started=started))


def child(
    index: int = 0,
    *,
    template: Mapping[str, Any] | None = None,
    suspend: bool = True,
    rest: bool = True,
    deleted: bool = False,
    finished: bool = False,
    part: str = "workers",
) -> Job:
    """A child Job of the JobSet."""
    conditions = [{"type": "Suspended", "status": str(rest)}]
    if finished:
        conditions.append({"type": "Complete", "status": "True"})
    body = {
        "metadata": {
            "name": f"train-{part}-{index}",
            "namespace": "ns",
            "uid": f"child-{index}",
            "labels": {names.REPLICATED_JOB_LABEL: part, names.QUEUE_LABEL: "queue"},
            "deletionTimestamp": AT if deleted else None,
            "ownerReferences": [
                {
                    "apiVersion": "jobset.x-k8s.io/v1alpha2",
                    "kind": "JobSet",
                    "name": "train",
                    "uid": UID,
                    "controller": True,
                }
            ],
        },
        "spec": {"suspend": suspend, "template": dict(template or composite.pod_template("1"))},
        "status": {"startTime": AT, "active": 0 if rest else 3, "conditions": conditions},
    }
    return JOB.decode(json.dumps(body).encode())


def cluster(
    groups: Sequence[Mapping[str, Any]] = (),
    *,
    suspend: bool = True,
    started: bool = False,
    autoscaling: bool = False,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> RayCluster:
    """A RayCluster of these worker groups, by default of one with two workers."""
    found = [dict(group) for group in groups] or [composite.worker_group("small", 2)]
    body = composite.raycluster("train", found, autoscaling=autoscaling, suspend=suspend, **spec)
    body["status"] = dict(status or {})
    return RAYCLUSTER.decode(_stored(body, started=started))


def ray_status(ready: int = 0, **flags: bool) -> dict[str, Any]:
    """A status with these conditions, and so many ready workers."""
    conditions = [{"type": name, "status": str(value)} for name, value in flags.items()]
    return {"readyWorkerReplicas": ready, "conditions": conditions}


def own_workload(
    of: JobLike,
    *,
    admitted: bool = True,
    topology: bool = False,
    elastic: bool = False,
    conditions: Mapping[str, str] | None = None,
    reclaimable: Mapping[str, int] | None = None,
) -> Workload:
    """The Workload of a job, as the assigner makes it; `conditions` maps types to reasons."""
    body = workload_body(of, workload_name_of(of), Priority(), elastic=elastic)
    body["metadata"] |= {"uid": "w", "resourceVersion": "9"}
    held = {"Admitted": "Admitted"} if admitted else {}
    status: dict[str, Any] = {
        "conditions": [
            {"type": type_, "status": "True", "reason": reason, "message": f"{reason} it is"}
            for type_, reason in ({**held, **(conditions or {})}).items()
        ],
        "reclaimablePods": [
            {"name": name, "count": count} for name, count in (reclaimable or {}).items()
        ],
    }
    if admitted:
        assignments = [
            {"name": podset["name"], "count": podset["count"], "flavors": {"cpu": "tas"}}
            | ({"topologyAssignment": TAS} if topology else {})
            for podset in body["spec"]["podSets"]
        ]
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": assignments}
    return decode_workload(json.dumps({**body, "status": status}).encode())


def facts(
    of: JobLike,
    own: Workload | None = None,
    parts: Sequence[Job] = (),
    gates: Mapping[str, bool] | None = None,
) -> JobState:
    """What the controller finds out about both before it asks for a step."""
    return read_job_state(of, own, Priority(), children=parts, features=Features.of(gates))


def _stored(body: dict[str, Any], *, started: bool) -> bytes:
    body["metadata"] |= {"namespace": "ns", "uid": UID, "resourceVersion": "7"}
    if started:
        body["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "some-workload"}
    return json.dumps(body).encode()
