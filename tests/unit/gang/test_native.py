"""Native PodGroups: how they are named, which pods name them, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.names import (
    JOB_INDEX_LABEL,
    LWS_GROUP,
    LWS_GROUP_KEY_LABEL,
    MAX_NAME,
    NATIVE_GROUP_ANNOTATION,
    NATIVE_REPLICA_ANNOTATION,
    REPLICATED_JOB_LABEL,
)
from rackgate.gang.forms.expand import expand
from rackgate.gang.native.model import (
    GangMember,
    Owner,
    PodGroup,
    foreign_groups,
    pod_group_annotations,
    pod_group_name,
    pod_group_of,
)
from rackgate.gang.native.templates import template_annotations

EXPECTED = PodGroup("team", "w-gg", Owner("v", "Workload", "k", "u"), "run", 4, disrupt_all=True)
NAMED = GangMember("w-gg", "high")
UNNAMED = GangMember("", "high")


def test_the_name_of_a_pod_group() -> None:
    assert pod_group_name("train", "gg") == "train-gg"
    assert pod_group_name("train", "gg", "5f2a") == "train-gg-5f2a"
    assert pod_group_annotations("train", "gg") == {NATIVE_GROUP_ANNOTATION: "train-gg"}
    assert pod_group_annotations("train", "gg", "replica") == {
        NATIVE_GROUP_ANNOTATION: "train-gg",
        NATIVE_REPLICA_ANNOTATION: "replica",
    }


@pytest.mark.parametrize("replica", ["Capital", "under_score", "-", "a" * 250, "a."])
def test_a_label_that_makes_no_name_makes_none(replica: str) -> None:
    assert pod_group_name("train", "gg", replica) == ""


def test_long_names_are_shortened_and_stay_apart() -> None:
    one, other = pod_group_name("w" * 250, "one"), pod_group_name("w" * 250, "two")
    assert one != other
    assert len(one) <= MAX_NAME
    assert pod_group_name("w" * 240 + "." * 1 + "x" * 12, "g")[:240] == "w" * 240


def test_all_pods_name_it_and_they_start_together() -> None:
    found = pod_group_of(EXPECTED, [NAMED] * 5)
    assert found is not None
    assert (found.min_count, found.disrupt_all, found.priority_class) == (4, True, "high")


def test_one_pod_without_the_name_and_they_start_one_by_one() -> None:
    found = pod_group_of(EXPECTED, [NAMED] * 5 + [UNNAMED])
    assert found is not None
    assert (found.min_count, found.disrupt_all) == (0, False)


def test_without_a_pod_that_names_it_there_is_none() -> None:
    assert pod_group_of(EXPECTED, [UNNAMED] * 5) is None
    assert pod_group_of(EXPECTED, [GangMember("theirs")] * 5) is None
    assert pod_group_of(EXPECTED, []) is None
    assert foreign_groups("w-gg", [GangMember("theirs"), NAMED, UNNAMED]) == ["theirs"]


def test_pods_that_ended_are_not_waited_for() -> None:
    over = GangMember("w-gg", succeeded=True)
    found = pod_group_of(EXPECTED, [over, over, NAMED, NAMED])
    assert found is not None
    assert found.min_count == 2
    # One that ended and had no name makes no difference.
    found = pod_group_of(EXPECTED, [GangMember("", succeeded=True), NAMED, NAMED, NAMED])
    assert found is not None
    assert found.min_count == 3


def test_pods_of_several_priorities_give_it_none() -> None:
    found = pod_group_of(EXPECTED, [NAMED, GangMember("w-gg", "low")])
    assert found is not None
    assert found.priority_class == ""


def added(spec: dict[str, Any], **labels: str) -> dict[str, str]:
    return template_annotations(expand(spec), "w", labels)


def test_the_template_of_a_job_names_its_gang() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 4}]}
    assert added(spec) == {NATIVE_GROUP_ANNOTATION: "w-gg"}
    assert added({"gangGroups": [{"name": "gg", "minCount": 0}]}) == {}, "no gang"


def test_each_template_names_the_gang_of_its_pods() -> None:
    groups = [
        {"name": name, "minCount": 2, "selector": {"key": REPLICATED_JOB_LABEL, "values": [name]}}
        for name in ("driver", "workers")
    ]
    found = added({"gangGroups": groups}, **{REPLICATED_JOB_LABEL: "workers"})
    assert found == {NATIVE_GROUP_ANNOTATION: "w-workers"}
    assert added({"gangGroups": groups}, **{REPLICATED_JOB_LABEL: "other"}) == {}


def test_a_template_whose_pods_lie_in_several_gangs_names_none() -> None:
    """Only the pods have the label that tells them apart."""
    groups = [
        {"name": "first", "minCount": 2, "selector": {"key": JOB_INDEX_LABEL, "values": ["0"]}},
        {"name": "rest", "minCount": 2},
    ]
    assert added({"gangGroups": groups}) == {}


def test_replicas_are_told_apart_by_a_label_of_the_pod() -> None:
    controller = {"apiGroup": LWS_GROUP, "kind": "LeaderWorkerSet", "name": "lws"}
    spec = {
        "controllerRef": controller,
        "replicaMode": "ReplicatedGangs",
        "gangGroups": [{"name": "gg", "minCount": 4}],
    }
    assert added(spec) == {
        NATIVE_GROUP_ANNOTATION: "w-gg",
        NATIVE_REPLICA_ANNOTATION: LWS_GROUP_KEY_LABEL,
    }
