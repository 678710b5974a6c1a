"""When the pods of a gang may be released."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.names import REPLICATED_JOB_LABEL
from rackgate.gang.forms.expand import expand
from rackgate.gang.link import run_id
from rackgate.gang.membership import Mismatch
from rackgate.gang.readiness import Gangs, Member, Waiting, gangs_of

RUN = "0123456789"
ONE_GANG: dict[str, Any] = expand({"gangGroups": [{"name": "gg", "minCount": 3}]})
TWO_GANGS: dict[str, Any] = expand(
    {
        "gangGroups": [
            {"name": "a", "minCount": 2, "selector": {"key": "role", "values": ["a"]}},
            {"name": "b", "minCount": 1, "selector": {"key": "role", "values": ["b"]}},
        ]
    }
)


def _pods(count: int, **labels: str) -> list[Member]:
    start = "-".join(labels.values())
    return [Member(f"{start}{i}", f"pod-{start}{i}", labels, gated=True) for i in range(count)]


def _gangs(
    members: list[Member], spec: dict[str, Any] = ONE_GANG, *, run: str = RUN, **fields: Any
) -> Gangs:
    return gangs_of(
        spec,
        members,
        run=run,
        assigned=fields.get("assigned", {pod.uid for pod in members}),
        ended=fields.get("ended", ()),
        gone=fields.get("gone", {}),
    )


def test_all_pods_are_released_once_the_last_one_exists() -> None:
    found = _gangs(_pods(2))
    assert found.releasable() == frozenset()
    assert found.states[0].waiting is Waiting.PODS_MISSING
    assert found.states[0].message == "2 of 3 pods of gang gg exist"
    assert _gangs(_pods(3)).releasable() == {"0", "1", "2"}


def test_a_gang_that_is_not_admitted_waits() -> None:
    found = _gangs(_pods(3), run="")
    assert found.releasable() == frozenset()
    assert found.states[0].waiting is Waiting.WAITING_FOR_QUOTA


def test_a_gate_of_another_owner_on_one_pod_holds_all() -> None:
    pods = _pods(3)
    pods[1] = pods[1]._replace(foreign_gates=("example.com/data",))
    found = _gangs(pods)
    assert found.releasable() == frozenset()
    assert found.states[0].waiting is Waiting.FOREIGN_GATE
    assert found.states[0].message == (
        "pods of gang gg have gates of other owners (example.com/data): pod-1"
    )


def test_every_pod_needs_a_domain() -> None:
    found = _gangs(_pods(3), assigned={"0", "1"})
    assert found.releasable() == frozenset()
    assert found.states[0].waiting is Waiting.WAITING_FOR_PLACEMENT


@pytest.mark.parametrize("left", [1, 2])
def test_the_first_released_pod_lets_the_rest_of_its_run_follow(left: int) -> None:
    """A process that died between two patches is followed by one that finishes the gang."""
    pods = _pods(3)
    pods[0] = pods[0]._replace(gated=False, run=RUN)
    kept = pods[: 1 + left]
    assert _gangs(kept).releasable() == {pod.uid for pod in kept[1:]}


def test_a_pod_of_an_earlier_run_decides_nothing() -> None:
    pods = _pods(2)
    pods[0] = pods[0]._replace(gated=False, run="earlier")
    assert _gangs(pods).releasable() == frozenset()


def test_pods_of_an_earlier_run_that_still_run_take_no_place_under_the_maximum() -> None:
    spec = expand({"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]})
    old = [pod._replace(uid=f"old{pod.uid}", gated=False, run="earlier") for pod in _pods(3)]
    found = _gangs([*old, *_pods(1)], spec)
    assert found.states[0].message == "1 of 2 pods of gang gg exist"
    found = _gangs([*old, *_pods(3)], spec)
    assert found.releasable() == {"0", "1", "2"}
    assert found.unmatched == ()


def test_pods_above_the_maximum_stay_gated_and_those_with_a_domain_go_first() -> None:
    spec = expand({"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]})
    pods = _pods(5)
    pods[4] = pods[4]._replace(gated=False, run=RUN)
    found = _gangs(pods, spec, assigned={"2", "3"})
    assert found.releasable() == {"2", "3"}
    assert {pod.uid for pod, why in found.unmatched if why is Mismatch.TOO_MANY_PODS} == {"0", "1"}


def test_succeeded_pods_count_as_present() -> None:
    pods = _pods(3)
    pods[0] = pods[0]._replace(succeeded=True)
    found = _gangs(pods, assigned={"1", "2"})
    assert found.releasable() >= {"1", "2"}
    assert found.states[0].bound == 1


@pytest.mark.requirement("GNG-10")
def test_pods_that_succeeded_count_as_present_when_they_are_gone() -> None:
    found = _gangs(_pods(2), gone={"main": 1})
    assert found.releasable() == {"0", "1"}
    assert found.states[0].bound == 1
    assert _gangs(_pods(1), gone={"main": 1}).releasable() == frozenset()
    assert _gangs([], gone={"main": 3}).states[0].bound == 3
    spec = expand({"gangGroups": [{"name": "gg", "minCount": 3, "maxCount": 3}]})
    assert len(_gangs(_pods(4), spec, gone={"main": 1}).releasable()) == 2


@pytest.mark.requirement("GNG-12")
def test_a_pod_that_ended_in_this_run_shows_that_its_gang_has_started() -> None:
    ended = [Member("e", "pod-e", {}, gated=False, run=RUN, succeeded=True)]
    found = _gangs(_pods(1), ended=ended)
    assert found.releasable() == {"0"}
    assert found.states[0].members == _pods(1), "it does not count"
    earlier = [pod._replace(run="earlier") for pod in ended]
    assert _gangs(_pods(1), ended=earlier).releasable() == frozenset()
    of_other = [pod._replace(labels={"role": "a"}) for pod in ended]
    both = [*_pods(1, role="a"), *_pods(1, role="b")]
    assert _gangs(both, TWO_GANGS, ended=of_other).releasable() == {"a0"} | (
        _gangs(both, TWO_GANGS).releasable()
    )


@pytest.mark.requirement("GNG-10")
def test_pods_that_are_gone_count_only_in_a_gang_that_has_all_pods_of_their_podset() -> None:
    both = [*_pods(1, role="a"), *_pods(1, role="b")]
    assert _gangs(both, TWO_GANGS, gone={"main": 1}).releasable() == {"b0"}
    groups = [{"name": "gg", "minCount": 3}]
    replicated = expand({"replicaMode": "ReplicatedGangs", "replicaKey": "r", "gangGroups": groups})
    found = _gangs(_pods(2, r="1"), replicated, gone={"main": 1})
    assert found.releasable() == frozenset()
    assert len(found.states) == 1
    selected = {"name": "a", "minCount": 2, "selector": {"key": "role", "values": ["a"]}}
    rest = expand({"gangGroups": [selected, {"name": "b", "minCount": 2}]})
    assert _gangs(_pods(1, role="b"), rest, gone={"main": 1}).releasable() == frozenset()
    groups = [{"name": "a", "minCount": 2}, {"name": "b", "minCount": 2}]
    by_name = expand({"gangGroups": groups})
    one = [pod._replace(labels={REPLICATED_JOB_LABEL: "a"}) for pod in _pods(1)]
    assert _gangs(one, by_name, gone={"a": 1}).releasable() == {"0"}
    assert _gangs(one, by_name, gone={"b": 1}).releasable() == frozenset()


def test_gangs_of_one_workload_are_released_independently() -> None:
    pods = [*_pods(1, role="a"), *_pods(1, role="b"), *_pods(1, role="c")]
    found = _gangs(pods, TWO_GANGS)
    assert found.releasable() == {"b0"}
    assert [(str(one.key), one.waiting) for one in found.states] == [
        ("a", Waiting.PODS_MISSING),
        ("b", None),
    ]
    assert [(pod.uid, why) for pod, why in found.unmatched] == [("c0", Mismatch.NO_PART)]


def test_without_a_gang_each_pod_is_released_by_itself() -> None:
    spec = expand({"gangGroups": [{"name": "gg", "minCount": 0}]})
    assert _gangs(_pods(1), spec).releasable() == {"0"}


def test_each_admission_is_a_run_of_its_own() -> None:
    assert run_id("uid", "2026-01-01T00:00:00Z") == run_id("uid", "2026-01-01T00:00:00Z")
    assert run_id("uid", "2026-01-01T00:00:00Z") != run_id("uid", "2026-01-01T00:00:01Z")
    assert len(run_id("uid", "")) == 10
