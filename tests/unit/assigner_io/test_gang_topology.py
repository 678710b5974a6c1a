"""Topology requests of a Workload of gangs, as requests of PodSets."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.gang.expand import expand
from rackgate_assigner.gangs.gang_workload import PodSetPods
from rackgate_assigner.gangs.topology import GangTopology, TopologyReason, gang_topology

LEVELS = ("block", "rack", "host")
LABEL = names.REPLICATED_JOB_LABEL
ONE = (PodSetPods("main", 4, {}),)
TWO = (PodSetPods("leader", 1, {LABEL: "leader"}), PodSetPods("workers", 4, {LABEL: "workers"}))
THREE = (*TWO, PodSetPods("more", 1, {LABEL: "more"}))

pytestmark = pytest.mark.requirement("GNG-38")


def found(spec: dict[str, Any], podsets: tuple[PodSetPods, ...] = ONE) -> GangTopology:
    def is_narrower(outer: str, inner: str) -> bool:
        return LEVELS.index(outer) < LEVELS.index(inner)

    return gang_topology(expand(spec), podsets, workload="w", is_narrower=is_narrower)


def gang(**fields: Any) -> dict[str, Any]:
    return {"gangGroups": [{"name": "gg", "minCount": 1, **fields}]}


@pytest.mark.parametrize(
    ("request_", "annotation"),
    [
        ({"required": "rack"}, {names.REQUIRED_TOPOLOGY: "rack"}),
        ({"preferred": "rack"}, {names.PREFERRED_TOPOLOGY: "rack"}),
        ({"unconstrained": True}, {names.UNCONSTRAINED_TOPOLOGY: "true"}),
    ],
)
def test_one_level_for_one_podset_is_its_request(request_: Any, annotation: Any) -> None:
    for spec in ({"topologyRequest": request_, **gang()}, gang(topologyRequest=request_)):
        assert found(spec).annotations == {"main": annotation}


def test_of_two_required_levels_the_finer_one_says_both() -> None:
    inner = gang(topologyRequest={"required": "rack"})
    both = found({"topologyRequest": {"required": "block"}, **inner})
    assert both.annotations == {"main": {names.REQUIRED_TOPOLOGY: "rack"}}
    wrong = found({"topologyRequest": {"required": "host"}, **inner})
    assert wrong.reason is TopologyReason.NOT_NARROWER
    assert "spec.gangGroups[0].topologyRequest asks for rack" in wrong.message
    assert wrong.annotations == {}


def test_a_leader_and_its_workers_are_one_group() -> None:
    group = {names.REQUIRED_TOPOLOGY: "rack", names.PODSET_GROUP: "w-gg"}
    assert found(gang(topologyRequest={"required": "rack"}), TWO).annotations == {
        "leader": group,
        "workers": group,
    }


def test_what_needs_nested_groups_is_rejected_with_its_path() -> None:
    three = found(gang(topologyRequest={"required": "rack"}), THREE)
    assert three.reason is TopologyReason.NOT_SUPPORTED
    assert "spec.gangGroups[0].topologyRequest for PodSets leader, workers, more" in three.message
    inner = gang(topologyRequest={"preferred": "rack"})
    mixed = found({"topologyRequest": {"required": "block"}, **inner})
    assert mixed.reason is TopologyReason.NOT_SUPPORTED
    unknown = {
        "gangGroups": [
            {
                "name": name,
                "minCount": 1,
                "selector": {"key": "job-index", "values": [name]},
                "topologyRequest": {"required": "rack"},
            }
            for name in ("a", "b")
        ]
    }
    assert "do not say which pods" in found(unknown).message


def test_requests_of_the_parts_apply_to_the_parts() -> None:
    ranked = [
        {"name": "leader", "topologyRequest": {"required": "host"}},
        {"name": "workers", "topologyRequest": {"preferred": "rack"}},
    ]
    assert found(gang(rankedGroups=ranked), TWO).annotations == {
        "leader": {names.REQUIRED_TOPOLOGY: "host"},
        "workers": {names.PREFERRED_TOPOLOGY: "rack"},
    }


def test_a_template_that_requests_something_else_conflicts() -> None:
    spec = gang(topologyRequest={"required": "rack"})
    same = (PodSetPods("main", 4, {}, {names.REQUIRED_TOPOLOGY: "rack"}),)
    assert found(spec, same).reason is TopologyReason.VALID
    other = (PodSetPods("main", 4, {}, {names.REQUIRED_TOPOLOGY: "block"}),)
    assert found(spec, other).reason is TopologyReason.CONFLICTS_WITH_TEMPLATE
    assert found(gang(), other) == GangTopology()


def test_claims_and_spreads_have_no_effect_and_say_so() -> None:
    spec = {"topologySpread": {}, **gang(topologyRequest={"resourceClaims": [{"name": "c"}]})}
    result = found(spec)
    assert result.annotations == {}
    assert result.ignored == ("spec.topologySpread", "spec.gangGroups[0].topologyRequest")
