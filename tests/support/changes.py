"""Changes of stored objects: which are allowed, and what a refusal names."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.manifests import (
    BLOCK,
    HOSTNAME,
    RACK,
    TEMPLATE,
    Manifest,
    assigned,
    flavor,
    manifest,
    podset,
    request,
    topology,
    workload,
)


@dataclass(frozen=True)
class Change:
    """A merge patch of a stored object; `path` is what its refusal names, None: accepted."""

    name: str
    manifest: Manifest
    patch: Manifest
    path: str | None
    status: Manifest | None = None


_RUNNING = assigned()
_LEADER = podset("leader", count=1)
_BOTH_RUN = _RUNNING | {
    "admission": {
        "clusterQueue": "cq",
        "podSetAssignments": [
            {**part, "name": name}
            for part in _RUNNING["admission"]["podSetAssignments"]
            for name in ("leader", "main")
        ],
    }
}
_HOSTS = topology(BLOCK, HOSTNAME)
CHANGES = [
    Change(
        "levels above the hostname may change",
        _HOSTS,
        topology(BLOCK, RACK, HOSTNAME),
        None,
    ),
    Change("a hostname level cannot go", _HOSTS, topology(BLOCK), "spec.levels"),
    Change("levels without hostname are fixed", topology(BLOCK), topology(RACK), "spec.levels"),
    Change(
        "the topology of a flavor cannot change",
        flavor(nodeLabels={"k": "v"}, topologyName="dc"),
        {"spec": {"topologyName": "other"}},
        "spec.topologyName",
    ),
    Change(
        "the topology of a flavor cannot go",
        flavor(nodeLabels={"k": "v"}, topologyName="dc"),
        {"spec": {"topologyName": None}},
        "spec.topologyName",
    ),
    Change(
        "the spec of a topology flavor cannot go",
        flavor(nodeLabels={"k": "v"}, topologyName="dc"),
        {"spec": None},
        "spec.topologyName",
    ),
    Change(
        "a flavor may get a topology",
        flavor(nodeLabels={"k": "v"}),
        {"spec": {"topologyName": "dc"}},
        None,
    ),
    Change(
        "a local queue keeps its cluster queue",
        manifest("LocalQueue", "lq", spec={"clusterQueue": "cq"}),
        {"spec": {"clusterQueue": "other"}},
        "spec.clusterQueue",
    ),
    Change(
        "a check keeps its controller",
        manifest("AdmissionCheck", "pr", spec={"controllerName": "a.example/b"}),
        {"spec": {"controllerName": "c.example/d"}},
        "spec.controllerName",
    ),
    Change(
        "a pending workload may change queue",
        workload(queueName="lq"),
        {"spec": {"queueName": "other"}},
        None,
    ),
    Change(
        "a running workload keeps its queue",
        workload(queueName="lq"),
        {"spec": {"queueName": "other"}},
        "spec.queueName",
        _RUNNING,
    ),
    Change(
        "a running workload cannot lose its queue",
        workload(queueName="lq"),
        {"spec": {"queueName": None}},
        "spec.queueName",
        _RUNNING,
    ),
    Change(
        "a pending workload may change its podsets",
        workload(),
        {"spec": {"podSets": [podset(count=9)]}},
        None,
    ),
    Change(
        "a running workload may shrink",
        workload(),
        {"spec": {"podSets": [podset(count=3)]}},
        None,
        _RUNNING,
    ),
    Change(
        "a running workload may not grow",
        workload(),
        {"spec": {"podSets": [podset(count=5)]}},
        "spec.podSets",
        _RUNNING,
    ),
    Change(
        "a running workload may follow what it was granted",
        workload(),
        {"spec": {"podSets": [podset(count=5)]}},
        None,
        assigned(count=5),
    ),
    Change(
        "a running workload may not grow beyond what it was granted",
        workload(),
        {"spec": {"podSets": [podset(count=6)]}},
        "spec.podSets",
        assigned(count=5),
    ),
    Change(
        "a running workload keeps its template",
        workload(),
        {"spec": {"podSets": [podset(template={**TEMPLATE, "spec": {"restartPolicy": "Always"}})]}},
        "spec.podSets",
        _RUNNING,
    ),
    Change(
        "a running workload keeps the labels of its template",
        workload(),
        {"spec": {"podSets": [podset(template={**TEMPLATE, "metadata": {"labels": {}}})]}},
        "spec.podSets",
        _RUNNING,
    ),
    Change(
        "a running workload keeps its topology request",
        request(required=RACK),
        {"spec": {"podSets": [podset(topologyRequest={"required": BLOCK})]}},
        "spec.podSets",
        _RUNNING,
    ),
    Change(
        "a running workload keeps the order of its podsets",
        workload(_LEADER, podset()),
        {"spec": {"podSets": [podset(), _LEADER]}},
        "spec.podSets",
        _BOTH_RUN,
    ),
    Change(
        "a running workload keeps the names of its podsets",
        workload(_LEADER, podset()),
        {"spec": {"podSets": [_LEADER, podset("other")]}},
        "spec.podSets",
        _BOTH_RUN,
    ),
    Change(
        "one of several podsets may shrink",
        workload(_LEADER, podset()),
        {"spec": {"podSets": [_LEADER, podset(count=2)]}},
        None,
        _BOTH_RUN,
    ),
    Change(
        "a running workload keeps its least count",
        workload(podset(minCount=2)),
        {"spec": {"podSets": [podset(minCount=1)]}},
        "spec.podSets",
        _RUNNING,
    ),
    Change(
        "a running workload may be deactivated",
        workload(),
        {"spec": {"active": False}},
        None,
        _RUNNING,
    ),
    Change(
        "a running workload keeps its time limit",
        workload(maximumExecutionTimeSeconds=5),
        {"spec": {"maximumExecutionTimeSeconds": 6}},
        "spec.maximumExecutionTimeSeconds",
        _RUNNING,
    ),
]
