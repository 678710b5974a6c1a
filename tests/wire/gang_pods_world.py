"""The fake cluster with pods of gangs that no managed job owns.

What the other controllers do: StatefulSets replace pods, the ungater releases all pods of a gang at
once, and the kubelets start them.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.gang.link import run_id
from rackgate.runtime import clock
from rackgate.topology.assignment import decode
from tests.support.apiserver import Object
from tests.support.apiserver_objects import Target
from tests.wire.assigner_world import NAMESPACE, furnish
from tests.wire.gangs_world import GangWorld

SET = {"apiVersion": "apps/v1", "kind": "StatefulSet"}
JOB = {"apiVersion": "batch/v1", "kind": "Job"}
NODE = "pool-11-1"


class GangPodsWorld(GangWorld):
    """See the module.

    Attributes:
        stuck: names of pods that get no node after they were released.
        sets: template of the pods of each StatefulSet, by UID.
        releases: number of pods that were released together, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.sets: dict[str, Object] = {}
        self.releases: list[int] = []
        self._releasing = False

    # What users do.

    def add_pod(
        self,
        name: str,
        link: str,
        *,
        queue: str = "",
        cpu: str = "4",
        owner: Object | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        """A pod as the API server stores it: gated, with the label."""
        queues = {names.QUEUE_LABEL: queue} if queue else {}
        meta: Object = {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": rfc3339(clock.now()),
            "labels": {names.MANAGED_LABEL: "true", **queues, **(labels or {})},
            "annotations": {names.GANG_LINK_ANNOTATION: link},
        }
        if owner is not None:
            meta["ownerReferences"] = [{**owner, "controller": True}]
        container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
        body = {
            "containers": [container],
            "schedulingGates": [{"name": names.GANG_GATE}],
            **spec,
        }
        pod = {"metadata": meta, "spec": body, "status": {"phase": "Pending"}}
        return self.put(kinds.PODS, pod)

    def add_set(self, name: str, count: int, link: str, **more: Any) -> None:
        """A StatefulSet with parallel pod management: it replaces each pod that is gone."""
        owner = {**SET, "name": name, "uid": f"uid-{name}"}
        self.sets[owner["uid"]] = {"link": link, "owner": owner, **more}
        for index in range(count):
            self.add_pod(f"{name}-{index}", **self.sets[owner["uid"]])

    def delete_set(self, name: str) -> None:
        """The StatefulSet and its pods go."""
        del self.sets[f"uid-{name}"]
        for pod in self.pods_of(name):
            self.remove(kinds.PODS, pod["metadata"]["name"], NAMESPACE)

    def end(self, name: str, phase: str = "Succeeded") -> None:
        """A pod ends."""
        self.change(kinds.PODS, name, lambda pod: pod["status"].update(phase=phase))

    # What other controllers do.

    def _drop(self, full_name: str, key: str) -> None:
        gone = self._objects[full_name].get(key)
        super()._drop(full_name, key)
        if full_name != kinds.PODS.full_name or gone is None:
            return
        for owner in gone["metadata"].get("ownerReferences", []):
            if owner["uid"] in self.sets:
                self.add_pod(gone["metadata"]["name"], **self.sets[owner["uid"]])

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        stored = super()._store(target, item, known)
        watched = target.full_name in (kinds.PODS.full_name, kinds.WORKLOADS.full_name)
        if watched and not self._releasing:
            self._releasing = True
            self._release()
            self._releasing = False
        return stored

    def _release(self) -> None:
        """Release each gang whose pods were all started, in one step."""
        for workload in self.workloads():
            meta = workload["metadata"]
            started = [
                pod
                for pod in self.pods()
                if pod["metadata"]["annotations"].get(names.GANG_WORKLOAD_UID_ANNOTATION)
                == meta["uid"]
            ]
            held = [pod for pod in started if _is_gated(pod)]
            wanted = sum(one["count"] for one in workload["spec"]["podSets"])
            if not held or len(started) < wanted or not is_admitted(workload):
                continue
            if len(started) > wanted:
                self.broken_rules.append(f"{len(started)} pods of {meta['name']} for {wanted}")
            self.releases.append(len(held))
            places = _places(workload)
            for pod in held:
                self._run(pod, workload, next(places, NODE))

    def _run(self, pod: Object, workload: Object, node: str) -> None:
        edited = copy.deepcopy(pod)
        edited["spec"]["schedulingGates"] = []
        (at,) = [
            c["lastTransitionTime"]
            for c in workload["status"]["conditions"]
            if c["type"] == "Admitted"
        ]
        run = run_id(workload["metadata"]["uid"], at)
        edited["metadata"]["annotations"][names.GANG_RUN_ANNOTATION] = run
        if edited["metadata"]["name"] not in self.stuck:
            edited["spec"]["nodeName"] = node
            edited["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        self.put(kinds.PODS, edited)

    # Questions.

    def pods(self) -> list[Object]:
        """All pods."""
        return list(self._objects.get(kinds.PODS.full_name, {}).values())

    def pods_of(self, prefix: str) -> list[Object]:
        """Pods by the beginning of their names."""
        return [pod for pod in self.pods() if pod["metadata"]["name"].startswith(f"{prefix}-")]

    def running(self, prefix: str) -> int:
        """How many of them run."""
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods_of(prefix))

    def gated(self, prefix: str) -> int:
        """How many of them are held."""
        return sum(_is_gated(pod) for pod in self.pods_of(prefix))

    def of_gang(self, link: str) -> list[Object]:
        """Workloads of Kueue's API of the pods that name a Workload of gangs."""
        return [w for w in self.workloads() if w["metadata"]["name"].startswith(f"gang-{link}-")]

    def reason(self, link: str, type_: str) -> str:
        """Reason of a condition that is True, of the only Workload of Kueue's API."""
        found = self.of_gang(link)
        conditions = found[0].get("status", {}).get("conditions", []) if len(found) == 1 else []
        return next(
            (c["reason"] for c in conditions if c["type"] == type_ and c["status"] == "True"), ""
        )


def is_admitted(workload: Object) -> bool:
    """Whether pods may start under it."""
    status = workload.get("status", {})
    true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
    return bool(status.get("admission")) and "Admitted" in true and "Evicted" not in true


def _places(workload: Object) -> Iterator[str]:
    """The nodes that an admission assigns, once for each pod."""
    for part in workload["status"]["admission"]["podSetAssignments"]:
        if "topologyAssignment" in part:
            for domain, count in decode(part["topologyAssignment"]).domains:
                yield from [domain[-1]] * count


def _is_gated(pod: Object) -> bool:
    gates = pod["spec"].get("schedulingGates") or []
    return any(gate["name"] == names.GANG_GATE for gate in gates)


@asynccontextmanager
async def gang_pods_world() -> AsyncIterator[GangPodsWorld]:
    """A furnished world in which no rule may be broken."""
    async with GangPodsWorld() as world:
        furnish(world)
        yield world
        assert world.broken_rules == []
