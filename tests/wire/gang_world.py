"""The world of the ungater with Workloads of gangs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rackgate.api import names
from rackgate.api.resources import GANG_WORKLOADS, PODS, WORKLOADS
from rackgate.features import GANG_SCHEDULING
from rackgate.topology.assignment import Domain, TopologyAssignment, encode
from tests.support.waiting import until
from tests.wire.ungater_world import LEVELS, R1, Object, Replica, World

ON: dict[str, Any] = {"feature_gates": {GANG_SCHEDULING: True}}
BOTH = (names.TOPOLOGY_GATE, names.GANG_GATE)
OURS = frozenset({*BOTH, names.ELASTIC_GATE})
ONE_GANG = {"name": "gg", "minCount": 8}
FIRST, SECOND = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
Counts = int | Mapping[Domain, int]


def by_replicated_job(name: str, least: int) -> Object:
    """A gang group for the pods of one replicated Job."""
    return {
        "name": name,
        "minCount": least,
        "selector": {"key": names.REPLICATED_JOB_LABEL, "values": [name]},
    }


class GangWorld(World):
    """See the module. One Job `train` with a Workload and a Workload of gangs of that name."""

    def gangs(self, *groups: Object, name: str = "train", **spec: Any) -> Object:
        spec = {"gangGroups": list(groups or (ONE_GANG,)), **spec}
        meta = {"name": name, "namespace": "team"}
        return self.server.put(GANG_WORKLOADS, {"metadata": meta, "spec": spec})

    def admitted(
        self,
        counts: Counts | None = None,
        *,
        at: str = FIRST,
        conditions: tuple[str, ...] = ("Admitted",),
        **podsets: Counts,
    ) -> Object:
        """The Workload of the Job, with PodSet `main` unless others are given."""
        given = podsets or {"main": {R1: 8} if counts is None else counts}
        totals = {name: _total(found) for name, found in given.items()}
        owner = {"kind": "Job", "name": "train", "uid": "train-job", "controller": True}
        meta = {"name": "train", "namespace": "team", "uid": "k", "ownerReferences": [owner]}
        status = {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": at} for kind in conditions
            ],
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [_assigned(name, found) for name, found in given.items()],
            },
        }
        spec = {
            "podSets": [
                {"name": name, "count": total, "template": {}} for name, total in totals.items()
            ]
        }
        return self.server.put(WORKLOADS, {"metadata": meta, "spec": spec, "status": status})

    def member(
        self,
        number: int,
        *,
        podset: str = "main",
        gates: tuple[str, ...] = BOTH,
        link: str = "train",
        owner: str = "train-job",
        labels: Mapping[str, str] | None = None,
        phase: str = "Pending",
        pod_group: str = "",
        **metadata: Any,
    ) -> Object:
        placed = {names.TAS_LABEL: "true"} if names.TOPOLOGY_GATE in gates else {}
        meta = {
            "name": f"{podset}-{number}",
            "namespace": "team",
            "labels": {
                names.PODSET_LABEL: podset,
                names.COMPLETION_INDEX_LABEL: str(number),
                **placed,
                **(labels or {}),
            },
            "annotations": {
                names.WORKLOAD_ANNOTATION: "train",
                **({names.GANG_LINK_ANNOTATION: link} if link else {}),
            },
            "ownerReferences": [{"kind": "Job", "name": "j", "uid": owner, "controller": True}],
            **metadata,
        }
        spec: Object = {
            "schedulingGates": [{"name": gate} for gate in gates],
            "nodeSelector": {},
        }
        if pod_group:
            spec["schedulingGroup"] = {"podGroupName": pod_group}
        return self.server.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": phase}})

    def members(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            self.member(number, **options)

    def change_member(self, name: str, **sections: Any) -> None:
        """Somebody else changes a pod."""
        found = self.server.get(PODS, name, "team")
        assert found is not None
        pod = json.loads(json.dumps(found))
        for section, values in sections.items():
            pod[section].update(values)
        self.server.put(PODS, pod)

    def terminate(self, *pods: str) -> None:
        for name in pods:
            self.change_member(
                name,
                metadata={"deletionTimestamp": FIRST, "deletionGracePeriodSeconds": 30},
            )

    def remove(self, *pods: str) -> None:
        for name in pods:
            self.server.remove(PODS, name, "team")

    def all_pods(self) -> dict[str, Object]:
        found = self.server._objects.get("pods", {})
        return {key.partition("/")[2]: pod for key, pod in found.items()}

    def all_gangs(self) -> list[Object]:
        """All Workloads of gangs."""
        return list(self.server._objects.get(GANG_WORKLOADS.full_name, {}).values())

    def free(self) -> set[str]:
        """Pods without any of our gates."""
        return {name for name, pod in self.all_pods().items() if not gates_of(pod) & OURS}

    def runs(self) -> dict[str, str]:
        """The run of each pod that has one."""
        found = {
            name: pod["metadata"]["annotations"].get(names.GANG_RUN_ANNOTATION, "")
            for name, pod in self.all_pods().items()
        }
        return {name: run for name, run in found.items() if run}

    async def all_free(self, *pods: str) -> None:
        await until(lambda: set(pods) <= self.free())

    async def seen(self, replica: Replica) -> None:
        """Its watches have shown everything, and it has nothing to do now."""

        def is_current() -> bool:
            gangs, pods = replica.ungater.informers.gangs, replica.ungater.pods
            known = {str(pod.uid): pod.resource_version for pod in pods.store.values()}
            if gangs is not None:
                known |= {gang.uid: gang.resource_version for gang in gangs.store.values()}
            items = [*self.all_pods().values(), *(self.all_gangs() if gangs is not None else ())]
            stored = {
                item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items
            }
            return known == stored

        await until(is_current)
        await replica.has_no_open_requests()
        await replica.idle()

    def reasons(self, kind: str = "Workload") -> set[str]:
        """Reasons of the Events about one kind of object."""
        return {event["reason"] for event in self.events() if event["regarding"]["kind"] == kind}


def gates_of(pod: Object) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}


def _total(counts: Counts) -> int:
    return counts if isinstance(counts, int) else sum(counts.values())


def _assigned(name: str, counts: Counts) -> Object:
    found: Object = {"name": name, "count": _total(counts)}
    if not isinstance(counts, int):
        assigned = encode(TopologyAssignment(LEVELS, tuple(counts.items())))
        found["topologyAssignment"] = assigned
    return found


def podset_names(podset: str, *numbers: int) -> list[str]:
    return [f"{podset}-{number}" for number in numbers]
