"""The odd cluster around odd Workloads: nodes, pods, Topologies, flavors and queues."""

from __future__ import annotations

from hypothesis import strategies as st

from rackgate.api import names
from tests.support.odd_objects import (
    FLAVORS,
    HOST,
    LEVELS,
    NODES,
    PODSETS,
    QUEUES,
    TOPOLOGIES,
    WORKLOADS,
    Json,
    amounts,
    containers,
    keys,
    meta_of,
    optional,
    quantities,
    resources,
    seldom,
    taints,
    tolerations,
    values,
)


@st.composite
def nodes(draw: st.DrawFn) -> Json:
    """A node, labelled well or badly, of odd size."""
    name = draw(st.sampled_from(NODES))
    labels = {HOST: name, "topo/zone": draw(values), "topo/rack": draw(values), "pool": "a"}
    labels |= draw(seldom(st.dictionaries(keys, values, max_size=2), st.just({}), 4))
    if draw(st.integers(0, 6)) == 6:
        labels.pop(draw(st.sampled_from(LEVELS)), None)
    usual = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    ready = draw(st.sampled_from(["True", "True", "True", "False", "Unknown"]))
    status: Json = {
        "allocatable": draw(seldom(amounts, st.just(usual), 3)),
        "conditions": [{"type": "Ready", "status": ready}],
    }
    spec: Json = draw(seldom(optional(taints=taints, unschedulable=st.booleans()), st.just({}), 3))
    return {"metadata": {**meta_of(draw, name), "labels": labels}, "spec": spec, "status": status}


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """A bound pod, ours or a stranger's."""
    meta = meta_of(draw, draw(st.sampled_from(["p0", "p1", "p2"])), "team")
    if draw(st.booleans()):
        meta["annotations"] = {names.WORKLOAD_ANNOTATION: draw(st.sampled_from(WORKLOADS))}
        meta["labels"] = {names.PODSET_LABEL: draw(st.sampled_from([*PODSETS, "x"]))}
        meta["ownerReferences"] = [
            {"kind": "Job", "name": "j", "uid": "j", "apiVersion": "batch/v1", "controller": True}
        ]
    spec = {
        "containers": draw(containers),
        "initContainers": draw(containers),
        "overhead": draw(amounts),
        "nodeName": draw(st.sampled_from([*NODES, "gone"])),
        "tolerations": draw(tolerations),
    }
    phase = draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed"]))
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


@st.composite
def topologies(draw: st.DrawFn) -> Json:
    """A Topology of 1 to 16 levels, the hostname last if at all."""
    found = draw(st.sampled_from([LEVELS, LEVELS[:2], LEVELS[1:], (HOST,), ("pool",)]))
    if draw(st.integers(0, 8)) == 8:
        found = (*(f"deep/{i}" for i in range(13)), *LEVELS)
    spec = {"levels": [{"nodeLabel": level} for level in found]}
    return {"metadata": meta_of(draw, draw(st.sampled_from(TOPOLOGIES[:2]))), "spec": spec}


flavor_tolerations = st.sampled_from(
    [
        {"operator": "Exists"},
        {"key": "pool", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1},
        {"key": "pool", "value": "a", "effect": "NoSchedule"},
        {"key": "topo/rack", "operator": "Equal", "value": ""},
    ]
)


@st.composite
def flavors(draw: st.DrawFn) -> Json:
    """A flavor, of any topology or none."""
    spec: Json = {"nodeLabels": draw(st.sampled_from([{"pool": "a"}, {"pool": "b"}]))}
    spec |= draw(
        optional(
            topologyName=st.sampled_from(TOPOLOGIES),
            nodeTaints=taints,
            tolerations=st.lists(flavor_tolerations, max_size=2),
        )
    )
    return {"metadata": meta_of(draw, draw(st.sampled_from(FLAVORS))), "spec": spec}


@st.composite
def cluster_queues(draw: st.DrawFn) -> Json:
    """A ClusterQueue with odd quotas over flavors that may not be there."""
    usual = ["cpu", "memory"]
    covered = draw(seldom(st.lists(resources, min_size=1, max_size=3, unique=True), st.just(usual)))
    named = draw(st.lists(st.sampled_from([*FLAVORS, "gone"]), min_size=1, max_size=3, unique=True))
    group = {
        "coveredResources": covered,
        "flavors": [
            {
                "name": flavor,
                "resources": [{"name": r, "nominalQuota": draw(quantities)} for r in covered],
            }
            for flavor in named
        ],
    }
    spec: Json = {"resourceGroups": [group], "namespaceSelector": {}}
    spec |= draw(
        optional(
            namespaceSelector=optional(
                matchLabels=st.dictionaries(keys, values, max_size=1),
                matchExpressions=st.lists(
                    st.fixed_dictionaries(
                        {"key": keys, "operator": st.sampled_from(["In", "NotIn", "Exists"])},
                        optional={"values": st.lists(values, max_size=2)},
                    ),
                    max_size=2,
                ),
            ),
            queueingStrategy=st.sampled_from(["StrictFIFO", "BestEffortFIFO"]),
            stopPolicy=st.sampled_from(["None", "None", "Hold", "HoldAndDrain"]),
        )
    )
    return {"metadata": meta_of(draw, draw(st.sampled_from(QUEUES))), "spec": spec}
