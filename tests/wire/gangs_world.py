"""The fake cluster with Workloads of gangs: applies of owners, and the garbage collector."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import GANG_SCHEDULING, WORKLOAD_REV_N
from rackgate.gang.link import run_id
from rackgate_assigner.assigner import Assigner
from tests.support import objects
from tests.support.apiserver import Object
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import NAMESPACE, World, assigner, furnish, settings

GATES = {GANG_SCHEDULING: True, WORKLOAD_REV_N: True}
GANGS = kinds.GANG_WORKLOADS


class GangWorld(World):
    """A world of Jobs with gangs. No pod may exist before the Workload of gangs that it names.

    Attributes:
        ready: whether pods of running Jobs are ready, as the Job controller counts them.
        unseen: names of pods that no watch shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.unseen: set[str] = set()

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        if not self.ready and "ready" in item["status"]:
            item["status"]["ready"] = 0

    def _publish(self, kind: str, full_name: str, item: Object) -> None:
        if full_name != kinds.PODS.full_name or item["metadata"]["name"] not in self.unseen:
            super()._publish(kind, full_name, item)

    def _apply(self, target: Target, known: Object, patch: Object, manager: str) -> Object:
        owners = patch["metadata"].get("ownerReferences")
        if target.full_name != GANGS.full_name or owners is None:
            return super()._apply(target, known, patch, manager)
        if patch["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise RejectedRequest(409, "Conflict", "the object has been modified")
        changed = copy.deepcopy(known)
        kept = {owner["uid"]: owner for owner in known["metadata"].get("ownerReferences", [])}
        kept.update({owner["uid"]: owner for owner in owners})
        changed["metadata"]["ownerReferences"] = list(kept.values())
        return self._store(target, changed, known)

    def _drop(self, full_name: str, key: str) -> None:
        gone = self._objects[full_name][key]["metadata"]["uid"]
        super()._drop(full_name, key)
        for gang in self.gangs():
            owners = gang["metadata"].get("ownerReferences", [])
            if owners and all(owner["uid"] == gone for owner in owners):
                self.remove(GANGS, gang["metadata"]["name"], NAMESPACE)

    def _check_start(self, job: Object) -> None:
        super()._check_start(job)
        template = job["spec"].get("template", {"spec": {}})  # a JobSet has several
        link = template.get("metadata", {}).get("annotations", {}).get(names.GANG_LINK_ANNOTATION)
        gates = [gate["name"] for gate in template["spec"].get("schedulingGates", [])]
        if link and self.get(GANGS, link, NAMESPACE) is None:
            self.broken_rules.append(f"pods of {job['metadata']['name']} precede their gangs")
        managed = names.QUEUE_LABEL in job["metadata"].get("labels", {})
        if link and managed and names.GANG_GATE not in gates:
            self.broken_rules.append(f"pods of {job['metadata']['name']} are not held")

    def gangs(self) -> list[Object]:
        """All Workloads of gangs."""
        return list(self._objects.get(GANGS.full_name, {}).values())

    def gang(self, name: str) -> Object | None:
        """A Workload of gangs."""
        return self.get(GANGS, name, NAMESPACE)

    def gang_of(self, job: str) -> Object | None:
        """The Workload of gangs that Rackgate made for a Job."""
        uid = self.job(job)["metadata"]["uid"]
        for gang in self.gangs():
            if any(owner["uid"] == uid for owner in gang["metadata"].get("ownerReferences", [])):
                return gang
        return None

    def describe(self, name: str, spec: Object, **metadata: Any) -> Object:
        """A Workload of gangs that a user writes."""
        return self.put(
            GANGS,
            {
                "apiVersion": GANGS.api_version,
                "kind": GANGS.kind,
                "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
                "spec": spec,
            },
        )

    def submit_gang(
        self,
        name: str,
        count: int = 4,
        *,
        link: str = "",
        own: Object | None = None,
        queue: str = "queue",
        **metadata: Any,
    ) -> Object:
        """An Indexed Job, suspended by the webhook.

        Args:
            name: of the Job.
            count: pods.
            link: the Workload of gangs that its template names.
            own: spec of the Workload of gangs in its annotation.
            queue: its LocalQueue.
            metadata: more of its metadata.
        """
        links = {names.GANG_LINK_ANNOTATION: link} if link else {}
        spec = metadata.pop("spec", {})
        job = objects.job(name, count, cpu="4", queue=queue, annotations=links, spec=spec)
        job["metadata"].update({"namespace": NAMESPACE, **metadata})
        if own is not None:
            text = json.dumps(own)
            job["metadata"]["annotations"] = {names.GANG_TEMPLATE_ANNOTATION: text}
        job["spec"]["suspend"] = True
        return self.put(kinds.JOBS, job)

    def add_pods(
        self, job: str, *indexes: int, phase: str = "Running", released: bool = True
    ) -> None:
        """Pods of a started Job: bound under its present admission, or gated."""
        found = self.job(job)
        template, workload = found["spec"]["template"]["metadata"], self.workload(job)
        uid, annotations = found["metadata"]["uid"], dict(template["annotations"])
        if released:
            annotations[names.GANG_RUN_ANNOTATION] = self.run(job)
        for index in indexes:
            labels = {**template["labels"], names.CONTROLLER_UID_LABEL: uid}
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}
            node = {"nodeName": "pool-11-1"} if released else {}
            gate = [] if released else [{"name": names.GANG_GATE}]
            self.put(
                kinds.PODS,
                {
                    "metadata": {
                        "name": f"{job}-{index}",
                        "namespace": NAMESPACE,
                        "labels": labels,
                        "annotations": annotations,
                        "ownerReferences": [{**owner, "controller": True}],
                    },
                    "spec": {"containers": [], "schedulingGates": gate, **node},
                    "status": {"phase": phase if released else "Pending"},
                },
            )
        assert workload["status"]["admission"]

    def run(self, job: str) -> str:
        """The run of the present admission of a Job."""
        own = self.workload(job)
        (at,) = [
            condition["lastTransitionTime"]
            for condition in own["status"]["conditions"]
            if condition["type"] == "Admitted"
        ]
        return run_id(own["metadata"]["uid"], at)

    def pending_message(self, job: str) -> str:
        """Why the Workload of a Job is pending."""
        found = self.workload_of(self.job(job)) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                return str(condition["message"])
        return ""


def gang_assigner(world: World, **changes: Any) -> AbstractAsyncContextManager[Assigner]:
    """A replica with the feature gate."""
    return assigner(world, configured=settings(**{"featureGates": GATES, **changes}))


@asynccontextmanager
async def gang_world() -> AsyncIterator[GangWorld]:
    """A furnished world in which no rule may be broken."""
    async with GangWorld() as world:
        furnish(world)
        yield world
        assert world.broken_rules == []
