"""Manifests that must be refused, each with the path that the refusal names."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.manifests import (
    ASSIGNMENT,
    BLOCK,
    GROUP,
    HOSTNAME,
    RACK,
    Manifest,
    assigned,
    cluster_queue,
    condition,
    flavor,
    group,
    manifest,
    one_slice,
    podset,
    request,
    topology,
    workload,
)


@dataclass(frozen=True)
class Bad:
    """A manifest (or its status) that must be refused with a message that names `path`."""

    name: str
    manifest: Manifest
    path: str
    status: Manifest | None = None
    python: bool = True  # whether the models refuse it too


BAD = [
    Bad("no level", topology(), "spec.levels"),
    Bad("no levels field", manifest("Topology", "dc", spec={}), "spec.levels"),
    Bad("seventeen levels", topology(*(f"level-{i}" for i in range(17))), "spec.levels"),
    Bad("empty level", topology(BLOCK, ""), "spec.levels[1].nodeLabel"),
    Bad("level of 317 characters", topology(f"{'a' * 253}/{'b' * 63}"), "spec.levels[0].nodeLabel"),
    Bad("level in capitals", topology(BLOCK, RACK, "Block/x"), "spec.levels[2].nodeLabel"),
    Bad("level with two slashes", topology("a//b"), "spec.levels[0].nodeLabel"),
    Bad("level twice", topology(BLOCK, BLOCK), "spec.levels"),
    Bad("hostname not last", topology(HOSTNAME, RACK), "spec.levels"),
    Bad("hostname not last in v1beta1", topology(HOSTNAME, RACK, version="v1beta1"), "spec.levels"),
    Bad("topology without labels", flavor(topologyName="dc"), "spec.nodeLabels"),
    Bad("topology with empty labels", flavor(topologyName="dc", nodeLabels={}), "spec.nodeLabels"),
    Bad("nine labels", flavor(nodeLabels={f"k{i}": "v" for i in range(9)}), "spec.nodeLabels"),
    Bad("label value", flavor(nodeLabels={"k": "a b"}), "spec.nodeLabels"),
    Bad(
        "taint effect",
        flavor(nodeTaints=[{"key": "k", "effect": "Never"}]),
        "spec.nodeTaints[0].effect",
    ),
    Bad(
        "toleration of everything by Equal",
        flavor(tolerations=[{"operator": "Equal"}]),
        "spec.tolerations[0]",
        python=False,
    ),
    Bad("cohort name", cluster_queue(cohortName="Team"), "spec.cohortName"),
    Bad("strategy", cluster_queue(queueingStrategy="Random"), "spec.queueingStrategy"),
    Bad(
        "quota below zero",
        cluster_queue(resourceGroups=[group("tas", nominalQuota="-5")]),
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
    ),
    Bad(
        "whole quota below zero",
        cluster_queue(resourceGroups=[group("tas", nominalQuota=-5)]),
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
    ),
    Bad(
        "quota of garbage",
        cluster_queue(resourceGroups=[group("tas", nominalQuota="ten")]),
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
    ),
    Bad(
        "quota as a float",
        cluster_queue(resourceGroups=[group("tas", nominalQuota=0.5)]),
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
    ),
    Bad(
        "borrowing without cohort",
        cluster_queue(resourceGroups=[group("tas", borrowingLimit="1")]),
        "spec.resourceGroups",
    ),
    Bad(
        "lending without cohort",
        cluster_queue(resourceGroups=[group("tas", lendingLimit="1")]),
        "spec.resourceGroups",
    ),
    Bad(
        "fewer resources than covered",
        cluster_queue(
            resourceGroups=[{**group("tas"), "coveredResources": ["cpu", "memory"]}],
        ),
        "spec.resourceGroups[0].flavors",
    ),
    Bad(
        "other resources than covered",
        cluster_queue(resourceGroups=[{**group("tas"), "coveredResources": ["memory"]}]),
        "spec.resourceGroups[0].flavors",
    ),
    Bad(
        "flavor twice in a group",
        cluster_queue(resourceGroups=[group("tas", "tas")]),
        "spec.resourceGroups[0].flavors[1]",
        python=False,
    ),
    Bad(
        "preference without trying the next flavor",
        cluster_queue(flavorFungibility={"preference": "BorrowingOverPreemption"}),
        "spec.flavorFungibility.preference",
        python=False,
    ),
    Bad(
        "borrowing preemption without reclaim",
        cluster_queue(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}),
        "spec.preemption.borrowWithinCohort",
        python=False,
    ),
    Bad(
        "quota of a cohort of garbage",
        manifest("Cohort", "team", spec={"resourceGroups": [group("tas", nominalQuota="ten")]}),
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
    ),
    Bad(
        "parent of a cohort",
        manifest("Cohort", "team", spec={"parentName": "Org"}),
        "spec.parentName",
    ),
    Bad(
        "stop policy of a local queue",
        manifest("LocalQueue", "lq", spec={"clusterQueue": "cq", "stopPolicy": "Stop"}),
        "spec.stopPolicy",
    ),
    Bad("priority class without value", manifest("WorkloadPriorityClass", "high"), "value"),
    Bad("check without controller", manifest("AdmissionCheck", "pr", spec={}), "controllerName"),
    Bad("no podset", manifest("Workload", "w", spec={"podSets": []}), "spec.podSets"),
    Bad(
        "nineteen podsets",
        workload(*({"name": f"p{i}", "template": {}} for i in range(19))),
        "spec.podSets",
    ),
    Bad("podset twice", workload(podset(), podset()), "spec.podSets[1]"),
    Bad("podset name", workload(podset("Main")), "spec.podSets[0].name"),
    Bad("negative count", workload(podset(count=-1)), "spec.podSets[0].count"),
    Bad("count beyond int32", workload(podset(count=2**31)), "spec.podSets[0].count"),
    Bad("no template", workload({"name": "main"}), "spec.podSets[0].template"),
    Bad("minCount over count", workload(podset(minCount=5)), "spec.podSets[0].minCount"),
    Bad(
        "two minCounts",
        workload(podset(minCount=1), podset("b", minCount=1)),
        "spec.podSets",
    ),
    Bad(
        "required and unconstrained",
        request(required=RACK, unconstrained=True),
        "spec.podSets[0].topologyRequest",
    ),
    Bad(
        "preferred and unconstrained",
        request(preferred=RACK, unconstrained=True),
        "spec.podSets[0].topologyRequest",
    ),
    Bad("requested level of 64", request(required="a" * 64), "topologyRequest.required"),
    Bad(
        "slice without size",
        request(podSetSliceRequiredTopology=RACK),
        "topologyRequest.podSetSliceSize",
    ),
    Bad(
        "two forms of slices",
        request(
            podSetSliceRequiredTopology=RACK,
            podSetSliceSize=2,
            podsetSliceRequiredTopologyConstraints=[{"topology": RACK, "size": 2}],
        ),
        "topologyRequest.podsetSliceRequiredTopologyConstraints",
    ),
    Bad(
        "layers that do not divide",
        request(
            podsetSliceRequiredTopologyConstraints=[
                {"topology": BLOCK, "size": 4},
                {"topology": RACK, "size": 3},
            ]
        ),
        "topologyRequest.podsetSliceRequiredTopologyConstraints",
    ),
    Bad(
        "class of priority without priority",
        workload(
            priorityClassRef={"group": GROUP, "kind": "WorkloadPriorityClass", "name": "high"}
        ),
        "spec.priority",
    ),
    Bad(
        "class of another group",
        workload(
            priorityClassRef={"group": GROUP, "kind": "PriorityClass", "name": "high"}, priority=1
        ),
        "spec.priorityClassRef.kind",
        python=False,
    ),
    Bad("active as text", workload(active="yes"), "spec.active", python=False),
    Bad(
        "assignments for another number of podsets",
        workload(podset(), podset("b")),
        "status.admission.podSetAssignments",
        assigned(),
        python=False,
    ),
    Bad(
        "values for another number of levels",
        workload(),
        "topologyAssignment",
        assigned({**ASSIGNMENT, "levels": [RACK]}),
    ),
    Bad(
        "roots for another number of domains",
        workload(),
        "topologyAssignment",
        assigned(one_slice([{"individual": {"roots": ["1"]}}], {"universal": 1})),
    ),
    Bad(
        "counts for another number of domains",
        workload(),
        "topologyAssignment",
        assigned(one_slice([{"universal": "b"}], {"individual": [1]})),
    ),
    Bad(
        "both forms of values",
        workload(),
        "topologyAssignment",
        assigned(
            one_slice([{"universal": "b", "individual": {"roots": ["1"]}}], {"universal": 1}, 1)
        ),
    ),
    Bad(
        "count of zero",
        workload(),
        "topologyAssignment",
        assigned(one_slice([{"universal": "b"}], {"universal": 0}, 1)),
    ),
    Bad(
        "condition twice",
        workload(),
        "status.conditions[1]",
        {"conditions": [condition("Admitted"), condition("Admitted")]},
        python=False,
    ),
]
