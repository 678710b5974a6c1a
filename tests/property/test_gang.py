"""Expand and Collapse obey their laws on drawn specs, and no spec makes the validation raise."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rackgate.gang.describe import describe
from rackgate.gang.forms.collapse import collapse
from rackgate.gang.forms.expand import expand, quote_off
from rackgate.gang.levels import DEFAULT_NAMES, groups_of
from rackgate.gang.membership import NAME_LABELS, Parts, part_of
from rackgate.gang.shape import shape_of
from rackgate.gang.validation import errors_of

Spec = dict[str, Any]

LABELS = ("role", "example.com/part")
LEVELS = ("example.com/block", "example.com/rack")
RANK = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['example.com/index']"}}}
RESOURCES = {"requests": {"cpu": 1, "memory": "2Gi"}}
TEMPLATES: tuple[Spec, ...] = (
    {},
    {"resources": RESOURCES},
    {"containers": [{"name": "c", "resources": RESOURCES}]},
    {"resources": RESOURCES, "spec": {"containers": [{"name": "c"}, {"name": "d"}]}},
    {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}},
    {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
)
FORMS = st.one_of(
    st.fixed_dictionaries({"required": st.sampled_from(LEVELS)}),
    st.fixed_dictionaries({"preferred": st.sampled_from(LEVELS)}),
    st.just({"unconstrained": True}),
    st.just({"resourceClaims": [{"resourceClaim": "c"}, {"resourceClaimTemplate": "t"}]}),
)


def optional(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> Spec:
    wanted = draw(st.fixed_dictionaries({}, optional=fields))
    return dict(wanted)


@st.composite
def bounds(draw: st.DrawFn, most: int = 6) -> Spec:
    found = optional(draw, minCount=st.integers(0, 3), maxCount=st.integers(3, most))
    equal: int = draw(st.integers(0, 3))
    return {"minCount": equal, "maxCount": equal} if draw(st.booleans()) else found


def named(draw: st.DrawFn, level: str, groups: list[Spec]) -> list[Spec]:
    """With unique names, and selectors that tell the groups apart."""
    key = draw(st.sampled_from(LABELS))
    first = DEFAULT_NAMES[level] if draw(st.booleans()) else "a"
    names = [first, "b", "c"]
    selected = draw(st.integers(len(groups) - 1, len(groups)))
    for index, group in enumerate(groups):
        group["name"] = names[index]
        if index < selected:
            group["selector"] = {"key": key, "values": [f"v{index}", f"w{index}"]}
    return groups


@st.composite
def eq_groups(draw: st.DrawFn) -> list[Spec]:
    groups = []
    for _ in range(draw(st.integers(1, 2))):
        count = {"count": draw(st.integers(0, 3))}
        template = optional(draw, template=st.sampled_from(TEMPLATES))
        if draw(st.booleans()) and template:
            template["maxTemplate"] = {"resources": {"requests": {"cpu": 8, "memory": "8Gi"}}}
        own = count if draw(st.booleans()) else draw(bounds())
        groups.append(own | template | optional(draw, topologyRequest=FORMS))
    return named(draw, "eqGroups", groups)


@st.composite
def ranked_groups(draw: st.DrawFn) -> list[Spec]:
    groups = []
    for _ in range(draw(st.integers(1, 2))):
        inner = optional(draw, topologyRequest=FORMS, eqGroups=eq_groups())
        ranks = optional(draw, rankMode=st.just("Off"), podRank=st.just(RANK))
        groups.append(inner | ranks | draw(bounds(12)) | {})
    return named(draw, "rankedGroups", groups)


@st.composite
def gang_groups(draw: st.DrawFn, most: int) -> list[Spec]:
    groups = []
    for _ in range(draw(st.integers(1, most))):
        group = optional(
            draw,
            gangMode=st.sampled_from(("Gang", "Off")),
            scheduleTimeoutSeconds=st.sampled_from((1, 60, 120)),
            reschedulingPolicy=st.just("TerminateAll"),
            topologyRequest=FORMS,
        )
        if draw(st.booleans()):
            group["rankedGroups"] = draw(ranked_groups())
        else:
            group |= optional(
                draw, rankMode=st.just("Off"), podRank=st.just(RANK), eqGroups=eq_groups()
            )
        groups.append(group | draw(bounds(24)))
    return named(draw, "gangGroups", groups)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A spec without errors."""
    reference = st.just({"apiGroup": "batch", "kind": "Job", "name": "j"})
    spec = optional(draw, controllerRef=reference, topologyRequest=FORMS)
    mode = draw(st.sampled_from((None, "Unreplicated", "ReplicatedPods", "ReplicatedGangs")))
    if mode is not None:
        spec["replicaMode"] = mode
    if mode == "ReplicatedGangs":
        spec |= optional(draw, replicaKey=st.just("example.com/replica"))
    child = draw(st.sampled_from(("", "gangGroups", "gangGroups", "rankedGroups", "eqGroups")))
    if child == "gangGroups" or mode == "ReplicatedGangs":
        spec["gangGroups"] = draw(gang_groups(1 if (mode or "U") != "Unreplicated" else 3))
    elif child:
        spec[child] = draw(ranked_groups() if child == "rankedGroups" else eq_groups())
    assume(errors_of(spec, rev_n=True) == [])
    return spec


FILTERED = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


@pytest.mark.requirement("GNG-41")
@FILTERED
@given(specs())
def test_expand_and_collapse_obey_their_laws(spec: Spec) -> None:
    before = copy.deepcopy(spec)
    canonical, short = expand(spec), collapse(spec)
    assert expand(canonical) == canonical
    assert expand(short) == canonical
    assert expand(collapse(canonical)) == canonical
    assert collapse(expand(short)) == short
    assert len(json.dumps(short)) <= len(json.dumps(canonical))
    assert errors_of(canonical, rev_n=True) == []
    assert errors_of(short, rev_n=True) == []
    assert shape_of(spec) == shape_of(canonical) == shape_of(short)
    assert spec == before
    assert describe("w", spec) == describe("w", spec)


def facts(spec: Spec) -> list[str]:
    """What was written and may not be lost, in any order."""
    kept = ("selector", "topologyRequest", "podRank", "reschedulingPolicy", "replicaKey")
    found = []
    for group in groups_of(spec):
        name = group.value.get("name", "")
        if name not in DEFAULT_NAMES.values():
            found.append(name)
        found += [json.dumps([field, group.value[field]]) for field in kept if field in group.value]
    return sorted(found)


@pytest.mark.requirement("GNG-41")
@FILTERED
@given(specs())
def test_nothing_that_was_written_is_lost_or_invented(spec: Spec) -> None:
    assert facts(expand(spec)) == facts(collapse(spec)) == facts(spec)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**7) | st.sampled_from(("", "a", "100GB", "Off")),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(("name", "spec", "gangMode", "minCount")), inner, max_size=2
        )
    ),
    max_leaves=4,
)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A spec with one place replaced by anything."""
    spec: Any = copy.deepcopy(draw(specs()))
    holder = spec
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return draw(JSON)
        key = draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or draw(st.integers(0, 3)) == 0:
            holder[key] = draw(JSON)
            return spec
        holder = holder[key]


@FILTERED
@given(spoilt())
def test_whatever_is_written_is_judged_and_what_passes_can_be_described(spec: Any) -> None:
    spec = quote_off(spec)
    if errors_of(spec, rev_n=True) == []:
        assert errors_of(expand(spec), rev_n=True) == []
        assert describe("w", spec)


POD_LABELS = st.fixed_dictionaries(
    {},
    optional={
        **{label: st.sampled_from(("v0", "w1", "v2", "other")) for label in LABELS},
        **{label: st.sampled_from(("a", "b", *DEFAULT_NAMES.values())) for label in NAME_LABELS},
        "example.com/replica": st.sampled_from(("0", "1")),
        "leaderworkerset.sigs.k8s.io/group-key": st.sampled_from(("x", "y")),
        "example.com/any": st.sampled_from(("1", "2")),
    },
)


@pytest.mark.requirement("GNG-07")
@FILTERED
@given(specs(), st.lists(POD_LABELS, min_size=2, max_size=8))
def test_a_part_that_is_looked_up_once_is_that_of_each_pod(
    spec: Spec, pods: list[dict[str, str]]
) -> None:
    canonical = expand(spec)
    parts = Parts(canonical)
    assert [parts.of(labels) for labels in pods] == [part_of(canonical, one) for one in pods]
