from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rackgate.api.crd import CRD_KINDS
from rackgate.api.errors import field_errors, field_problems
from tests.support.manifests import (
    BLOCK,
    cluster_queue,
    flavor,
    group,
    manifest,
    podset,
    request,
    topology,
    workload,
)

MODELS = {kind.model.__name__: kind.model for kind in CRD_KINDS}


def errors_of(found: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        MODELS[found["kind"]].model_validate(found)
    return field_errors(refused.value)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            topology(BLOCK, "rack", "Block/x"),
            'spec.levels[2].nodeLabel: value "Block/x" is not a label key:'
            ' use a form such as "rack" or "example.com/rack"',
        ),
        (topology(), "spec.levels: 0 entries are too few: 1 are needed"),
        (
            topology(*(f"l{i}" for i in range(17))),
            "spec.levels: 17 entries are too many: at most 16 are allowed",
        ),
        (manifest("Topology", "dc", spec={}), "spec.levels: the field is missing: add it"),
        (
            manifest("Topology", "dc", spec={"levels": {}}),
            "spec.levels: value an object is not a list: write a list",
        ),
        (
            topology(BLOCK, BLOCK),
            "spec.levels: levels must be unique: name every node label once",
        ),
        (
            flavor(topologyName="dc"),
            "spec.nodeLabels: at least one node label is required when topologyName is set",
        ),
        (
            flavor(nodeLabels={"example.com/pool": "a b"}),
            'spec.nodeLabels["example.com/pool"]: value "a b" is not a label value:'
            " use at most 63 letters, digits, -, _ and .",
        ),
        (
            flavor(nodeLabels={"k": 5}),
            "spec.nodeLabels.k: value 5 is not a string: write a string",
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota="ten")]),
            'spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: "ten" is not a quantity:'
            ' use a form such as "500m", "4" or "1.5Gi"',
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota="-5")]),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota:"
            " must not be negative: use 0 or more",
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota=0.5)]),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota:"
            " must be a quantity: a string such as 500m or 1.5Gi, or a whole number",
        ),
        (
            cluster_queue(queueingStrategy="Random"),
            'spec.queueingStrategy: value "Random" is not known:'
            " use one of 'StrictFIFO' or 'BestEffortFIFO'",
        ),
        (
            workload(podset(count=-1)),
            "spec.podSets[0].count: value -1 is too small: use 0 or more",
        ),
        (
            workload(podset(count=2**31)),
            "spec.podSets[0].count: value 2147483648 is too large: use 2147483647 or less",
        ),
        (
            request(required="r" * 64),
            f'spec.podSets[0].topologyRequest.required: value "{"r" * 64}" is too long:'
            " use at most 63 characters",
        ),
        (
            request(required="rack", unconstrained=True),
            "spec.podSets[0].topologyRequest:"
            " at most one of required, preferred and unconstrained may be set",
        ),
        (
            workload(podset("Main")),
            'spec.podSets[0].name: value "Main" is not a DNS label:'
            " use at most 63 lower-case letters, digits and -",
        ),
    ],
)
def test_refusals_name_path_value_and_help(found: dict[str, Any], line: str) -> None:
    assert errors_of(found) == [line]


def test_an_assignment_is_refused_by_the_path_inside() -> None:
    status = {
        "admission": {
            "clusterQueue": "cq",
            "podSetAssignments": [{"name": "main", "topologyAssignment": {"levels": ["l"]}}],
        }
    }
    (line,) = errors_of({**workload(), "status": status})
    assert line == (
        "status.admission.podSetAssignments[0].topologyAssignment:"
        " slices: nothing: must be a list of 1 to 1000 slices"
    )


def test_long_values_are_cut() -> None:
    (line,) = errors_of(topology("/" * 300))
    assert len(line) < 250


def test_refusals_are_bounded_in_number() -> None:
    found = flavor(tolerations=[{"operator": "x", "effect": "y", "value": 1, "key": 2}] * 8)
    assert len(errors_of(found)) == 16


def test_problem_and_advice_come_apart() -> None:
    with pytest.raises(ValidationError) as refused:
        MODELS["Topology"].model_validate(topology("a//b"))
    (found,) = field_problems(refused.value)
    assert found.path == "spec.levels[0].nodeLabel"
    assert found.problem == 'value "a//b" is not a label key'
    assert found.advice.startswith("use a form")


def test_a_manifest_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        MODELS["Topology"].model_validate([])
    assert field_errors(refused.value) == ["value a list is not an object: write an object"]
