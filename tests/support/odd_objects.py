"""Objects as the API server may hand them out, whoever wrote them: strange but stored.

What a schema bounds stays within it; what it leaves open (a pod template, above all) may be
anything. Everything is drawn from few names, so that objects meet.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from rackgate.api import names

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]

HOST = names.HOSTNAME_LABEL
LEVELS = ("topo/zone", "topo/rack", HOST)
NODES = tuple(f"n{i}" for i in range(5))
FLAVORS = ("tas", "other", "plain")
TOPOLOGIES = ("default", "racks", "gone")
QUEUES = ("cq", "fifo")
WORKLOADS = tuple(f"w{i}" for i in range(5))
PODSETS = ("main", "leader", "third")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

values = st.sampled_from(["", "a", "b", "a/b", "n0", "n1", "A", "1", "x" * 63])
keys = st.sampled_from([*LEVELS, "pool", "metadata.name", "", "topo/" + "x" * 63])
resources = st.sampled_from(
    ["cpu", "memory", "pods", "gpu/x", "ephemeral-storage", "hugepages-2Mi"]
)
QUANTITIES = "0 1 2 500m 1n 0.5 1e3 1E 8Ei +1 9223372036854775807 100Ki 1e-999 1e999 .5 5."
quantities = st.sampled_from([*QUANTITIES.split(), "9" * 250]) | st.integers(0, 2**63 - 1)
int32 = st.sampled_from([0, 1, 2, 3, 7, 1000, 2**31 - 1])
# What a template may hold where a quantity, a name or an object is meant.
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "-1", "1", "abc", "\u0000", "é", "cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=4,
)


def seldom(odd: Strategy, usual: Strategy, one_in: int = 12) -> Strategy:
    """`odd` once in so many draws."""
    return st.integers(1, one_in).flatmap(lambda drawn: odd if drawn == one_in // 2 else usual)


def optional(**fields: Strategy) -> st.SearchStrategy[Json]:
    """An object with some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


tolerations = st.lists(
    optional(
        key=keys,
        operator=st.sampled_from(["", "Equal", "Exists", "Gt", "Lt", "Is"]),
        value=values | st.sampled_from(["-5", "9" * 30]),
        effect=st.sampled_from(["", "NoSchedule", "NoExecute", "PreferNoSchedule", "Now"]),
        tolerationSeconds=st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=3,
)
taints = st.lists(
    st.fixed_dictionaries(
        {
            "key": keys.filter(bool),
            "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        },
        optional={"value": values | st.sampled_from(["5", "-" + "9" * 30])},
    ),
    max_size=2,
)
expressions = st.lists(
    seldom(
        junk,
        optional(
            key=keys,
            operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Is"]),
            values=seldom(junk, st.lists(values | st.sampled_from(["7", "-1"]), max_size=3)),
        ),
    ),
    max_size=2,
)
terms = st.lists(
    seldom(junk, optional(matchExpressions=expressions, matchFields=expressions)), max_size=2
)
affinities = optional(
    **{
        REQUIRED: seldom(junk, st.fixed_dictionaries({"nodeSelectorTerms": terms})),
        PREFERRED: seldom(
            junk,
            st.lists(
                optional(
                    weight=st.integers(-1, 200),
                    preference=optional(matchExpressions=expressions, matchFields=expressions),
                ),
                max_size=2,
            ),
        ),
    }
)
amounts = st.dictionaries(resources, quantities, max_size=3)
containers = seldom(
    st.lists(
        optional(
            name=values,
            restartPolicy=st.sampled_from(["Always", "Never", ""]),
            resources=optional(requests=amounts, limits=amounts, claims=junk),
        ),
        max_size=3,
    ),
    st.sampled_from(
        [[{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}] for cpu in ("1", "0", "9")]
    ),
    4,
)
pod_specs = st.fixed_dictionaries(
    {"containers": containers},
    optional={
        "initContainers": containers,
        "overhead": seldom(amounts, st.just({})),
        "resources": seldom(optional(requests=amounts, limits=amounts), st.just({})),
        "nodeSelector": seldom(st.dictionaries(keys, values, max_size=1), st.just({"pool": "a"})),
        "tolerations": tolerations,
        "affinity": optional(nodeAffinity=affinities, podAffinity=junk),
        "nodeName": st.sampled_from(NODES),
        "schedulingGates": st.lists(optional(name=values), max_size=2),
        "priority": st.integers(-(2**31), 2**31 - 1),
        "priorityClassName": values,
    },
)


@st.composite
def templates(draw: st.DrawFn) -> Json:
    """A pod template; the schema leaves everything in it open but the type of its metadata."""
    found: Json = {"spec": draw(seldom(st.just({}), pod_specs))}
    found |= draw(seldom(optional(metadata=optional(labels=junk, name=values)), st.just({})))
    if draw(st.integers(0, 15)) == 9:
        place = found
        for _ in range(draw(st.integers(0, 3))):
            inner = [value for value in place.values() if isinstance(value, dict)]
            if not inner:
                break
            place = draw(st.sampled_from(inner))
        place[draw(st.sampled_from(["spec", "containers", "affinity", "tolerations"]))] = draw(junk)
    if not isinstance(found.get("metadata", {}), dict):
        del found["metadata"]
    return found


levels = seldom(st.sampled_from(["topo/unknown", "x" * 63]), st.sampled_from(LEVELS))
sizes = seldom(st.sampled_from([3, 5, 2**31 - 1]), st.sampled_from([1, 2, 2, 4]))


@st.composite
def requests(draw: st.DrawFn) -> Json:
    """A topology request that the rules of the schema let through."""
    found: Json = draw(
        optional(
            podIndexLabel=values,
            subGroupIndexLabel=values,
            subGroupCount=int32,
            podSetGroupName=st.sampled_from(["", "g", "g", "0", "1"]),
        )
    )
    found |= draw(
        st.one_of(
            st.just({}),
            st.just({"unconstrained": True}),
            st.builds(dict, required=levels),
            st.builds(dict, preferred=levels),
            seldom(st.builds(dict, preferred=levels, required=levels), st.just({}), 4),
        )
    )
    if draw(st.booleans()):
        return found
    layers = [level for level in LEVELS if draw(st.booleans())]
    layers = draw(seldom(st.lists(levels, max_size=3, unique=True), st.just(layers)))
    if len(layers) == 1 and draw(st.booleans()):
        return found | {"podSetSliceRequiredTopology": layers[0], "podSetSliceSize": draw(sizes)}
    size, slices = 1, []
    for layer in reversed(layers):
        size = min(size * draw(st.sampled_from([1, 2, 3])), 2**31 - 1)
        slices.append({"topology": layer, "size": size})
    return found | ({"podsetSliceRequiredTopologyConstraints": slices[::-1]} if slices else {})


@st.composite
def podsets(draw: st.DrawFn) -> list[Json]:
    """1 to 3 PodSets; now and then as many as there may be."""
    named = draw(st.lists(st.sampled_from(PODSETS), min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 20)) == 20:
        named = [f"p{i}" for i in range(18)]
    found = []
    for name in named:
        count = draw(seldom(int32, st.sampled_from([0, 1, 2, 4, 6, 8, 12]), 4))
        podset = {"name": name, "count": count, "template": draw(templates())}
        if draw(st.booleans()):
            podset["topologyRequest"] = draw(requests())
        if count and draw(st.integers(0, 5)) == 5:
            podset["minCount"] = draw(st.integers(1, count))
        found.append(podset)
    return found


label_values = values | st.sampled_from(["x" * 32, "pre-1", "pre-2"])


@st.composite
def assignments(draw: st.DrawFn) -> Json:
    """A topology assignment that the schema lets through, sense or not."""
    width = draw(st.integers(1, 3))
    named = draw(st.sampled_from([LEVELS[:width], LEVELS[-width:], LEVELS[-1:] * width]))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(seldom(st.just(100_000), st.integers(1, 3)))
        column = st.lists(
            label_values, min_size=min(size, 3), max_size=min(size, 3), unique=draw(st.booleans())
        )
        individual = st.fixed_dictionaries(
            {"roots": column}, optional={"prefix": label_values, "suffix": label_values}
        )
        counts = st.lists(int32.filter(bool), min_size=min(size, 3), max_size=min(size, 3))
        either: Strategy = seldom(
            optional(universal=label_values, individual=individual),
            st.builds(dict, universal=label_values) | st.builds(dict, individual=individual),
        )
        pods: Strategy = seldom(
            optional(universal=int32.filter(bool), individual=counts),
            st.builds(dict, universal=int32.filter(bool)) | st.builds(dict, individual=counts),
        )
        parts.append(
            {
                "domainCount": size,
                "valuesPerLevel": [draw(either) for _ in range(width)],
                "podCounts": draw(pods),
            }
        )
    return {"levels": list(named), "slices": parts}


@st.composite
def admissions(draw: st.DrawFn) -> Json:
    """What a hand, or another version, may have put into `status.admission`."""
    parts = []
    for name in draw(st.lists(st.sampled_from([*PODSETS, "x"]), max_size=3, unique=True)):
        part: Json = {
            "name": name,
            "flavors": draw(
                st.dictionaries(resources, st.sampled_from(FLAVORS), max_size=2)
                | st.just({"cpu": "tas", "memory": "tas"})
            ),
            "resourceUsage": draw(amounts),
            "count": draw(int32),
        }
        if draw(st.booleans()):
            part["topologyAssignment"] = draw(assignments())
        parts.append(draw(st.sampled_from([part, {"name": name}])))
    return {"clusterQueue": draw(st.sampled_from([*QUEUES, "gone"])), "podSetAssignments": parts}


@st.composite
def workloads(draw: st.DrawFn) -> Json:
    """A Workload: waiting, admitted, evicted, finished, broken."""
    name = draw(st.sampled_from(WORKLOADS))
    spec: Json = {"podSets": draw(podsets()), "active": draw(seldom(st.just(False), st.just(True)))}
    spec |= draw(
        optional(
            queueName=seldom(st.just("gone"), st.sampled_from(["lq", "lq", "fifo"])),
            priority=st.integers(-(2**31), 2**31 - 1),
            priorityClassRef=st.just(
                {"group": names.GROUP, "kind": "WorkloadPriorityClass", "name": "gone"}
            ),
            preemptionGates=st.just([{"name": "g"}]),
            maximumExecutionTimeSeconds=int32.filter(bool),
        )
    )
    spec.setdefault("queueName", "lq")
    kinds = ["QuotaReserved", "Admitted", "Evicted", "Requeued", "Unheard"]
    kinds += draw(seldom(st.just(["Finished"]), st.just([])))
    conditions = [
        {
            **_condition(kind, draw(st.sampled_from(["True", "False", "Unknown"]))),
            "reason": draw(st.sampled_from(["Pending", "JobSuspended", "PodsReadyTimeout"])),
            "message": draw(st.sampled_from(["", "x" * 2000])),
        }
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=3, unique=True))
    ]
    status: Json = {"conditions": conditions}
    if draw(st.integers(0, 2)) == 2:
        status["admission"] = draw(admissions())
        if draw(st.integers(0, 3)):
            held = {**_condition("QuotaReserved", "True"), "reason": "QuotaReserved"}
            conditions[:] = [one for one in conditions if one["type"] != "QuotaReserved"] + [held]
        status["unhealthyNodes"] = [
            {"name": node}
            for node in draw(st.lists(st.sampled_from(NODES), max_size=2, unique=True))
        ]
    return {"metadata": meta_of(draw, name, "team"), "spec": spec, "status": status}


def _condition(kind: str, status: str) -> Json:
    moment = "2026-08-01T12:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": kind,
        "message": "",
        "lastTransitionTime": moment,
    }


def meta_of(draw: st.DrawFn, name: str, namespace: str = "") -> Json:
    """Metadata of an object that the API server has seen."""
    meta: Json = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(draw(st.integers(1, 9))),
        "generation": draw(st.integers(1, 9)),
        "creationTimestamp": "2026-08-01T12:00:00Z",
        "managedFields": [{"manager": "hand", "fieldsV1": {"f:spec": {}}}],
    }
    if namespace:
        meta["namespace"] = namespace
    if draw(st.integers(0, 8)) == 8:
        meta["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    return meta


def encoded(found: Json) -> bytes:
    """An object as it comes over the wire."""
    return json.dumps(found, ensure_ascii=False).encode()
