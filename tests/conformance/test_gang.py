"""Every case of gang Workloads: canonical and collapsed forms, refusals, pairs and settings."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest

from rackgate.api.crd import kind_schema
from rackgate.api.gang import Workload
from rackgate.gang.forms.collapse import collapse
from rackgate.gang.forms.expand import expand
from rackgate.gang.shape import shape_of
from rackgate.gang.validation import errors_beyond_the_schema, errors_of, warnings_of
from tests.support.gang_cases import (
    expand_cases,
    invalid_cases,
    pairs,
    rev1_specs,
    rev_n_specs,
    rules,
    settings,
)

EXPANDED: Final = sorted(expand_cases())
PAIRS: Final = sorted(pairs())
SERVER: Final = ("schema", "rule", "strict")
REV1: Final = dict(rev1_specs())
REV_N: Final = dict(rev_n_specs())
PLACES: Final = {
    "spec": [""],
    "spec.gangGroups[]": [".gangGroups"],
    "spec.rankedGroups[], spec.gangGroups[].rankedGroups[]": [
        ".rankedGroups",
        ".gangGroups.rankedGroups",
    ],
    "eqGroups[] (all three places)": [
        ".eqGroups",
        ".gangGroups.eqGroups",
        ".gangGroups.rankedGroups.eqGroups",
    ],
}
MESSAGES: Final = tuple(rule["message"] for place in rules().values() for rule in place)
REQUESTS: Final = [place for level in PLACES.values() for place in level]


def schema_at(path: str) -> dict[str, Any]:
    """The schema of an object in the spec; of an entry where the path leads to a list."""
    node = kind_schema(Workload)["properties"]["spec"]
    for part in path.split(".")[1:]:
        node = node["properties"][part]
        node = node.get("items", node)
    return dict(node)


def test_no_case_is_missing() -> None:
    assert (len(expand_cases()), len(pairs()), len(settings())) == (16, 9, 12)
    assert len(invalid_cases()) == 58
    assert (len(invalid_cases("webhook")), len(invalid_cases("condition"))) == (5, 1)


@pytest.mark.requirement("GNG-32", "GNG-34", "GNG-37", "GNG-41")
@pytest.mark.parametrize("name", EXPANDED)
def test_the_canonical_form_is_the_expected_one(name: str) -> None:
    case = copy.deepcopy(expand_cases()[name])
    assert expand(case["written"]) == case["canonical"]
    assert expand(case["collapsed"]) == case["canonical"]
    assert case == expand_cases()[name], "what was written stays as it is"


@pytest.mark.requirement("GNG-41")
@pytest.mark.parametrize("name", EXPANDED)
def test_the_collapsed_form_is_the_expected_one(name: str) -> None:
    case = expand_cases()[name]
    assert collapse(case["canonical"]) == case["collapsed"]
    assert collapse(case["written"]) == case["collapsed"]


@pytest.mark.requirement("GNG-41")
@pytest.mark.parametrize("name", EXPANDED)
def test_the_shape_is_the_expected_one(name: str) -> None:
    case = expand_cases()[name]
    forms = ("written", "canonical", "collapsed")
    assert {shape_of(case[form]) for form in forms} == {case["shape"]}


@pytest.mark.requirement("GNG-45")
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_has_the_expected_canonical_form_and_warnings(name: str) -> None:
    pair = pairs()[name]
    spec = pair["revN"]["spec"]
    assert expand(spec) == pair["canonical"]
    found = [{"path": one.path, "reason": one.reason} for one in warnings_of(spec)]
    assert found == pair.get("warnings", [])


@pytest.mark.requirement("GNG-33", "GNG-45", "GNG-47")
@pytest.mark.parametrize("name", REV_N)
def test_a_spec_of_rev_n_validates_and_comes_back_as_it_was_written(name: str) -> None:
    spec = REV_N[name]
    assert errors_of(spec, rev_n=True) == []
    written = {"metadata": {"name": "w"}, "spec": spec}
    assert Workload.model_validate(written).to_json()["spec"] == spec


@pytest.mark.requirement("GNG-09", "GNG-44")
@pytest.mark.parametrize("name", REV1)
def test_a_spec_of_rev1_validates_without_the_gate_and_means_the_same_with_it(name: str) -> None:
    assert errors_of(REV1[name], rev_n=False) == []
    assert errors_of(REV1[name], rev_n=True) == []
    assert errors_of(expand(REV1[name]), rev_n=True) == []


@pytest.mark.parametrize("name", sorted(invalid_cases(*SERVER)))
@pytest.mark.requirement("GNG-33", "GNG-39", "GNG-40")
def test_what_the_api_server_refuses_is_refused_at_the_same_path(name: str) -> None:
    case = invalid_cases()[name]
    found = errors_of(case["spec"], rev_n=True, old=case.get("old"))
    assert {error.path for error in found} == {case["path"]}
    if case["by"] == "rule":
        assert all(error.problem.startswith(MESSAGES) for error in found), found


@pytest.mark.parametrize("name", sorted(invalid_cases("webhook")))
def test_what_the_webhook_refuses_passes_all_before_and_says_what_would_help(name: str) -> None:
    case = invalid_cases()[name]
    (error,) = errors_of(case["spec"], rev_n=True)
    assert error.path == case["path"]
    assert error.help
    assert errors_beyond_the_schema(case["spec"]) == [error]


@pytest.mark.parametrize("name", sorted(invalid_cases("condition")))
def test_what_only_a_topology_can_tell_is_accepted(name: str) -> None:
    assert errors_of(invalid_cases()[name]["spec"], rev_n=True) == []


@pytest.mark.requirement("GNG-39")
@pytest.mark.parametrize("place", PLACES)
def test_the_rules_are_exactly_the_expected_ones(place: str) -> None:
    for path in PLACES[place]:
        found = schema_at(path)["x-kubernetes-validations"]
        assert found == rules()[place]


def test_every_level_may_request_a_topology_in_one_form() -> None:
    for path in REQUESTS:
        request = schema_at(f"{path}.topologyRequest")
        assert request["x-kubernetes-validations"] == rules()["topologyRequest (all levels)"]
        claims = request["properties"]["resourceClaims"]["items"]
        wanted = rules()["topologyRequest.resourceClaims[]"]
        assert claims["x-kubernetes-validations"] == wanted
