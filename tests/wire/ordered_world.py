"""The fake cluster with a JobSet that starts in an order, and whose Jobs are gangs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.gang.link import PER_JOB, child_job_link, run_id
from rackgate.runtime import clock
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object
from tests.support.apiserver_objects import Target
from tests.wire.assigner_world import NAMESPACE
from tests.wire.gangs_world import GANGS, GangWorld
from tests.wire.kinds_world import KindsWorld, child_of, is_over

JOBSETS = kinds.JOBSETS
IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
PAIR: Object = {"gangGroups": [{"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 2}]}


class OrderedWorld(GangWorld, KindsWorld):
    """A world in which a replicatedJob starts when those before it are ready.

    Attributes:
        unready: names of child Jobs whose pods do not become ready.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unready: set[str] = set()

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        status = item["status"]
        if item["metadata"]["name"] in self.unready and "ready" in status:
            status["ready"] = 0
        was_suspended = known is None or known["spec"].get("suspend")
        if was_suspended and not item["spec"].get("suspend"):
            status["startTime"] = rfc3339(clock.now())

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        stored = super()._store(target, item, known)
        if known is None and target.full_name == GANGS.full_name:
            asyncio.get_running_loop().call_soon(self._collect, stored["metadata"])
        return stored

    def _collect(self, gang: Object) -> None:
        """The garbage collector deletes what is created for a Job that is gone already."""
        jobs = {job["metadata"]["uid"] for job in self._objects[kinds.JOBS.full_name].values()}
        owners = {one["uid"] for one in gang.get("ownerReferences", ()) if one["kind"] == "Job"}
        if owners and not owners & jobs and self.gang(gang["name"]) is not None:
            self.remove(GANGS, gang["name"], NAMESPACE)

    def _check_start(self, job: Object) -> None:
        """Pods of these child Jobs may precede their Workload of gangs, as they are held."""
        if PER_JOB not in str(job["spec"].get("template", {}).get("metadata", {})):
            super()._check_start(job)

    def _jobset_step(self, name: str) -> None:
        jobset = self.get(JOBSETS, name, NAMESPACE)
        if jobset is None or jobset["spec"].get("suspend"):
            super()._jobset_step(name)
            return
        for part in jobset["spec"]["replicatedJobs"]:
            for index in range(part["replicas"]):
                child = self.child(name, part["name"], index)
                if child is None:
                    self.put(kinds.JOBS, child_of(jobset, part, index, suspended=False))
                elif child["spec"]["suspend"] and not is_over(child):
                    self._resume(child, part, suspended=False)
            found = [self.child(name, part["name"], index) for index in range(part["replicas"])]
            if not all(child and child["status"].get("ready") for child in found):
                break
        self._count(name)

    def become_ready(self, jobset: str, child: str) -> None:
        """The pods of a child Job are ready, and the next ones start."""
        self.unready.discard(child)
        self.change(kinds.JOBS, child, lambda job: None)
        self._jobset_step(jobset)

    def start_again(self, jobset: str) -> None:
        """The JobSet controller deletes all child Jobs, and makes them again."""
        for child in self.children(jobset):
            self._drop(kinds.JOBS.full_name, f"{NAMESPACE}/{child['metadata']['name']}")
        self._jobset_step(jobset)

    def gang_name(self, child: str) -> str:
        """Name of the Workload of gangs of a child Job."""
        return child_job_link(child, self.job(child)["metadata"]["uid"])

    def add_child_pods(self, jobset: str, child: str, *indexes: int) -> None:
        """Bound pods of a child Job, released under the present admission of its JobSet."""
        found = self.job(child)
        template, uid = found["spec"]["template"]["metadata"], found["metadata"]["uid"]
        workload = self.workload_of(self.of(JOBSETS, jobset)) or {}
        (at,) = [
            condition["lastTransitionTime"]
            for condition in workload["status"]["conditions"]
            if condition["type"] == "Admitted"
        ]
        annotations = {
            **template["annotations"],
            names.GANG_LINK_ANNOTATION: self.gang_name(child),
            names.GANG_RUN_ANNOTATION: run_id(workload["metadata"]["uid"], at),
        }
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": child, "uid": uid}
        for index in indexes:
            meta: dict[str, Any] = {
                "name": f"{child}-{index}",
                "namespace": NAMESPACE,
                "labels": dict(template["labels"]),
                "annotations": annotations,
                "ownerReferences": [{**owner, "controller": True}],
            }
            spec = {"containers": [], "nodeName": "pool-11-1"}
            status = {"phase": "Running"}
            self.put(kinds.PODS, {"metadata": meta, "spec": spec, "status": status})


def ordered(spec: Object | str = PAIR, **more: Any) -> Object:
    """A leader, and then two Jobs of two workers, each of which is a gang."""
    parts = [
        composite.replicated_job("leader", 1),
        composite.replicated_job("workers", 2, replicas=2),
    ]
    text = spec if isinstance(spec, str) else json.dumps(spec)
    parts[1]["template"]["metadata"] = {"annotations": {names.GANG_TEMPLATE_ANNOTATION: text}}
    return composite.jobset("train", parts, queue="plain", **{**IN_ORDER, **more})
