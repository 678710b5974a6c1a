"""v1beta1 and v1beta2 of Kueue's kinds, field by field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api.conversion import (
    MAX_DOMAINS_BYTES,
    OLD_API_VERSION,
    ConversionError,
    convert,
    domains_bytes,
)
from rackgate.api.crd import CRD_KINDS
from rackgate.api.names import API_VERSION
from rackgate.topology.assignment import TopologyAssignment, encode

Object = dict[str, Any]
META = {"name": "x", "uid": "u", "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}]}


def obj(kind: str, version: str = OLD_API_VERSION, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": META, **fields}


def to_new(kind: str, **fields: Any) -> Object:
    given = obj(kind, **fields)
    before = copy.deepcopy(given)
    found = convert(given, API_VERSION)
    assert given == before, "the argument is left alone"
    assert (found.pop("apiVersion"), found.pop("kind")) == (API_VERSION, kind)
    assert found.pop("metadata") == META
    return found


def to_old(kind: str, **fields: Any) -> Object:
    given = obj(kind, API_VERSION, **fields)
    before = copy.deepcopy(given)
    found = convert(given, OLD_API_VERSION)
    assert given == before, "the argument is left alone"
    assert (found.pop("apiVersion"), found.pop("kind")) == (OLD_API_VERSION, kind)
    assert found.pop("metadata") == META
    return found


# kind, fields in v1beta1, fields in v1beta2
PAIRS: list[tuple[str, Object, Object]] = [
    ("ClusterQueue", {"spec": {"cohort": "team"}}, {"spec": {"cohortName": "team"}}),
    (
        "ClusterQueue",
        {"spec": {"admissionChecks": ["a", "b"]}},
        {
            "spec": {
                "admissionChecksStrategy": {
                    "admissionChecks": [
                        {"name": "a", "onFlavors": []},
                        {"name": "b", "onFlavors": []},
                    ]
                }
            }
        },
    ),
    (
        "ClusterQueue",
        {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "a"}]}}},
        {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "a"}]}}},
    ),
    (
        "ClusterQueue",
        {"spec": {"flavorFungibility": {"whenCanBorrow": "MayStopSearch"}}},
        {"spec": {"flavorFungibility": {"whenCanBorrow": "MayStopSearch"}}},
    ),
    (
        "LocalQueue",
        {"spec": {"clusterQueue": "cq"}, "status": {"flavorUsage": [{"name": "tas"}]}},
        {"spec": {"clusterQueue": "cq"}, "status": {"flavorsUsage": [{"name": "tas"}]}},
    ),
    (
        "Workload",
        {
            "spec": {
                "priority": 5,
                "priorityClassName": "low",
                "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
            },
            "status": {"accumulatedPastExexcutionTimeSeconds": 0},
        },
        {
            "spec": {
                "priority": 5,
                "priorityClassRef": {
                    "group": "kueue.x-k8s.io",
                    "kind": "WorkloadPriorityClass",
                    "name": "low",
                },
            },
            "status": {"accumulatedPastExecutionTimeSeconds": 0},
        },
    ),
    (
        "Workload",
        {
            "spec": {
                "priorityClassName": "high",
                "priorityClassSource": "scheduling.k8s.io/priorityclass",
            }
        },
        {
            "spec": {
                "priorityClassRef": {
                    "group": "scheduling.k8s.io",
                    "kind": "PriorityClass",
                    "name": "high",
                }
            }
        },
    ),
    (
        "Workload",
        {"spec": {"podSets": [{"name": "main", "preemptionGates": [{"name": "g"}]}]}},
        {"spec": {"podSets": [{"name": "main", "preemptionGates": [{"name": "g"}]}]}},
    ),
    ("Cohort", {"spec": {"parentName": "root"}}, {"spec": {"parentName": "root"}}),
    ("WorkloadPriorityClass", {"value": 3}, {"value": 3}),
    ("AdmissionCheck", {"spec": {"retryDelayMinutes": 1}}, {"spec": {"retryDelayMinutes": 1}}),
    ("Topology", {"spec": {"levels": []}}, {"spec": {"levels": []}}),
    ("ResourceFlavor", {"spec": {}}, {"spec": {}}),
    ("LocalQueue", {}, {}),
    (
        "Workload",
        {"spec": None, "status": {"admission": None}},
        {"spec": None, "status": {"admission": None}},
    ),
]


@pytest.mark.requirement("OPS-04")
@pytest.mark.parametrize(("kind", "old", "new"), PAIRS)
def test_both_ways(kind: str, old: Object, new: Object) -> None:
    assert to_new(kind, **old) == new
    assert to_old(kind, **new) == old


def test_every_kind_of_the_group_is_known() -> None:
    for kind in CRD_KINDS:
        to_new(kind.model.__name__)


# Spellings of v1beta1 that come back in another one, see ADR 67.
SPELLINGS: list[tuple[str, Object, Object]] = [
    (
        "ClusterQueue",
        {"spec": {"flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}}},
        {
            "spec": {
                "flavorFungibility": {
                    "whenCanBorrow": "MayStopSearch",
                    "whenCanPreempt": "MayStopSearch",
                }
            }
        },
    ),
    ("ClusterQueue", {"spec": {"admissionChecks": []}}, {"spec": {}}),
    (
        "ClusterQueue",
        {
            "spec": {
                "admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": []}]}
            }
        },
        {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "a"}]}}},
    ),
    (
        "Workload",
        {"spec": {"priorityClassName": "high", "priorityClassSource": ""}},
        {
            "spec": {
                "priorityClassName": "high",
                "priorityClassSource": "scheduling.k8s.io/priorityclass",
            }
        },
    ),
    ("Workload", {"spec": {"priorityClassName": "", "priorityClassSource": ""}}, {"spec": {}}),
    (
        "Workload",
        {"spec": {"priorityClassSource": "scheduling.k8s.io/priorityclass"}},
        {"spec": {}},
    ),
]


@pytest.mark.parametrize(("kind", "written", "read"), SPELLINGS)
def test_spellings_of_the_older_version_come_back_in_one(
    kind: str, written: Object, read: Object
) -> None:
    stored = convert(obj(kind, **written), API_VERSION)
    found = convert(stored, OLD_API_VERSION)
    assert found == obj(kind, **read)
    assert convert(found, API_VERSION) == stored


def test_a_list_of_checks_is_put_before_a_strategy_as_in_kueue() -> None:
    """The schema of v1beta1 rejects both together; nothing that was stored may fail."""
    strategy = {"admissionChecks": [{"name": "b", "onFlavors": ["x"]}]}
    spec = {"admissionChecks": ["a"], "admissionChecksStrategy": strategy}
    found = to_new("ClusterQueue", spec=spec)["spec"]["admissionChecksStrategy"]
    assert found == {"admissionChecks": [{"name": "a", "onFlavors": []}]}


def test_the_name_of_v1beta1_is_put_before_that_of_v1beta2_in_it() -> None:
    """The schemas have one of both; nothing that was stored in another way may fail."""
    both = {"cohort": "older", "cohortName": "newer"}
    assert to_new("ClusterQueue", spec=both) == {"spec": {"cohortName": "older"}}
    assert to_old("ClusterQueue", spec=both) == {"spec": {"cohort": "newer"}}


def assigned(assignment: Object) -> Object:
    podset = {"name": "main", "count": 4, "topologyAssignment": assignment}
    admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "driver"}, podset]}
    return {"status": {"admission": admission, "conditions": []}}


LEVELS = ["block", "rack"]
ROWS: list[Object] = [
    {"values": ["b1", "r1"], "count": 4},
    {"values": ["b1", "r2"], "count": 2},
    {"values": ["b2", "r1"], "count": 2},
]


@pytest.mark.requirement("OPS-04", "TAS-30")
def test_domains_are_slices_in_the_same_order() -> None:
    rows = ((("b1", "r1"), 4), (("b1", "r2"), 2), (("b2", "r1"), 2))
    slices = encode(TopologyAssignment(tuple(LEVELS), rows))
    old = assigned({"levels": LEVELS, "domains": ROWS})
    assert to_new("Workload", **old) == assigned(slices)
    assert to_old("Workload", **assigned(slices)) == old


@pytest.mark.requirement("OPS-04")
def test_a_domain_twice_and_none_at_all_are_not_this_functions_business() -> None:
    """Kueue may have stored them, and one failure fails the list of all Workloads."""
    twice = {"levels": ["rack"], "domains": [{"values": ["r1"], "count": 1}] * 2}
    stored = to_new("Workload", **assigned(twice))
    # It is no valid assignment, so it stays in slices.
    assert to_old("Workload", **stored) == stored
    assert to_new("Workload", **stored) == stored
    nothing: Object = {"levels": ["rack"], "domains": []}
    stored = to_new("Workload", **assigned(nothing))
    assert stored == assigned({"levels": ["rack"], "slices": []})
    assert to_old("Workload", **stored) == assigned(nothing)


@pytest.mark.field_note("W5")
def test_a_few_bytes_cannot_become_many() -> None:
    """They stay in slices, which v1beta1 has for that."""
    wide = "x" * 63
    part = {
        "domainCount": 100_000,
        "valuesPerLevel": [
            *({"universal": wide} for _ in range(15)),
            {"individual": {"prefix": "n", "roots": [str(i) for i in range(100_000)]}},
        ],
        "podCounts": {"universal": 1},
    }
    bomb = assigned({"levels": [f"l{i}" for i in range(16)], "slices": [part, part]})
    assert MAX_DOMAINS_BYTES < 16 * 63 * 100_000
    assert to_old("Workload", **bomb) == bomb
    hidden = {**part, "domainCount": -(10**9)}
    bomb = assigned({"levels": [f"l{i}" for i in range(16)], "slices": [part, hidden]})
    assert domains_bytes(obj("Workload", API_VERSION, **bomb), OLD_API_VERSION) > MAX_DOMAINS_BYTES
    assert to_old("Workload", **bomb) == bomb
    assert to_new("Workload", **bomb) == bomb


def test_domains_are_all_there_or_not_at_all() -> None:
    rows = ((("b1", "r1"), 4), (("b1", "r2"), 2))
    given = obj("Workload", API_VERSION, **assigned(encode(TopologyAssignment(("b", "r"), rows))))
    podsets = given["status"]["admission"]["podSetAssignments"]
    podsets.append(podsets[1])
    needed = domains_bytes(given, OLD_API_VERSION)
    kept = convert(given, OLD_API_VERSION, needed - 1)
    assert kept == {**given, "apiVersion": OLD_API_VERSION}
    old = convert(given, OLD_API_VERSION, needed)
    found = old["status"]["admission"]["podSetAssignments"]
    assert [len(one["topologyAssignment"]["domains"]) for one in found[1:]] == [2, 2]
    assert domains_bytes(old, API_VERSION) == domains_bytes(given, API_VERSION) == 0


def test_the_largest_cluster_fits() -> None:
    rows = tuple(((f"node-{i:06d}.example",), 8) for i in range(100_000))
    stored = assigned(encode(TopologyAssignment(("kubernetes.io/hostname",), rows)))
    old = to_old("Workload", **stored)
    found = old["status"]["admission"]["podSetAssignments"][1]["topologyAssignment"]
    assert len(found["domains"]) == 100_000
    assert to_new("Workload", **old) == stored


BAD: list[tuple[Object, str]] = [
    (obj("Pod"), 'kind: "Pod": must be one of AdmissionCheck, '),
    (obj("", "v1"), 'apiVersion: "v1": must be kueue.x-k8s.io/v1beta2 or '),
    (obj("ClusterQueue", spec=[]), "spec: a list of 0: must be an object"),
    (
        obj("ClusterQueue", spec={"admissionChecks": "a"}),
        'spec.admissionChecks: "a": must be a list',
    ),
    (
        obj("ClusterQueue", spec={"flavorFungibility": 3}),
        "spec.flavorFungibility: 3: must be an object",
    ),
    (obj("LocalQueue", status="x"), 'status: "x": must be an object'),
    (
        obj("Workload", spec={"priorityClassName": "a", "priorityClassSource": "b"}),
        'spec.priorityClassSource: "b": must be kueue.x-k8s.io/workloadpriorityclass or ',
    ),
    (
        obj("Workload", **assigned({"levels": [], "domains": ROWS})),
        "status.admission.podSetAssignments[1].topologyAssignment.levels: a list of 0: must be ",
    ),
    (
        obj("Workload", **assigned({"levels": ["rack"], "domains": ROWS})),
        "status.admission.podSetAssignments[1].topologyAssignment.domains[0].values: 2 values: ",
    ),
    (
        obj("Workload", **assigned({"levels": ["r"], "domains": [{"values": [1], "count": 1}]})),
        "status.admission.podSetAssignments[1].topologyAssignment.domains[0].values: a list of 1",
    ),
    (
        obj("Workload", **assigned({"levels": ["r"], "domains": [{"values": ["a"]}]})),
        "status.admission.podSetAssignments[1].topologyAssignment.domains[0].count: nothing: must",
    ),
    (
        obj("Workload", **assigned({"levels": ["r"], "domains": [7]})),
        "status.admission.podSetAssignments[1].topologyAssignment.domains[0]: 7: must be an obj",
    ),
    (
        obj("Workload", **assigned({"levels": LEVELS, "domains": ROWS, "slices": []})),
        "status.admission.podSetAssignments[1].topologyAssignment: domains and slices cannot",
    ),
    (
        obj("Workload", status={"admission": {"podSetAssignments": [3]}}),
        "status.admission.podSetAssignments[0]: 3: must be an object",
    ),
]


@pytest.mark.requirement("OPS-04")
@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_cannot_be_converted_is_named(given: Object, message: str) -> None:
    with pytest.raises(ConversionError) as error:
        convert(given, API_VERSION)
    assert str(error.value).startswith(message)


def test_only_two_versions_are_known() -> None:
    with pytest.raises(ConversionError, match=r"^desiredAPIVersion: \"v1\": must be "):
        convert(obj("Cohort"), "v1")
    same = obj("Cohort")
    assert convert(same, OLD_API_VERSION) == same
