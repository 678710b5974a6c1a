from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.crd import CRD_KINDS
from rackgate.api.meta import DNS_LABEL, LABEL_KEY, LABEL_VALUE
from rackgate_webhook.admission.objects import model_errors
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
    return [str(error) for error in model_errors(MODELS[found["kind"]], found)]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            topology(BLOCK, "rack", "Block/x"),
            f"spec.levels[2].nodeLabel: string should match pattern '{LABEL_KEY}',"
            ' found "Block/x"',
        ),
        (topology(), "spec.levels: list should have at least 1 item after validation, not 0"),
        (
            topology(*(f"l{i}" for i in range(17))),
            "spec.levels: list should have at most 16 items after validation, not 17",
        ),
        (manifest("Topology", "dc", spec={}), "spec.levels: field required"),
        (
            manifest("Topology", "dc", spec={"levels": {}}),
            "spec.levels: input should be a valid list",
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
            f"spec.nodeLabels.example.com/pool: string should match pattern '{LABEL_VALUE}',"
            ' found "a b"',
        ),
        (
            flavor(nodeLabels={"k": 5}),
            'spec.nodeLabels.k: input should be a valid string, found "5"',
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota="ten")]),
            'spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: "ten" is not a quantity:'
            ' use a form such as "500m", "4" or "1.5Gi", found "ten"',
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota="-5")]),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota:"
            ' must not be negative: use 0 or more, found "-5"',
        ),
        (
            cluster_queue(resourceGroups=[group("tas", nominalQuota=0.5)]),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota:"
            " must be a quantity: a string such as 500m or 1.5Gi, or a whole number,"
            ' found "0.5"',
        ),
        (
            cluster_queue(queueingStrategy="Random"),
            "spec.queueingStrategy: input should be 'StrictFIFO' or 'BestEffortFIFO',"
            ' found "Random"',
        ),
        (
            workload(podset(count=-1)),
            'spec.podSets[0].count: input should be greater than or equal to 0, found "-1"',
        ),
        (
            workload(podset(count=2**31)),
            "spec.podSets[0].count: input should be less than or equal to 2147483647,"
            ' found "2147483648"',
        ),
        (
            request(required="r" * 64),
            "spec.podSets[0].topologyRequest.required: string should have at most 63 characters,"
            f' found "{"r" * 64}"',
        ),
        (
            request(required="rack", unconstrained=True),
            "spec.podSets[0].topologyRequest:"
            " at most one of required, preferred and unconstrained may be set",
        ),
        (
            workload(podset("Main")),
            f"spec.podSets[0].name: string should match pattern '{DNS_LABEL}', found \"Main\"",
        ),
    ],
)
def test_rejections_name_path_and_value(found: dict[str, Any], line: str) -> None:
    assert errors_of(found) == [line]


def test_an_assignment_is_rejected_by_the_path_inside() -> None:
    status = {
        "admission": {
            "clusterQueue": "cq",
            "podSetAssignments": [{"name": "main", "topologyAssignment": {"levels": ["l"]}}],
        }
    }
    (line,) = errors_of({**workload(), "status": status})
    assert line == (
        "status.admission.podSetAssignments[0].topologyAssignment:"
        " value error, slices: nothing: must be a list of 1 to 1000 slices"
    )


def test_long_values_are_cut() -> None:
    (line,) = errors_of(topology("/" * 300))
    assert "/" * 100 not in line


def test_rejections_are_bounded_in_number() -> None:
    found = flavor(tolerations=[{"operator": "x", "effect": "y", "value": 1, "key": 2}] * 8)
    assert len(errors_of(found)) == 16


def test_problem_and_path_come_apart() -> None:
    (found,) = model_errors(MODELS["Topology"], topology("a//b"))
    assert found.path == "spec.levels[0].nodeLabel"
    assert found.problem.endswith('found "a//b"')


def test_a_manifest_that_is_no_object_is_rejected() -> None:
    (found,) = model_errors(MODELS["Topology"], [])  # type: ignore[arg-type]  # malformed on purpose
    assert str(found) == "input should be a valid dictionary or instance of Topology"
