"""What is refused, in which words, and what would help."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.gang.forms.collapse import collapse
from rackgate.gang.forms.expand import expand, quote_off
from rackgate.gang.validation import errors_of, warnings_of

JOB = {"apiGroup": "batch", "kind": "Job", "name": "j"}
JOBSET = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "j"}


def gang(**fields: Any) -> dict[str, Any]:
    return {"gangGroups": [{"name": "gg", **fields}]}


def equal(**fields: Any) -> dict[str, Any]:
    return {"eqGroups": [{"name": "e", **fields}]}


def lines(spec: Any, *, rev_n: bool = True) -> list[str]:
    return [str(error) for error in errors_of(spec, rev_n=rev_n)]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (None, "spec: is not an object"),
        ({"gangGroups": [3]}, "spec.gangGroups[0]: is not an object"),
        (gang(minCount=None), "spec.gangGroups[0].minCount: is null; leave it out"),
        (gang(minCounts=3), "spec.gangGroups[0].minCounts: is no field; did you mean minCount?"),
        (gang(zzz=3), "spec.gangGroups[0].zzz: is no field"),
        (
            gang(minCount="3"),
            'spec.gangGroups[0].minCount: input should be a valid integer, found "3"',
        ),
        (
            gang(gangMode=False),
            "spec.gangGroups[0].gangMode: is false; put Off in quotes: YAML reads it as false",
        ),
        (
            {"gangGroups": [{"name": "GG"}]},
            'spec.gangGroups[0].name: "GG" has the wrong form; '
            "use lower-case letters, digits and hyphens",
        ),
        (
            gang(selector={"key": "k", "values": ["v"], "count": 3}),
            "spec.gangGroups[0].selector.count: is no field; did you mean count?",
        ),
        (
            gang(topologyRequest={"required": "a b"}),
            'spec.gangGroups[0].topologyRequest.required: "a b" has the wrong form; '
            'use a label key such as "rack" or "example.com/rack"',
        ),
        (
            {"gangGroups": [{"name": "a"}, {"name": "a"}]},
            'spec.gangGroups[1]: duplicate name "a"; use it once',
        ),
        (
            gang(gangMode="Gang", eqGroups=[{"name": "e", "count": 0}]),
            "spec.gangGroups[0].gangMode: is Gang, and the parts have no pods; "
            'set the counts of the parts, or gangMode "Off"',
        ),
        (
            gang(gangMode="Gang", eqGroups=[{"name": n, "count": 10**6} for n in "ab"]),
            "spec.gangGroups[0].gangMode: the parts have 2000000 pods, more than 1000000; "
            "use smaller parts",
        ),
        (
            gang(reschedulingPolicy="TerminateAll"),
            "spec.gangGroups[0].reschedulingPolicy: needs a gang; "
            "set minCount to 1 or more, or leave out reschedulingPolicy",
        ),
        (
            {"replicaMode": "ReplicatedPods"} | gang(minCount=1, reschedulingPolicy="TerminateAll"),
            "spec.gangGroups[0].reschedulingPolicy: needs a gang; leave out reschedulingPolicy",
        ),
        (
            {"minCount": 5, "eqGroups": [{"name": "e", "count": 4}]},
            "spec.minCount: 5 is more than the 4 pods of its parts; use 4 or less, or larger parts",
        ),
        (
            {
                "maxCount": 3,
                "rankedGroups": [{"name": "r", "eqGroups": [{"name": "e", "count": 4}]}],
            },
            "spec.maxCount: 3 is less than the 4 pods of its parts; "
            "use 4 or more, or smaller parts",
        ),
        (
            equal(template={"spec": {}, "containers": []}),
            "spec.eqGroups[0].template.containers: stands beside spec; "
            "move it into spec, or leave out spec",
        ),
        (
            equal(template={"spec": []}),
            'spec.eqGroups[0].template.spec: "[]" is not an object',
        ),
        (
            equal(
                template={
                    "resources": {},
                    "containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}],
                }
            ),
            "spec.eqGroups[0].template.resources: no container takes it: all have resources of "
            "their own; name the resources in one place",
        ),
        (
            equal(template={"spec": {"initContainers": [{"resources": {"limits": {"cpu": -1}}}]}}),
            "spec.eqGroups[0].template.spec.initContainers[0].resources.limits[cpu]: "
            '"-1" is negative; use 0 or more',
        ),
        (
            equal(template={"volumes": [{"emptyDir": {"sizeLimit": "1GB"}}]}),
            'spec.eqGroups[0].template.volumes[0].emptyDir.sizeLimit: "1GB" is not a quantity; '
            'use a form such as "500m", "4" or "1.5Gi"',
        ),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_would_help(spec: Any, line: str) -> None:
    assert lines(spec) == [line]


def test_a_template_that_is_none_is_refused_with_its_place() -> None:
    (line,) = lines(equal(template={"containers": "c"}))
    assert line.startswith("spec.eqGroups[0].template: is not a pod template: ")
    assert line.endswith("; use a pod template, its resources or its spec")


def test_replicas_are_no_parts_of_a_sum() -> None:
    """minCount and maxCount of the whole count all replicas, a gang group those of one."""
    whole = {"minCount": 12, "maxCount": 40, "replicaMode": "ReplicatedGangs"}
    assert lines(whole | gang(minCount=4, maxCount=4)) == []


@pytest.mark.requirement("GNG-09")
def test_without_the_gate_every_field_of_rev_n_is_named_with_the_gate() -> None:
    spec = {"topologyRequest": {"required": "rack"}} | gang(
        minCount=2, maxCount=2, rankedGroups=[{"name": "r"}]
    )
    wanted = "is a field of RevN; leave it out, or set feature gate WorkloadRevN"
    assert lines(spec, rev_n=False) == [
        f"spec.topologyRequest: {wanted}",
        f"spec.gangGroups[0].maxCount: {wanted}",
        f"spec.gangGroups[0].rankedGroups: {wanted}",
    ]
    assert lines(spec) == []
    short = {"eqGroups": [{"name": "e"}]}
    assert lines(short, rev_n=False) == [f"spec.eqGroups: {wanted}"]


def test_off_that_yaml_read_as_false_becomes_text_only_where_off_is_a_value() -> None:
    written: dict[str, Any] = {
        "gangGroups": [
            {"name": "a", "gangMode": False, "rankMode": False},
            {"name": "b", "rankedGroups": [{"name": "r", "rankMode": False}]},
        ],
        "rankedGroups": [{"rankMode": False, "gangMode": True}],
        "eqGroups": [{"template": {"rankMode": False}, "count": False}],
        "replicaMode": False,
    }
    assert quote_off(written) == {
        "gangGroups": [
            {"name": "a", "gangMode": "Off", "rankMode": "Off"},
            {"name": "b", "rankedGroups": [{"name": "r", "rankMode": "Off"}]},
        ],
        "rankedGroups": [{"rankMode": "Off", "gangMode": True}],
        "eqGroups": [{"template": {"rankMode": False}, "count": False}],
        "replicaMode": False,
    }
    assert written["gangGroups"][0]["gangMode"] is False, "what was written stays as it is"


def two(**first: Any) -> list[dict[str, Any]]:
    return [{"name": "a", **first}, {"name": "b"}]


SELECTED = {"selector": {"key": "k", "values": ["a"]}}
APART = "nothing tells the pods of a, b apart"


@pytest.mark.parametrize(
    ("controller", "groups", "apart"),
    [
        (JOB, two(), False),
        (JOB, two(**SELECTED), True),
        (JOB, [*two(**SELECTED), {"name": "c"}], False),
        (JOBSET, two(), True),
        (JOBSET, [*two(**SELECTED), {"name": "c"}], False),
        (None, two(), True),
    ],
)
def test_gang_groups_need_something_that_tells_their_pods_apart(
    controller: dict[str, str] | None, groups: list[dict[str, Any]], apart: bool
) -> None:
    spec = {"controllerRef": controller} if controller else {}
    found = lines(spec | {"gangGroups": groups})
    assert bool(found) is not apart
    # Inside a gang the same is a warning: the gang works without its parts.
    inside = spec | gang(minCount=2, rankedGroups=groups)
    assert lines(inside) == []
    assert [one.path for one in warnings_of(inside)] == (
        [] if apart else ["spec.gangGroups[0].rankedGroups"]
    )


def test_one_pod_is_no_gang() -> None:
    (group,) = expand({"replicaMode": "ReplicatedPods"} | gang(minCount=1))["gangGroups"]
    assert (group["gangMode"], group["minCount"]) == ("Off", 1)
    (group,) = expand(gang(minCount=1))["gangGroups"]
    assert (group["gangMode"], group["scheduleTimeoutSeconds"]) == ("Gang", 60)


@pytest.mark.requirement("GNG-41")
def test_the_gang_group_of_a_replica_is_never_left_out() -> None:
    spec = {"replicaMode": "ReplicatedGangs"} | gang()
    assert lines(spec) == []
    assert collapse(spec) == spec
