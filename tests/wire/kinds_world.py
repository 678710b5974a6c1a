"""The fake cluster with what the controllers of JobSet, RayCluster and RayJob would do.

The JobSet controller acts at once, but for its child Jobs, which it resumes a little later; the
RayCluster operator takes two steps to suspend and two to resume, that of RayJobs three and four. So
every phase of a stop is seen.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support import objects
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import NAMESPACE, World
from tests.wire.assigner_world import furnish as furnish_for_jobs

STEP_S = 0.005
_SUSPENDING, _SUSPENDED = "RayClusterSuspending", "RayClusterSuspended"


class KindsWorld(World):
    """A world of Jobs, JobSets, RayClusters and RayJobs.

    Attributes:
        unserved: full names of resources whose CRDs are not installed.
        pods: pods that RayClusters have, by name of the cluster.
        frozen: the operator of RayClusters does nothing until it is thawed.
        waits_in_vain: it makes no pods, since it still expects to see some that are deleted by
            now; it will not look again before the cluster changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unserved: set[str] = set()
        self.pods: dict[str, int] = {}
        self.frozen = False
        self.waits_in_vain = False
        self._timers: set[asyncio.TimerHandle] = set()

    async def stop(self) -> None:
        """Let no timer outlive the world."""
        for timer in self._timers:
            timer.cancel()
        await super().stop()

    def uninstall(self, resource: Resource) -> None:
        """Take a CRD away, and all its objects with it."""
        for key in list(self._objects.get(resource.full_name, {})):
            self._drop(resource.full_name, key)
        self.unserved.add(resource.full_name)
        for stream in [s for s in self.streams if s.target.full_name == resource.full_name]:
            stream.end()

    # What the API server does.

    def _authenticate(self, seen: Request) -> None:
        super()._authenticate(seen)
        if Target.parse(seen.path).full_name in self.unserved:
            raise RejectedRequest(
                404, "NotFound", "the server could not find the requested resource"
            )

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        act = {
            kinds.JOBSETS.full_name: self._jobset_stored,
            kinds.RAY_CLUSTERS.full_name: self._cluster_stored,
            kinds.RAY_JOBS.full_name: self._ray_job_stored,
        }.get(target.full_name)
        if act is None:
            return super()._store(target, item, known)
        item = copy.deepcopy(item)
        running = not item["spec"].get("suspend", False)
        is_part = bool(item["metadata"].get("ownerReferences"))
        if running and not is_part and (known is None or known["spec"].get("suspend")):
            self._check_start(item)
        self._check_templates(target, item, known)
        stored = super()._store(target, item, known)
        act(stored["metadata"]["name"])
        return stored

    def _check_templates(self, target: Target, item: Object, known: Object | None) -> None:
        """JobSet refuses other templates unless it is, or is being, suspended."""
        if target.full_name != kinds.JOBSETS.full_name or known is None:
            return
        suspended = known["spec"].get("suspend") or item["spec"].get("suspend")
        same = known["spec"]["replicatedJobs"] == item["spec"]["replicatedJobs"]
        if not suspended and not same:
            raise RejectedRequest(403, "Forbidden", "spec.replicatedJobs: field is immutable")

    def _later(self, act: Any, *given: Any) -> None:
        timer = asyncio.get_running_loop().call_later(STEP_S, act, *given)
        self._timers.add(timer)

    # What the JobSet controller does.

    def _jobset_stored(self, name: str) -> None:
        self._later(self._jobset_step, name)

    def _jobset_step(self, name: str) -> None:
        jobset = self.get(kinds.JOBSETS, name, NAMESPACE)
        if jobset is None or self.ended(jobset):
            return
        suspended = bool(jobset["spec"].get("suspend"))
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                child = self.child(name, replicated["name"], index)
                if child is None:
                    self.put(kinds.JOBS, child_of(jobset, replicated, index, suspended))
                elif child["spec"]["suspend"] != suspended and not is_over(child):
                    self._resume(child, replicated, suspended)
        self._count(name)

    def _resume(self, child: Object, replicated: Object, suspended: bool) -> None:
        changed = copy.deepcopy(child)
        changed["spec"]["suspend"] = suspended
        if not suspended:
            wanted = replicated["template"]["spec"]["template"]
            _merge(changed["spec"]["template"], wanted)
        self.put(kinds.JOBS, changed)

    def _count(self, name: str) -> None:
        """Write how many child Jobs are where."""
        jobset = copy.deepcopy(self.get(kinds.JOBSETS, name, NAMESPACE))
        assert jobset is not None
        states = []
        for replicated in jobset["spec"]["replicatedJobs"]:
            found = [job for job in self.children(name) if _part(job) == replicated["name"]]
            ready = sum(job["status"].get("ready", 0) > 0 for job in found)
            done = sum(is_over(job) for job in found)
            state = {"name": replicated["name"], "ready": ready, "succeeded": done, "failed": 0}
            states.append({**state, "active": ready, "suspended": 0})
        status = {**jobset.get("status", {}), "replicatedJobsStatus": states}
        if status != jobset.get("status"):
            self.put(kinds.JOBSETS, {**jobset, "status": status})

    def children(self, name: str) -> list[Object]:
        """Child Jobs of a JobSet."""
        jobs = self._objects.get(kinds.JOBS.full_name, {}).values()
        label = names.JOBSET_NAME_LABEL
        return [job for job in jobs if job["metadata"].get("labels", {}).get(label) == name]

    def child(self, name: str, part: str, index: int) -> Object | None:
        """One child Job of a JobSet."""
        return self.get(kinds.JOBS, f"{name}-{part}-{index}", NAMESPACE)

    def succeed(self, name: str, part: str, index: int) -> None:
        """A child Job succeeds."""
        self.complete(f"{name}-{part}-{index}")
        self._count(name)

    # What the RayCluster operator does.

    def _cluster_stored(self, name: str) -> None:
        self._later(self._cluster_step, name)

    def _cluster_step(self, name: str) -> None:
        cluster = copy.deepcopy(self.get(kinds.RAY_CLUSTERS, name, NAMESPACE))
        if cluster is None:
            self.pods.pop(name, None)
            return
        if self.frozen:
            self._later(self._cluster_step, name)
            return
        status = cluster.setdefault("status", {})
        flags = {c["type"]: c["status"] == "True" for c in status.get("conditions", [])}
        suspend = bool(cluster["spec"].get("suspend"))
        if flags.get(_SUSPENDING):
            self.pods[name] = 0
            flags = {_SUSPENDING: False, _SUSPENDED: True}
        elif flags.get(_SUSPENDED):
            flags = {_SUSPENDING: False, _SUSPENDED: suspend}
        else:
            flags = {_SUSPENDING: suspend, _SUSPENDED: False}
            self.waits_in_vain &= names.RECONCILE_REQUESTED_ANNOTATION not in cluster[
                "metadata"
            ].get("annotations", {})
            if not suspend and not self.waits_in_vain:
                self.pods[name] = 1 + _workers(cluster)
        count = self.pods.get(name, 0)
        flags["HeadPodReady"] = count > 0
        if suspend and not count:
            status["state"] = "suspended"
        elif count:
            status["state"] = "ready"
        status["readyWorkerReplicas"] = max(0, count - 1)
        status["conditions"] = [
            {"type": type_, "status": str(value), "reason": type_} for type_, value in flags.items()
        ]
        self.put(kinds.RAY_CLUSTERS, cluster)

    # What the RayJob operator does.

    def _ray_job_stored(self, name: str) -> None:
        self._later(self._ray_job_step, name)

    def _ray_job_step(self, name: str) -> None:
        job = copy.deepcopy(self.get(kinds.RAY_JOBS, name, NAMESPACE))
        if job is None:
            self._drop_ray_cluster(name)
            return
        status = job.setdefault("status", {})
        state, suspend = status.get("jobDeploymentStatus", ""), bool(job["spec"].get("suspend"))
        following = {
            "": "Initializing",
            "Initializing": "Suspending" if suspend else "Running",
            "Running": "Suspending" if suspend else "Running",
            "Suspending": "Suspended",
            "Suspended": "Suspended" if suspend else "",
        }[state]
        if following == "Running" and state != "Running":
            self.put(kinds.RAY_CLUSTERS, ray_cluster_of(job))
        if state == "Suspending":
            self._drop_ray_cluster(name)
        if following != state:
            status["jobDeploymentStatus"] = following
            self.put(kinds.RAY_JOBS, job)

    def _drop_ray_cluster(self, name: str) -> None:
        if self.get(kinds.RAY_CLUSTERS, f"{name}-cluster", NAMESPACE) is not None:
            self.delete(kinds.RAY_CLUSTERS, f"{name}-cluster")
        self.pods.pop(f"{name}-cluster", None)

    # Invariants.

    def _check_workload(self, workload: Object) -> None:
        super()._check_workload(workload)
        owner = workload["metadata"].get("ownerReferences", [{}])[0]
        over = self.ended(workload)
        if over or workload.get("status", {}).get("admission"):
            return
        name = owner.get("name", "")
        if owner.get("kind") == "JobSet":
            runs = any(job["status"].get("active") for job in self.children(name))
        else:
            cluster = f"{name}-cluster" if owner.get("kind") == "RayJob" else name
            is_ray = owner.get("kind") in ("RayCluster", "RayJob")
            runs = is_ray and self.pods.get(cluster, 0) > 0
        if runs:
            self.broken_rules.append(f"quota of {name} was released while it runs")

    def ended(self, item: Object) -> bool:
        """Whether a JobSet or Workload is over."""
        ends = ("Completed", "Failed", "Finished")
        found = item.get("status", {}).get("conditions", [])
        return any(c["type"] in ends and c["status"] == "True" for c in found)

    # What tests do.

    def add(self, resource: Resource, manifest: Object) -> Object:
        """A job as it is stored after the webhook suspended it."""
        manifest["metadata"]["namespace"] = NAMESPACE
        manifest["spec"]["suspend"] = True
        return self.put(resource, manifest)

    def of(self, resource: Resource, name: str) -> Object:
        """An object as stored."""
        found = self.get(resource, name, NAMESPACE)
        assert found is not None, f"no {resource.kind} {name}"
        return found

    def state(self, resource: Resource, name: str, type_: str) -> tuple[str, str]:
        """Status and reason of a condition of a job's Workload; empty when absent."""
        found = self.workload_of(self.of(resource, name)) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    def is_running(self, resource: Resource, name: str) -> bool:
        """Whether a job was started."""
        return self.of(resource, name)["spec"]["suspend"] is False

    def holds_quota(self, resource: Resource, name: str) -> bool:
        """Whether a job's Workload has an admission."""
        found = self.workload_of(self.of(resource, name)) or {}
        return "admission" in found.get("status", {})


def furnish(world: World, **queue: Any) -> None:
    """As for Jobs, with memory: KubeRay's own containers ask for some."""
    furnish_for_jobs(world, **queue)
    quota = {"cpu": "64", "memory": "64Gi"}
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "tas", quota, **queue))
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("plain", "plain", quota))


def ray_cluster_of(job: Object) -> Object:
    """The RayCluster as KubeRay makes it: with all labels and annotations of the RayJob."""
    meta = job["metadata"]
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": meta["name"], "uid": meta["uid"]}
    labels = {**meta.get("labels", {}), names.RAY_ORIGIN_KIND_LABEL: names.RAY_JOB_KIND}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": f"{meta['name']}-cluster",
            "namespace": NAMESPACE,
            "labels": labels,
            "annotations": dict(meta.get("annotations", {})),
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": copy.deepcopy(job["spec"]["rayClusterSpec"]),
    }


def child_of(jobset: Object, replicated: Object, index: int, suspended: bool) -> Object:
    """A child Job as the JobSet controller makes it."""
    name = jobset["metadata"]["name"]
    labels = {
        names.JOBSET_NAME_LABEL: name,
        names.REPLICATED_JOB_LABEL: replicated["name"],
        names.JOB_INDEX_LABEL: str(index),
    }
    spec = copy.deepcopy(replicated["template"]["spec"])
    _merge(spec["template"], {"metadata": {"labels": labels}})
    spec["suspend"] = suspended
    owner = {
        "apiVersion": kinds.JOBSETS.api_version,
        "kind": kinds.JOBSETS.kind,
        "name": name,
        "uid": jobset["metadata"]["uid"],
        "controller": True,
    }
    return {
        "metadata": {
            "name": f"{name}-{replicated['name']}-{index}",
            "namespace": NAMESPACE,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _merge(have: Object, wanted: Object) -> None:
    """Merge a template into another, as the JobSet controller does: nothing is taken out."""
    meta, spec = have.setdefault("metadata", {}), have.setdefault("spec", {})
    for holder, part, keys in (
        (meta, wanted.get("metadata", {}), ("labels", "annotations")),
        (spec, wanted.get("spec", {}), ("nodeSelector",)),
    ):
        for key in keys:
            if key in part:
                holder[key] = {**holder.get(key, {}), **part[key]}
    for key in ("tolerations", "schedulingGates"):
        for entry in wanted.get("spec", {}).get(key, []):
            if entry not in spec.setdefault(key, []):
                spec[key].append(entry)


def is_over(job: Object) -> bool:
    found = job.get("status", {}).get("conditions", [])
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in found)


def _part(job: Object) -> str:
    return str(job["metadata"]["labels"][names.REPLICATED_JOB_LABEL])


def _workers(cluster: Object) -> int:
    groups = cluster["spec"].get("workerGroupSpecs", [])
    return sum(group.get("replicas", 0) * group.get("numOfHosts", 1) for group in groups)
