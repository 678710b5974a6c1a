"""Topology requests that make no sense, and defects of ours: one Workload waits, others go on."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from rackgate_assigner.workload.decisions import Admit, Deactivate, Requeue
from tests.support.bad_requests import BAD_REQUESTS, GOOD_REQUESTS, BadRequest, layers, sliced
from tests.support.objects import BLOCK, HOST, RACK
from tests.unit.assigner.builders import (
    admissions,
    cache_with,
    cluster_queue,
    flavor,
    fx_a,
    local_queue,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)

LEVELS = (BLOCK, RACK, HOST)


def real_levels() -> Any:
    """Eight nodes under the level keys that the table of bad requests uses."""
    cache = cache_with()
    cache.set_topology(topology(levels=LEVELS))
    for index in range(8):
        labels = {BLOCK: "b1", RACK: f"r{index // 4}"}
        cache.set_node(node(f"n{index}", cpu="4", labels=labels))
    return cache


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P5", "P6")
@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_nonsense_request_is_held_with_its_path_and_stops_no_one(bad: BadRequest) -> None:
    cache = real_levels()
    cache.set_cluster_queue(cluster_queue(queueingStrategy="StrictFIFO"))
    cache.set_workload(workload("a-odd", [podset(count=8, topology=bad.request)]))
    cache.set_workload(workload("b-right", [podset(topology={"required": RACK})]))
    (hold, admit) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert isinstance(admit, Admit)
    assert hold.reason == "Misconfigured"
    assert f"spec.podSets[0].topologyRequest{bad.field}: " in hold.message


@pytest.mark.parametrize("good", GOOD_REQUESTS.values(), ids=GOOD_REQUESTS)
def test_a_request_that_makes_sense_is_admitted(good: dict[str, Any]) -> None:
    cache = real_levels()
    cache.set_workload(workload("w", [podset(count=8, topology=good)]))
    assert list(admissions(plan_cycle(cache))) == ["w"]


@pytest.mark.requirement("VAL-02")
@pytest.mark.field_note("P12")
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (sliced("zone", 2), "podSetSliceRequiredTopology"),
        (layers(("zone", 2)), "podsetSliceRequiredTopologyConstraints[0].topology"),
        (
            layers((RACK, 4), ("zone", 2)),
            "podsetSliceRequiredTopologyConstraints[1].topology",
        ),
        ({"required": RACK, **sliced("zone", 2)}, "podSetSliceRequiredTopology"),
    ],
)
def test_an_unknown_level_of_slices_is_rejected_like_any_other(
    asked: dict[str, Any], field: str
) -> None:
    cache = real_levels()
    cache.set_workload(workload("w", [podset(count=8, topology=asked)]))
    assert plan_cycle(cache) == [
        Deactivate(
            "team/w",
            "DeactivatedDueToInvalidTopology",
            f'spec.podSets[0].topologyRequest.{field}: level "zone" is not in topology "default" '
            f"(levels: {', '.join(LEVELS)})",
        )
    ]


def test_a_negative_count_is_held_with_its_path() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset("a"), podset("b", -1)]))
    (hold,) = plan_cycle(cache)
    assert hold == Requeue(
        "team/w", "Misconfigured", "spec.podSets[1].count: -1 is not a number of pods"
    )


@pytest.mark.field_note("C16", "W8")
@pytest.mark.parametrize("cpu", ["1", "0", "9223372036854775807"])
@pytest.mark.parametrize(
    "asked",
    [{"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True}, sliced("rack", 1), None],
)
def test_two_billion_pods_wait_and_raise_nothing(asked: dict[str, Any] | None, cpu: str) -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "1E"}}))
    cache.set_workload(
        workload("w", [podset(count=2**31 - 1, requests={"cpu": cpu}, topology=asked)])
    )
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert hold.error == ""


class _Broken(dict[str, str]):
    """A node selector that cannot be read, as only a defect of ours could make one."""

    def items(self) -> NoReturn:
        raise RuntimeError("planted\n  defect")


@pytest.mark.requirement("OPS-07")
def test_a_defect_holds_one_workload_and_gives_back_what_it_took() -> None:
    cache = cache_with(
        [node("a", cpu="4")],
        queue=cluster_queue("cq", {"tas": {"cpu": "3"}, "twin": {"cpu": "9"}}),
    )
    cache.set_flavor(flavor("twin"))
    cache.set_workload(workload("a-bad", [podset("one", 3), podset("two", 1)]))
    cache.set_workload(workload("b-right", [podset(count=4)]))
    _break(cache, "team/a-bad", 1)
    admit, hold = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert hold.reason == "InternalError"
    assert hold.message == (
        "internal error while deciding about this workload: RuntimeError: planted defect; other "
        "workloads are not affected, the assigner's log has the details"
    )
    assert "Traceback" in hold.error
    # PodSet "one" had its place on the only node: all of it is free again.
    assert isinstance(admit, Admit)
    assert admit.workload == "team/b-right"


@pytest.mark.requirement("OPS-07")
def test_a_defect_in_a_cohort_holds_one_workload_alone() -> None:
    cache = cache_with([node("a", cpu="4")], queue=cluster_queue("cq", cohortName="all"))
    cache.set_cluster_queue(cluster_queue("other", cohortName="all"))
    cache.set_local_queue(local_queue("there", "other"))
    cache.set_workload(workload("a-bad", [podset("one", 3), podset("two", 1)]))
    cache.set_workload(workload("b-right", [podset(count=2)]))
    cache.set_workload(workload("c-right", [podset(count=2)], queue="there"))
    _break(cache, "team/a-bad", 1)
    decisions = {found.workload: found for found in plan_cycle(cache)}
    hold = decisions["team/a-bad"]
    assert isinstance(hold, Requeue)
    assert hold.reason == "InternalError"
    assert "Traceback" in hold.error
    assert isinstance(decisions["team/b-right"], Admit)
    assert isinstance(decisions["team/c-right"], Admit)


def test_a_defect_that_stands_is_reported_again_for_the_log() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w"))
    _break(cache, "team/w", 0)
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    told = {"QuotaReserved": ("False", hold.reason, hold.message)}
    cache.set_workload(workload("w", version="2", conditions=told))
    _break(cache, "team/w", 0)
    assert plan_cycle(cache) == [hold]


def _break(cache: Any, key: str, index: int) -> None:
    """Make placing one PodSet of a Workload raise."""
    row = cache.workloads[key]
    request = row.podsets[index].request
    object.__setattr__(request, "node_selector", _Broken())
