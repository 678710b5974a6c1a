"""From the wire to the decision: whatever the API server accepts is folded, judged and answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackgate.features import Features
from rackgate.topology.assignment import decode, encode
from rackgate.wire import core, kueue
from rackgate_assigner import watches
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.node_replacement.second_pass import second_pass
from rackgate_assigner.workload.decisions import Admit, Deactivate, Decision, Requeue
from rackgate_assigner.workload.status import admission_of
from tests.support import odd_cluster
from tests.support import odd_objects as odd
from tests.unit.assigner.builders import (
    cluster_queue_status_of,
    explanation_of,
    flavor,
    local_queue,
    namespace,
    node,
    plan_cycle,
    rebuild_matches,
    topology,
)

CRDS: Final = Path("deploy/crds")
FEATURES: Final[tuple[dict[str, bool], ...]] = (
    {},
    {},
    {"TASBalancedPlacement": True, "TASRespectNodeAffinityPreferred": True},
    {"TASProfileMixed": False, "RequireTopologyOnAllPodSets": True},
    {"RackgateRequiredAndPreferred": True, "RackgateFewestDomains": True},
    {"RackgateBestFitBelowSlices": True, "RackgateLeaderRules": True},
    {"RackgateLeaderRefusals": True, "RackgateNodesBelowLeaves": True},
    {"TopologyAwareScheduling": False, "DeactivateInvalidTopology": False},
)

Fold = Callable[[Cache, bytes], None]
FOLDS: Final[dict[str, Fold]] = {
    "node": lambda cache, raw: cache.set_node(watches.decoder(core.Node)(raw)),
    "pod": lambda cache, raw: cache.set_pod(watches.decode_pod(raw)),
    "workload": lambda cache, raw: cache.set_workload(watches.decode_workload(raw)),
    "topology": lambda cache, raw: cache.set_topology(watches.decoder(kueue.Topology)(raw)),
    "flavor": lambda cache, raw: cache.set_flavor(watches.decoder(kueue.ResourceFlavor)(raw)),
    "queue": lambda cache, raw: cache.set_cluster_queue(watches.decoder(kueue.ClusterQueue)(raw)),
}
KINDS: Final = {
    "node": odd_cluster.nodes(),
    "pod": odd_cluster.pods(),
    "workload": odd.workloads(),
    "topology": odd_cluster.topologies(),
    "flavor": odd_cluster.flavors(),
    "queue": odd_cluster.cluster_queues(),
}
# Workloads and nodes most often: the others are few in any cluster.
events: st.SearchStrategy[tuple[str, odd.Json]] = st.sampled_from(
    ["workload"] * 10 + ["node"] * 8 + ["pod"] * 4 + ["topology", "flavor", "queue"]
).flatmap(lambda kind: KINDS[kind].map(lambda found: (kind, found)))


def schema(plural: str) -> jsonschema.Draft202012Validator:
    crd = yaml.safe_load((CRDS / f"kueue.x-k8s.io_{plural}.yaml").read_text())
    (version,) = (one for one in crd["spec"]["versions"] if one["name"] == "v1beta2")
    return jsonschema.Draft202012Validator(version["schema"]["openAPIV3Schema"])


SCHEMAS: Final = {
    "workload": schema("workloads"),
    "topology": schema("topologies"),
    "flavor": schema("resourceflavors"),
    "queue": schema("clusterqueues"),
}


def world(features: dict[str, bool]) -> Cache:
    """A small cluster in order, so that odd objects meet something that works."""
    cache = Cache(Features.of(features))
    cache.set_namespace(namespace())
    cache.set_topology(topology(levels=odd.LEVELS))
    cache.set_flavor(flavor(node_labels={"pool": "a"}))
    labels = {"pool": "a", "topo/zone": "a", "topo/rack": "b"}
    for name in odd.NODES[:3]:
        cache.set_node(node(name, labels=labels))
    quota = {"cpu": "1000", "memory": "1000Gi"}
    for name in odd.QUEUES:
        resources = [{"name": key, "nominalQuota": value} for key, value in quota.items()]
        flavors = [{"name": "tas", "resources": resources}]
        group = {"coveredResources": list(quota), "flavors": flavors}
        spec = {"namespaceSelector": {}, "resourceGroups": [group]}
        raw = json.dumps({"metadata": {"name": name, "generation": 1}, "spec": spec}).encode()
        FOLDS["queue"](cache, raw)
    cache.set_local_queue(local_queue())
    cache.set_local_queue(local_queue("fifo", "fifo"))
    return cache


def check_decisions(cache: Cache, decisions: list[Decision]) -> None:
    """Every waiting Workload is answered, once, in a form that can be written."""
    answered: dict[str, Decision] = {}
    for decision in decisions:
        assert decision.workload not in answered
        answered[decision.workload] = decision
        if isinstance(decision, Requeue):
            assert decision.error == "", decision.error
        if isinstance(decision, Requeue | Deactivate):
            assert 0 < len(decision.message) <= 1024
        if isinstance(decision, Admit):
            check_grant(decision)
    for key, row in cache.workloads.items():
        if row.pending and key not in cache.assumed:
            told = bool(row.pending_reason)  # a hold that is written already is left out
            assert key in answered or told


def check_grant(decision: Admit) -> None:
    for part in decision.assignment.podsets:
        assert all(amount >= 0 for amount in part.usage.values())
        if part.topology is not None:
            assert part.topology.count == part.count
            assert decode(encode(part.topology)) == part.topology
    json.dumps(admission_of(decision.assignment))


def check_repairs(cache: Cache, features: dict[str, bool]) -> None:
    """Broken nodes of whatever is admitted can be looked at."""
    hosts = Hosts()
    for facts in cache.nodes.values():
        hosts.put(facts)
    second_pass(cache.snapshot(), hosts, {}, Features.of(features))


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.sampled_from(FEATURES), st.lists(events, min_size=1, max_size=12), st.data())
@pytest.mark.requirement("OPS-07")
@pytest.mark.field_note("C16", "C17", "C23")
def test_nothing_that_is_stored_stops_the_engine(
    features: dict[str, bool], stream: list[tuple[str, odd.Json]], data: st.DataObject
) -> None:
    cache = world(features)
    for kind, found in stream:
        FOLDS[kind](cache, odd.encoded(found))
    decisions = plan_cycle(cache)
    check_decisions(cache, decisions)
    for decision in decisions:
        if isinstance(decision, Admit):
            cache.assume(decision.workload, decision.assignment)
    assert rebuild_matches(cache) == []
    check_decisions(cache, plan_cycle(cache))
    check_repairs(cache, features)
    for key in cache.workloads:
        explanation_of(cache, key)
    for name in cache.cluster_queues:
        cluster_queue_status_of(cache, name)
    for kind, found in stream:
        if kind == "workload" and data.draw(st.booleans()):
            cache.drop_workload(f"team/{found['metadata']['name']}")
        if kind == "node" and data.draw(st.booleans()):
            cache.drop_node(found["metadata"]["name"])
    assert rebuild_matches(cache) == []
    check_decisions(cache, plan_cycle(cache))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(events)
def test_what_is_fed_is_what_the_schemas_let_through(event: tuple[str, Any]) -> None:
    kind, found = event
    if kind in SCHEMAS:
        shown = [error.message[:200] for error in SCHEMAS[kind].iter_errors(found)]
        assert shown == []
