"""Every question about queues, quota and preemption is answered word by word.

All scenarios are answered by the engine for queues that share quota. Those about one queue are
also answered by the scheduling cycle for queues that stand alone; it knows the heads of queues
alone, so the other Workloads that wait are left out there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rackgate.features import Features
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.quota_scenario.scenario import answer as answer_of_cycle
from rackgate_assigner.quota_scenario.scenario import read_quota_scenarios
from rackgate_assigner.scheduler.cycle import cycle_order, plan
from rackgate_assigner.workload.conditions import truncate
from rackgate_assigner.workload.decisions import Admit, Decision, Preempt, Requeue
from rackgate_assigner.workload.info import WorkloadInfo

FOLDER = Path(__file__).parent / "data" / "quota"
DATA = FOLDER / "one-queue.json.gz"
SIZE = 29
SIZES = {
    "table-cases": 231,
    "generated-public": 300,
    "generated-topology": 120,
    "generated-rare": 90,
}
NOW = datetime(2026, 8, 1, tzinfo=UTC)

Json = Mapping[str, Any]


@cache
def scenarios() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(gzip.decompress(DATA.read_bytes()))["scenarios"])


def at(seconds: float) -> str:
    return f"{(NOW + timedelta(seconds=seconds)).isoformat().removesuffix('+00:00')}Z"


def flavor_of(given: Json) -> kueue.ResourceFlavor:
    spec = {
        "nodeLabels": given.get("nodeLabels", {}),
        "nodeTaints": given.get("taints", []),
        "tolerations": given.get("tolerations", []),
    }
    return msgspec.convert(
        {"metadata": {"name": given["name"]}, "spec": spec}, kueue.ResourceFlavor
    )


def _group(given: Json) -> Json:
    flavors = [
        {
            "name": flavor["name"],
            "resources": [
                {"name": resource, "nominalQuota": quota["nominal"]}
                for resource, quota in flavor["quotas"].items()
            ],
        }
        for flavor in given["flavors"]
    ]
    return {"coveredResources": given["resources"], "flavors": flavors}


def cluster_queue_of(given: Json) -> kueue.ClusterQueue:
    spec = {
        "resourceGroups": [_group(group) for group in given.get("resourceGroups", [])],
        "namespaceSelector": given.get("namespaceSelector", {}),
        "queueingStrategy": given.get("queueingStrategy", "BestEffortFIFO"),
        "preemption": given.get("preemption"),
        "flavorFungibility": given.get("flavorFungibility"),
        "stopPolicy": given.get("stopPolicy"),
    }
    return msgspec.convert({"metadata": {"name": given["name"]}, "spec": spec}, kueue.ClusterQueue)


def _podset(given: Json) -> Json:
    container = {"name": "c", "resources": {"requests": given.get("requests", {})}}
    spec: dict[str, Any] = {
        "containers": [container],
        "nodeSelector": given.get("nodeSelector", {}),
        "tolerations": given.get("tolerations", []),
    }
    if "nodeAffinity" in given:
        spec["affinity"] = {"nodeAffinity": given["nodeAffinity"]}
    return {"name": given["name"], "count": given["count"], "template": {"spec": spec}}


def _status(given: Json) -> Json:
    conditions = [
        {
            "type": condition["type"],
            "status": str(condition["status"]),
            "reason": condition.get("reason", ""),
            "lastTransitionTime": at(condition.get("at", 0)),
        }
        for condition in given.get("conditions", [])
    ]
    if "reservedAt" not in given:
        return {"conditions": conditions}
    since = at(given["reservedAt"])
    conditions += [
        {"type": kind, "status": "True", "lastTransitionTime": since}
        for kind in ("QuotaReserved", "Admitted")
    ]
    assignments = [
        {
            "name": part["name"],
            "count": part["count"],
            "flavors": part["flavors"],
            "resourceUsage": part["usage"],
        }
        for part in given["admission"]["podSets"]
    ]
    admission = {
        "clusterQueue": given["admission"]["clusterQueue"],
        "podSetAssignments": assignments,
    }
    return {"conditions": conditions, "admission": admission}


def workload_of(given: Json) -> kueue.Workload:
    meta = {
        "name": given["name"],
        "namespace": given["namespace"],
        "uid": given.get("uid", given["name"]),
        "resourceVersion": "1",
        "creationTimestamp": at(given["created"]),
    }
    spec = {
        "queueName": given.get("queue", ""),
        "priority": given.get("priority", 0),
        "active": not given.get("inactive", False),
        "podSets": [_podset(podset) for podset in given["podSets"]],
    }
    whole = json.dumps({"metadata": meta, "spec": spec, "status": _status(given)})
    return msgspec.json.decode(whole, type=kueue.Workload)


def cluster(scenario: Json) -> Cache:
    found = Cache()
    for flavor in scenario["flavors"]:
        found.set_flavor(flavor_of(flavor))
    for queue in scenario["clusterQueues"]:
        found.set_cluster_queue(cluster_queue_of(queue))
    for local in scenario["localQueues"]:
        meta = {"name": local["name"], "namespace": local["namespace"]}
        whole = {"metadata": meta, "spec": {"clusterQueue": local["clusterQueue"]}}
        found.set_local_queue(msgspec.convert(whole, kueue.LocalQueue))
    for space in scenario.get("namespaces", []):
        named = core.Meta(name=space["name"], labels=space.get("labels", {}))
        found.set_namespace(core.Namespace(metadata=named))
    for workload in scenario["workloads"]:
        found.set_workload(workload_of(workload))
    return found


def heads(found: Cache, scenario: Json) -> list[WorkloadInfo]:
    """The first that waits in each ClusterQueue."""
    kept_back = {
        f"{given['namespace']}/{given['name']}"
        for given in scenario["workloads"]
        for condition in given.get("conditions", [])
        if (condition["type"], str(condition["status"])) == ("Requeued", "False")
        or condition.get("reason") == "OnHold"
    }
    offering = {
        queue.name
        for queue in found.cluster_queues.values()
        if queue.stop_policy == "None" and all(name in found.flavors for name in queue.flavors)
    }
    first: dict[str, WorkloadInfo] = {}
    for row in cycle_order(found.snapshot().pending, found.priorities):
        local = found.local_queues.get(row.queue)
        if local is None or local.cluster_queue not in offering:
            continue
        if row.key not in kept_back:
            first.setdefault(local.cluster_queue, row)
    return list(first.values())


def answer(decisions: Sequence[Decision]) -> Json:
    return {
        "admitted": {
            found.workload: [(part.name, dict(part.flavors)) for part in found.assignment.podsets]
            for found in decisions
            if isinstance(found, Admit)
        },
        "preempted": sorted(
            (found.workload, found.by, str(found.cause))
            for found in decisions
            if isinstance(found, Preempt)
        ),
        "pending": {
            found.workload: (str(found.reason), found.message)
            for found in decisions
            if isinstance(found, Requeue)
        },
    }


def expected(scenario: Json) -> Json:
    found = scenario["expected"]
    return {
        "admitted": {
            key: [(part["name"], part["flavors"]) for part in given["podSets"]]
            for key, given in found["admitted"].items()
        },
        "preempted": sorted(
            (given["workload"], given["by"], given["reason"])
            for given in found["preempted"]
            if not given.get("ongoing")
        ),
        "pending": {
            key: (given.get("reason", ""), truncate(given.get("message", "")))
            for key, given in found["pending"].items()
            if given["evaluated"]
        },
    }


@pytest.mark.requirement("SLC-31")
@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: str(scenario["id"]))
def test_answer_is_the_expected_one(scenario: Json) -> None:
    found = cluster(scenario)
    snapshot = found.snapshot()
    snapshot.pending = heads(found, scenario)
    assert answer(plan(snapshot, Features())) == expected(scenario)


def test_no_scenario_is_missing() -> None:
    assert len({scenario["id"] for scenario in scenarios()}) == len(scenarios()) == SIZE


@cache
def shared_quota(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize("name", SIZES)
def test_every_answer_of_a_cycle_is_the_expected_one(name: str) -> None:
    text = shared_quota(name)
    asked = json.loads(text)["scenarios"]
    assert len(asked) == SIZES[name]
    answers = [answer_of_cycle(scenario) for scenario in read_quota_scenarios(text)]
    different = [
        one["id"]
        for one, found in zip(asked, answers, strict=True)
        if json.dumps(found, sort_keys=True) != json.dumps(one["expected"], sort_keys=True)
    ]
    assert different == []
