"""Objects as the watches decode them, made from short descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.features import Features
from rackgate.resources.quantity import format_amount
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.consistency import mismatches
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.queues import status
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import Admit, Assignment, Decision

BLOCK, RACK, HOST = "block", "rack", names.HOSTNAME_LABEL
POOL = {"pool": "gpu"}
CREATED = "2026-08-01T12:00:00Z"


def node(
    name: str,
    path: str = "b1/r1",
    *,
    host: str | None = None,
    cpu: str = "4",
    labels: Mapping[str, str] | None = None,
    ready: bool = True,
    **spec: Any,
) -> core.Node:
    """A node of the pool in `block/rack`; `host` is its hostname label, else its name."""
    block, _, rack = path.partition("/")
    own = {**POOL, BLOCK: block, RACK: rack, HOST: name if host is None else host}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {**own, **(labels or {})}},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        core.Node,
    )


def topology(name: str = "default", levels: Sequence[str] = (BLOCK, RACK, HOST)) -> kueue.Topology:
    """A Topology."""
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, kueue.Topology)


def flavor(
    name: str = "tas",
    topology_name: str | None = "default",
    node_labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> kueue.ResourceFlavor:
    """A flavor of the pool."""
    spec["nodeLabels"] = dict(POOL if node_labels is None else node_labels)
    if topology_name:
        spec["topologyName"] = topology_name
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, kueue.ResourceFlavor)


def group(
    quotas: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """A resource group from flavor to resource to nominal quota."""
    covered = list(next(iter(quotas.values())))
    return {
        "coveredResources": covered,
        "flavors": [
            {
                "name": name,
                "resources": [{"name": r, "nominalQuota": amount} for r, amount in quota.items()],
            }
            for name, quota in quotas.items()
        ],
    }


def cluster_queue(
    name: str = "cq",
    quotas: Mapping[str, Mapping[str, str]] | None = None,
    *,
    groups: Sequence[Mapping[str, Mapping[str, str]]] = (),
    generation: int = 1,
    **spec: Any,
) -> kueue.ClusterQueue:
    """A ClusterQueue open to all namespaces, with 1000 cpu of flavor tas unless told otherwise."""
    all_groups = groups or [quotas or {"tas": {"cpu": "1000"}}]
    spec.setdefault("namespaceSelector", {})
    spec.setdefault("resourceGroups", [group(found) for found in all_groups])
    meta = {"name": name, "generation": generation}
    return msgspec.convert({"metadata": meta, "spec": spec}, kueue.ClusterQueue)


def cohort(
    name: str,
    parent: str | None = None,
    quotas: Mapping[str, Mapping[str, str]] | None = None,
    **spec: Any,
) -> kueue.Cohort:
    """A Cohort, without quota unless told otherwise."""
    if quotas is not None:
        spec["resourceGroups"] = [group(quotas)]
    if parent is not None:
        spec["parentName"] = parent
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, kueue.Cohort)


def local_queue(
    name: str = "lq", queue: str = "cq", *, namespace: str = "team", **spec: Any
) -> kueue.LocalQueue:
    """A LocalQueue."""
    spec["clusterQueue"] = queue
    meta = {"name": name, "namespace": namespace, "generation": 1}
    return msgspec.convert({"metadata": meta, "spec": spec}, kueue.LocalQueue)


def namespace(name: str = "team", **labels: str) -> core.Namespace:
    """A namespace."""
    return core.Namespace(metadata=core.Meta(name=name, labels=labels))


def limit_range(
    name: str = "limits", *items: Mapping[str, Any], namespace: str = "team"
) -> core.LimitRange:
    """A LimitRange as the API server stores it; items are camelCase."""
    found = []
    for item in items:
        whole = {"type": "Container", **item}
        if whole["type"] == "Container":
            limits = {**whole.get("max", {}), **whole.get("default", {})}
            requests = {**whole.get("min", {}), **limits, **whole.get("defaultRequest", {})}
            whole |= {"default": limits, "defaultRequest": requests}
        found.append(whole)
    meta = {"name": name, "namespace": namespace}
    return msgspec.convert({"metadata": meta, "spec": {"limits": found}}, core.LimitRange)


def runtime_class(
    name: str = "kata", overhead: Mapping[str, str] | None = None, **scheduling: Any
) -> core.RuntimeClass:
    """A RuntimeClass."""
    whole: dict[str, Any] = {"metadata": {"name": name}}
    if overhead is not None:
        whole["overhead"] = {"podFixed": dict(overhead)}
    if scheduling:
        whole["scheduling"] = scheduling
    return msgspec.convert(whole, core.RuntimeClass)


def podset(
    name: str = "main",
    count: int = 1,
    requests: Mapping[str, str] | None = None,
    *,
    topology: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A PodSet of a Workload, camelCase; 1 cpu per pod unless told otherwise."""
    asked = {"cpu": "1"} if requests is None else dict(requests)
    spec["containers"] = [{"name": "c", "resources": {"requests": asked}}]
    found: dict[str, Any] = {"name": name, "count": count, "template": {"spec": spec}}
    if topology is not None:
        found["topologyRequest"] = dict(topology)
    return found


def _admission(assignment: Assignment) -> dict[str, Any]:
    return {
        "clusterQueue": assignment.cluster_queue,
        "podSetAssignments": [
            {
                "name": part.name,
                "flavors": dict(part.flavors),
                "resourceUsage": {r: format_amount(r, v) for r, v in part.usage.items()},
                "count": part.count,
                **({"topologyAssignment": encode(part.topology)} if part.topology else {}),
            }
            for part in assignment.podsets
        ],
    }


def workload(
    name: str = "w",
    podsets: Sequence[Mapping[str, Any]] | None = None,
    *,
    namespace: str = "team",
    queue: str = "lq",
    created: str = CREATED,
    version: str = "1",
    generation: int = 1,
    owner: str | None = None,
    assignment: Assignment | None = None,
    conditions: Mapping[str, tuple[str, str, str]] | None = None,
    deleting: bool = False,
    unhealthy: Sequence[str] = (),
    reserved_at: str = CREATED,
    reclaimable: Mapping[str, int] | None = None,
    elastic: bool = False,
    folded: Sequence[str] = (),
    parent: str = "",
    chain: str = "",
    **spec: Any,
) -> kueue.Workload:
    """A Workload, admitted with `assignment`. `conditions`: type to (status, reason, message).

    With `parent` it is a slice of the Workload of that name; `folded` are names of slices. `chain`
    is the first slice of an elastic job that Kueue scaled up.
    """
    meta: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": version,
        "generation": generation,
        "creationTimestamp": created,
        "ownerReferences": [
            {"kind": "Job", "name": name, "uid": owner or f"job-{name}", "controller": True}
        ],
    }
    if parent:
        controller = {"kind": "Workload", "apiVersion": names.API_VERSION, "controller": True}
        meta["ownerReferences"] = [{**controller, "name": parent, "uid": owner or f"uid-{parent}"}]
    if parent or elastic or chain:
        meta["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    if chain:
        meta["annotations"][names.KUEUE_SLICE_CHAIN_ANNOTATION] = chain
    if deleting:
        meta["deletionTimestamp"] = CREATED
    status: dict[str, Any] = {}
    found = dict(conditions or {})
    if assignment is not None:
        status["admission"] = _admission(assignment)
        for kind in ("QuotaReserved", "Admitted"):
            found.setdefault(kind, ("True", kind, ""))
    status["conditions"] = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": reserved_at,
        }
        for kind, (value, reason, message) in found.items()
    ]
    status["foldedSlices"] = [{"uid": f"uid-{name}", "podSet": "main"} for name in folded]
    status["reclaimablePods"] = [
        {"name": name, "count": count} for name, count in (reclaimable or {}).items()
    ]
    if unhealthy:
        status["unhealthyNodes"] = [{"name": found} for found in unhealthy]
    whole = {
        "metadata": meta,
        "spec": {
            "queueName": queue,
            "podSets": list(podsets if podsets is not None else [podset()]),
            **spec,
        },
        "status": status,
    }
    return msgspec.json.decode(json.dumps(whole), type=kueue.Workload)


def pod(
    name: str,
    node: str,
    *,
    namespace: str = "team",
    cpu: str = "1",
    workload: str | None = None,
    podset: str = "main",
    owner: str | None = None,
    phase: str = "Running",
    leaving: bool = False,
    chain: str = "",
) -> core.Pod:
    """A pod bound to a node; with `workload` it carries our marks and that job's uid."""
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"pod-{name}"}
    if leaving:
        meta["deletionTimestamp"] = CREATED
    if workload is not None:
        meta["annotations"] = {names.WORKLOAD_ANNOTATION: workload}
        if chain:
            meta["annotations"][names.KUEUE_SLICE_CHAIN_ANNOTATION] = chain
        meta["labels"] = {names.PODSET_LABEL: podset}
        uid = f"job-{workload}" if owner is None else owner
        meta["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": uid, "controller": True}]
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
    }
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, core.Pod)


def cache_with(
    nodes: Sequence[core.Node] = (),
    *,
    queue: kueue.ClusterQueue | None = None,
    features: Mapping[str, bool] | None = None,
) -> Cache:
    """A cache with Topology default, flavor tas, ClusterQueue cq, LocalQueue team/lq."""
    cache = Cache(Features.of(features))
    cache.set_namespace(namespace())
    cache.set_topology(topology())
    cache.set_flavor(flavor())
    cache.set_cluster_queue(queue or cluster_queue())
    cache.set_local_queue(local_queue())
    for found in nodes:
        cache.set_node(found)
    return cache


def fx_a() -> list[core.Node]:
    """FX-A: two nodes of 8 cpu in each of b1/r1, b1/r2, b2/r1, b2/r3."""
    racks = ["b1/r1", "b1/r2", "b2/r1", "b2/r3"]
    return [
        node(f"{path.replace('/', '-')}-{index}", path, cpu="8")
        for path in racks
        for index in (1, 2)
    ]


def admissions(decisions: Sequence[Decision]) -> dict[str, Assignment]:
    """Grants by Workload name."""
    return {
        decision.workload.partition("/")[2]: decision.assignment
        for decision in decisions
        if isinstance(decision, Admit)
    }


def domains(of: Assignment, name: str = "main") -> dict[str, int]:
    """Pods by host (or joined path) of one PodSet of a assignment."""
    assignment = next(part.topology for part in of.podsets if part.name == name)
    assert isinstance(assignment, TopologyAssignment)
    return {"/".join(values): count for values, count in assignment.domains}


def plan_cycle(cache: Cache, *, features: Features | None = None) -> list[Decision]:
    """What one scheduling cycle decides; the cache is not changed."""
    return plan(cache.snapshot(), features or cache.features)


def cluster_queue_status_of(
    cache: Cache, name: str, *, features: Features | None = None
) -> dict[str, Any]:
    """Desired status of a ClusterQueue."""
    return status.cluster_queue_status(cache, name, features or cache.features)


def local_queue_status_of(
    cache: Cache, key: str, *, features: Features | None = None
) -> dict[str, Any]:
    """Desired status of a LocalQueue."""
    return status.local_queue_status(cache, key, features or cache.features)


def explanation_of(
    cache: Cache, key: str, *, features: Features | None = None
) -> Explanation | None:
    """Why a Workload is pending, or what it holds; None when it is not there."""
    return workload_explanation.explain(cache, key, features or cache.features)


def missing_levels_of(cache: Cache, name: str) -> dict[str, tuple[str, ...]]:
    """Nodes of a flavor that lack level labels."""
    return workload_explanation.missing_levels(cache, name)


def overlaps_of(cache: Cache) -> list[tuple[str, str, int]]:
    """Pairs of flavors that share nodes."""
    return workload_explanation.overlaps(cache)


def rebuild_matches(cache: Cache) -> list[str]:
    """What a cache and a rebuild from the same objects disagree on, as texts."""
    return [str(mismatch) for mismatch in mismatches(cache)]


def admit_all(cache: Cache) -> dict[str, Assignment]:
    """Run one cycle and let the cache see every admission, as the watch would show it."""
    granted = admissions(plan_cycle(cache))
    for name, assignment in granted.items():
        cache.assume(f"team/{name}", assignment)
    return granted
