"""What a job requests for the groups of its gang Workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rackgate.api.names import COMPLETION_INDEX_LABEL, JOB_INDEX_LABEL, REPLICATED_JOB_LABEL
from rackgate.gang.forms.expand import expand
from rackgate.gang.nesting import (
    Enclosing,
    NestedPodSet,
    NestingError,
    decode_nesting,
    encode_nesting,
)
from rackgate.gang.topology_requests import (
    GangPodSet,
    Rejected,
    RejectedReason,
    Requests,
    topology_requests,
)

ZONE, BLOCK, RACK, HOST = "zone", "block", "rack", "kubernetes.io/hostname"
LEVELS = (BLOCK, RACK, HOST)


def podset(name: str = "main", count: int = 8, **rest: Any) -> GangPodSet:
    return GangPodSet(name, count, {REPLICATED_JOB_LABEL: name}, **rest)


def ask(
    spec: Mapping[str, Any],
    *podsets: GangPodSet,
    topologies: Sequence[Sequence[str]] | None = (LEVELS,),
    nested: bool = True,
) -> Requests | Rejected:
    return topology_requests(
        expand(spec), podsets or (podset(),), workload="w", topologies=topologies, nested=nested
    )


def requests(spec: Mapping[str, Any], *podsets: GangPodSet, **rest: Any) -> Requests:
    found = ask(spec, *podsets, **rest)
    assert isinstance(found, Requests), found
    return found


def rejected(spec: Mapping[str, Any], *podsets: GangPodSet, **rest: Any) -> Rejected:
    found = ask(spec, *podsets, **rest)
    assert isinstance(found, Rejected), found
    return found


def level(mode: str, key: str) -> dict[str, Any]:
    return {"topologyRequest": {mode: key}}


def ranked(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, **fields} for name in names]


@pytest.mark.requirement("GNG-38")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"required": RACK}, {"required": RACK}),
        ({"preferred": RACK}, {"preferred": RACK}),
        ({"unconstrained": True}, {"unconstrained": True}),
    ],
)
def test_one_level_over_one_podset_is_its_own_request(
    asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert requests({"topologyRequest": asked}) == Requests({"main": expected})


def test_a_required_level_implies_the_coarser_ones_around_it() -> None:
    gang = {"name": "gg", **level("required", RACK)}
    for mode in ("required", "preferred"):
        spec = {**level(mode, BLOCK), "gangGroups": [gang]}
        assert requests(spec, nested=False) == Requests({"main": {"required": RACK}})


def test_a_preferred_level_implies_coarser_preferred_ones() -> None:
    spec = {
        **level("preferred", BLOCK),
        "gangGroups": [{"name": "gg", **level("preferred", RACK)}],
    }
    assert requests(spec, nested=False) == Requests({"main": {"preferred": RACK}})


@pytest.mark.requirement("GNG-38")
def test_a_preferred_level_in_a_required_one_is_nested() -> None:
    spec = {
        **level("required", BLOCK),
        "gangGroups": [{"name": "gg", **level("preferred", RACK)}],
    }
    within = (Enclosing("spec", BLOCK, required=True),)
    assert requests(spec) == Requests(
        {"main": {"preferred": RACK}}, (NestedPodSet("main", within),)
    )


def test_a_leader_with_its_workers_is_a_podset_group() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 8, **level("required", RACK)}]}
    asked = {"required": RACK, "podSetGroupName": "w-gg"}
    found = requests(spec, podset("leader", 1), podset("worker", 7), nested=False)
    assert found == Requests({"leader": asked, "worker": asked})


@pytest.mark.requirement("GNG-38")
def test_groups_of_a_gang_in_racks_of_one_block_are_nested() -> None:
    gang = {
        "name": "gg",
        **level("required", BLOCK),
        "rankedGroups": ranked("b", "a", **level("required", RACK)),
    }
    found = requests({"gangGroups": [gang]}, podset("a"), podset("b"))
    within = (Enclosing("gg", BLOCK, required=True),)
    # They are placed in the order of the spec.
    assert found.nesting == (NestedPodSet("b", within), NestedPodSet("a", within))
    assert found.by_podset == {"a": {"required": RACK}, "b": {"required": RACK}}


@pytest.mark.requirement("GNG-38")
def test_podsets_without_a_level_of_their_own_keep_to_the_one_around_them() -> None:
    gang = {"name": "gg", **level("preferred", RACK), "rankedGroups": ranked("a", "b", "c")}
    spec = {**level("required", BLOCK), "gangGroups": [gang, {"name": "d"}]}
    found = requests(spec, *map(podset, "abcd"))
    outer = Enclosing("spec", BLOCK, required=True)
    inner = Enclosing("gg", RACK, required=False)
    # `d` has the label of no gang group but its own name.
    assert found.by_podset["d"] == {"required": BLOCK}
    assert found.nesting[0].within == (outer,)
    spec = {**level("required", BLOCK), "gangGroups": [gang]}
    found = requests(spec, *map(podset, "abc"))
    assert found.by_podset == {name: {"preferred": RACK} for name in "abc"}
    assert {one.within for one in found.nesting} == {(outer, inner)}


def test_replicas_in_one_podset_are_slices() -> None:
    gang = {"name": "gg", "minCount": 4, **level("required", RACK)}
    spec = {"replicaMode": "ReplicatedGangs", **level("preferred", BLOCK), "gangGroups": [gang]}
    slices = {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}
    found = requests(spec, podset(count=8, parts=2), nested=False)
    assert found == Requests({"main": {"preferred": BLOCK, **slices}})
    one_replica = requests(spec, podset(count=4), nested=False)
    assert one_replica == Requests({"main": {"required": RACK}})
    assert rejected(spec, podset("a", 4, parts=2), podset("b", 4, parts=2)).path == (
        "spec.gangGroups[0]"
    )


@pytest.mark.requirement("GNG-29", "GNG-38")
@pytest.mark.parametrize("where", ["spec", "gang"])
def test_each_child_job_with_a_workload_of_gangs_of_its_own_is_a_slice(where: str) -> None:
    gang = {"name": "gg", "minCount": 2, **(level("required", RACK) if where == "gang" else {})}
    spec = {"gangGroups": [gang], **(level("required", RACK) if where == "spec" else {})}
    four = podset(count=8, parts=4, copies=4)
    expected = {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 2}
    assert requests(spec, four).by_podset == {"main": expected}
    # One Job is the PodSet.
    one = podset(count=2, copies=1)
    assert requests(spec, one).by_podset == {"main": {"required": RACK}}
    # A level inside of each of them.
    spec["gangGroups"] = [{**gang, "rankedGroups": ranked("rg", **level("required", HOST))}]
    assert requests(spec, four).by_podset == {
        "main": {"podSetSliceRequiredTopology": HOST, "podSetSliceSize": 2}
    }


@pytest.mark.requirement("GNG-29", "GNG-38")
@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("preferred", podset(count=8, parts=4, copies=4)),
        # Without indexes no one knows which rank, and so which slice, a pod has.
        ("required", podset(count=8, parts=1, copies=4)),
    ],
)
def test_child_jobs_that_cannot_be_slices_are_rejected(mode: str, found: GangPodSet) -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 2, **level(mode, RACK)}]}
    answer = rejected(spec, found)
    assert answer.reason == RejectedReason.NOT_SUPPORTED
    assert answer.path.startswith("spec.gangGroups[0]")


def parts(key: str, *values: Sequence[str], **fields: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"p{at}", "selector": {"key": key, "values": list(part)}, **fields}
        for at, part in enumerate(values)
    ]


def test_equal_parts_by_rank_are_slices() -> None:
    asked = level("required", RACK)
    groups = parts(COMPLETION_INDEX_LABEL, "0123", "4567", **asked)
    gang = {"name": "gg", **level("required", BLOCK), "rankedGroups": groups}
    slices = {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}
    assert requests({"gangGroups": [gang]}) == Requests({"main": {"required": BLOCK, **slices}})
    jobs = {"name": "gg", "rankedGroups": parts(JOB_INDEX_LABEL, "0", "1", **asked)}
    assert requests({"gangGroups": [jobs]}, podset(parts=2)) == Requests({"main": slices})
    shuffled = {
        "name": "gg",
        "rankedGroups": parts(COMPLETION_INDEX_LABEL, "3120", "7465", **asked),
    }
    assert requests({"gangGroups": [shuffled]}) == Requests({"main": slices})
    for values in (("0123", "456"), ("0246", "1357"), ("0123",)):
        uneven = {"name": "gg", "rankedGroups": parts(COMPLETION_INDEX_LABEL, *values, **asked)}
        assert rejected({"gangGroups": [uneven]}).reason is RejectedReason.NOT_SUPPORTED


def test_a_podset_without_pods_has_no_parts() -> None:
    groups = [
        {
            "name": name,
            "selector": {"key": COMPLETION_INDEX_LABEL, "values": [value]},
            **level("required", RACK),
        }
        for name, value in (("a", "0"), ("b", "1"))
    ]
    spec = {"gangGroups": [{"name": "gg", "rankedGroups": groups}]}
    assert requests(spec, podset(count=0)) == Requests()
    slices = {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 1}
    assert requests(spec, podset(count=2)) == Requests({"main": slices})


def test_two_layers_of_parts_are_constraints() -> None:
    groups = parts(COMPLETION_INDEX_LABEL, "01", "23", "45", "67", **level("required", HOST))
    gang = {
        "name": "gg",
        "minCount": 4,
        **level("required", RACK),
        "rankedGroups": groups,
    }
    spec = {"replicaMode": "ReplicatedGangs", "gangGroups": [gang]}
    layers = [{"topology": RACK, "size": 4}, {"topology": HOST, "size": 2}]
    found = requests(spec, podset(parts=2))
    assert found == Requests({"main": {"podsetSliceRequiredTopologyConstraints": layers}})


@pytest.mark.requirement("GNG-36")
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_the_rank_of_a_group_is_the_index_label_of_its_pods(where: str) -> None:
    path = f"metadata.{where}['example.com/rank']"
    group = {
        "name": "rg",
        "podRank": {"valueFrom": {"fieldRef": {"fieldPath": path}}},
        **level("required", RACK),
    }
    spec = {"gangGroups": [{"name": "gg", "rankedGroups": [group]}]}
    expected = {"required": RACK, "podIndexLabel": "example.com/rank"}
    assert requests(spec) == Requests({"main": expected})
    # Also for what the template asks.
    del group["topologyRequest"]
    asked = podset(request={"required": BLOCK, "podIndexLabel": "x"})
    expected = {"required": BLOCK, "podIndexLabel": "example.com/rank"}
    assert requests(spec, asked) == Requests({"main": expected})
    assert requests(spec) == Requests(), "without a request there is nothing to rank"
    group |= {"rankMode": "Off", **level("required", RACK)}
    assert requests(spec) == Requests({"main": {"required": RACK}})


@pytest.mark.requirement("GNG-38")
@pytest.mark.parametrize(
    ("outer", "inner", "reason"),
    [
        (RACK, BLOCK, RejectedReason.NOT_NARROWER),
        (RACK, RACK, RejectedReason.NOT_NARROWER),
        (BLOCK, "row", RejectedReason.UNKNOWN_LEVEL),
    ],
)
def test_levels_must_be_known_and_become_finer(
    outer: str, inner: str, reason: RejectedReason
) -> None:
    spec = {
        **level("required", outer),
        "gangGroups": [{"name": "gg", **level("required", inner)}],
    }
    found = rejected(spec)
    assert (found.reason, found.path) == (reason, "spec.gangGroups[0].topologyRequest")
    assert f'"{inner}"' in found.message


def test_one_fitting_topology_of_the_queue_is_enough() -> None:
    spec = {
        **level("required", BLOCK),
        "gangGroups": [{"name": "gg", **level("required", RACK)}],
    }
    assert requests(spec, topologies=[(ZONE, HOST), (BLOCK, RACK)]).by_podset
    assert requests(spec, topologies=None).by_podset  # nothing is known
    assert rejected(spec, topologies=[(ZONE, HOST)]).reason is RejectedReason.UNKNOWN_LEVEL


def test_without_a_topology_in_the_queue_no_level_is_known() -> None:
    found = rejected({"gangGroups": [{"name": "gg", **level("preferred", RACK)}]}, topologies=())
    assert (found.reason, found.path) == (
        RejectedReason.UNKNOWN_LEVEL,
        "spec.gangGroups[0].topologyRequest",
    )
    assert found.message == f'level "{RACK}" is not in a Topology: no flavor of the queue has one'
    assert requests({}, topologies=()) == Requests()


def test_claims_and_spread_are_reported_and_not_enforced() -> None:
    claims = {"topologyRequest": {"resourceClaims": [{"resourceClaimTemplate": "net"}]}}
    spec = {"topologySpread": {}, "gangGroups": [{"name": "gg", **claims}]}
    paths = ("spec.topologySpread", "spec.gangGroups[0].topologyRequest")
    assert requests(spec, podset("a"), podset("b")) == Requests(not_enforced=paths)


CLAIM: dict[str, Any] = {"topologyRequest": {"resourceClaims": [{"resourceClaim": "nvlink"}]}}


@pytest.mark.requirement("GNG-50")
def test_pods_that_share_a_claim_prefer_the_smallest_domain_that_holds_them() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 8, **CLAIM}]}
    lowest = LEVELS[-1]
    assert requests(spec) == Requests({"main": {"preferred": lowest}})
    # Also of several PodSets, where a shared domain can be expressed.
    found = requests(spec, podset("a", 3), podset("b", 5), nested=True)
    assert found.not_enforced == ()
    assert {
        one.podset: [(it.level, it.required) for it in one.within] for one in found.nesting
    } == {
        "a": [(lowest, False)],
        "b": [(lowest, False)],
    }


@pytest.mark.requirement("GNG-50")
@pytest.mark.parametrize(
    ("more", "podsets", "options"),
    [
        ({}, (podset("a", 3), podset("b", 5)), {"nested": False}),
        ({}, (podset(),), {"topologies": [(ZONE, HOST), (BLOCK, RACK)]}),
        ({}, (podset(),), {"topologies": None}),
        ({}, (podset(request={"required": RACK}),), {}),
        (level("required", BLOCK), (podset(),), {}),
    ],
    ids=["without nesting", "two lowest levels", "unknown levels", "a template asks", "both"],
)
def test_a_claim_never_rejects_a_job_and_says_where_it_has_no_effect(
    more: dict[str, Any], podsets: tuple[GangPodSet, ...], options: dict[str, Any]
) -> None:
    spec = {**more, "gangGroups": [{"name": "gg", "minCount": 8, **CLAIM}]}
    path = "spec.gangGroups[0].topologyRequest"
    assert requests(spec, *podsets, **options).not_enforced == (path,)


def test_a_template_that_asks_otherwise_conflicts() -> None:
    spec = level("required", RACK)
    same = {"required": RACK, "podIndexLabel": "x"}
    assert isinstance(ask(spec, podset(request=same)), Requests)
    found = rejected(spec, podset(request={"required": BLOCK}))
    assert (found.reason, found.path) == (
        RejectedReason.CONFLICTS_WITH_TEMPLATE,
        "spec.topologyRequest",
    )
    # A Workload that asks nothing leaves templates alone.
    assert requests({}, podset(request={"required": BLOCK})) == Requests()


def test_without_the_gate_nested_requests_are_rejected() -> None:
    spec = level("required", BLOCK)
    found = rejected(spec, *map(podset, "abc"), nested=False)
    assert (found.reason, found.path) == (RejectedReason.NOT_SUPPORTED, "spec.topologyRequest")
    assert "GangNestedPlacement" in found.message


def test_pods_that_no_group_takes_have_the_request_of_the_whole_alone() -> None:
    gangs = [{"name": name, **level("required", RACK)} for name in ("a", "b")]
    found = requests({**level("required", BLOCK), "gangGroups": gangs}, podset("a"), podset("x"))
    assert found.by_podset["x"] == {"required": BLOCK}


def nesting() -> tuple[NestedPodSet, ...]:
    outer = Enclosing("spec", BLOCK, required=True)
    return (
        NestedPodSet("b", (outer, Enclosing("gg/b", RACK, required=False))),
        NestedPodSet("a", (outer,)),
    )


def test_the_annotation_is_read_as_it_was_written() -> None:
    assert decode_nesting(encode_nesting(nesting())) == nesting()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 5000,
        "{}",
        "[]",
        "[1]",
        '[{"podSet":"a"}]',
        '[{"podSet":"","within":[{"group":"g","required":"x"}]}]',
        '[{"podSet":"a","within":[]}]',
        '[{"podSet":"a","within":[{"group":"g"}]}]',
        '[{"podSet":"a","within":[{"group":"g","required":"x","preferred":"y"}]}]',
        '[{"podSet":"a","within":[{"group":"g","required":1}]}]',
        '[{"podSet":"a","within":[{"group":"g","required":"x"},{"group":"g","required":"y"}]}]',
        '[{"podSet":"a","within":[{"group":"g","required":"x"}]},'
        '{"podSet":"a","within":[{"group":"g","required":"x"}]}]',
        '[{"podSet":"a","within":[{"group":"g","required":"x"}]},'
        '{"podSet":"b","within":[{"group":"g","required":"y"}]}]',
        " " * 20_000,
    ],
)
def test_an_annotation_that_cannot_be_read_names_its_path(text: str) -> None:
    with pytest.raises(NestingError, match=r"metadata\.annotations\[.*nested-topology\]"):
        decode_nesting(text)
