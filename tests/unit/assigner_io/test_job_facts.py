from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.job.batch_job import count_indexes
from rackgate.jobframework.podsets import podsets_differ
from rackgate.jobframework.registry import kind_of
from rackgate.wire.batch import UncountedPods
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import WorkloadPriorityClass
from rackgate_assigner.jobs.patches import start_annotation_ops
from rackgate_assigner.jobs.plan import UpdateReclaimablePods, plan_job
from rackgate_assigner.jobs.state import Priority, resolve_priority
from tests.unit.assigner_io.builders import TEMPLATE, facts, job, template, workload

WORKLOAD_CLASSES = {
    "high": msgspec.convert({"metadata": {"name": "high"}, "value": 9}, WorkloadPriorityClass)
}


def pod_class(name: str, value: int, *, default: bool = False) -> PriorityClass:
    body = {"metadata": {"name": name}, "value": value, "globalDefault": default}
    return msgspec.convert(body, PriorityClass)


CLASSES = {item.metadata.name: item for item in (pod_class("urgent", 5), pod_class("low", -3))}


def ref(kind: str, name: str) -> dict[str, str]:
    group = names.GROUP if kind == "WorkloadPriorityClass" else "scheduling.k8s.io"
    return {"group": group, "kind": kind, "name": name}


def test_the_label_wins_over_the_template_and_the_template_over_the_default() -> None:
    labelled = {names.PRIORITY_CLASS_LABEL: "high"}
    urgent = template(priorityClassName="urgent")
    found = resolve_priority(job(labels=labelled, pod=urgent), WORKLOAD_CLASSES, CLASSES)
    assert found == Priority(9, ref("WorkloadPriorityClass", "high"))
    found = resolve_priority(job(pod=urgent), WORKLOAD_CLASSES, CLASSES)
    assert found == Priority(5, ref("PriorityClass", "urgent"))
    default = {**CLASSES, "norm": pod_class("norm", 2, default=True)}
    assert resolve_priority(job(), WORKLOAD_CLASSES, default).value == 2
    assert resolve_priority(job(), WORKLOAD_CLASSES, CLASSES) == Priority()


@pytest.mark.parametrize(
    ("labels", "name", "missing"),
    [
        ({names.PRIORITY_CLASS_LABEL: "gone"}, "urgent", "WorkloadPriorityClass/gone"),
        ({}, "gone", "PriorityClass/gone"),
    ],
)
def test_a_class_that_is_not_there_is_named(
    labels: dict[str, str], name: str, missing: str
) -> None:
    of = job(labels=labels, pod=template(priorityClassName=name))
    assert resolve_priority(of, WORKLOAD_CLASSES, CLASSES).missing == missing


def test_of_several_defaults_the_lowest_counts() -> None:
    classes = {str(n): pod_class(str(n), n, default=True) for n in (8, 3, 5)}
    assert resolve_priority(job(), {}, classes).value == 3


def test_absent_and_empty_fields_are_no_difference() -> None:
    of = job()
    own = workload(
        of, pod={**TEMPLATE, "metadata": {"labels": {"app": "train"}, "annotations": {}}}
    )
    wanted = {"name": "main", "count": 4, "template": TEMPLATE}
    assert not podsets_differ(own, [wanted])
    assert podsets_differ(own, [{**wanted, "count": 5}])
    assert podsets_differ(own, [{**wanted, "topologyRequest": {"required": "rack"}}])


def test_the_mark_is_added_to_whatever_annotations_there_are() -> None:
    assert start_annotation_ops(job(), "w")[0]["path"] == "/metadata/annotations"
    noted = job(meta={"annotations": {"a": "b"}})
    assert start_annotation_ops(noted, "w") == [
        {"op": "add", "path": "/metadata/annotations/kueue.x-k8s.io~1workload", "value": "w"}
    ]


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize(("uids", "ready"), [((), False), (("a",), False), (("a", "b"), True)])
def test_pods_that_succeeded_count_before_the_job_controller_counts_them(
    uids: tuple[str, ...], ready: bool
) -> None:
    of = job(suspend=False, started=True, count=4, ready=2)
    status = msgspec.structs.replace(
        of.status, uncounted_terminated_pods=UncountedPods(succeeded=uids)
    )
    of = msgspec.structs.replace(of, status=status)
    assert kind_of(of).pods_ready(of, {"main": 4}) is ready


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("0", 1), ("1,3-5,7", 5), ("5-3", 0), ("a", 0), ("1,,2", 0), ("1-", 0), ("٣", 0)],
)
def test_indexes_are_counted_by_their_intervals(text: str, count: int) -> None:
    assert count_indexes(text) == count


@pytest.mark.parametrize(
    ("spec", "succeeded", "failed", "admitted", "expected"),
    [
        ({"parallelism": 4, "completions": 4}, 0, "", 4, 0),
        ({"parallelism": 4, "completions": 4}, 1, "", 4, 1),
        ({"parallelism": 4, "completions": 4}, 4, "", 4, 4),
        ({"parallelism": 4, "completions": 10}, 6, "", 4, 0),
        ({"parallelism": 4, "completions": 10}, 7, "", 4, 1),
        ({"parallelism": 4, "completions": 10}, 11, "", 4, 4),
        ({"parallelism": 4, "completions": None}, 1, "", 4, 1),  # no pod starts after a success
        ({"parallelism": 2, "completions": 8}, 5, "", 4, 1),  # it may be raised again to 4
        ({"parallelism": 2, "completions": 2}, 1, "", 4, 1),
        ({"parallelism": 9, "completions": 9}, 3, "", 4, 0),
        ({"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, 1, "0,2", 4, 3),
        ({"parallelism": 4, "completions": 4}, 1, "0,2", 4, 1),
    ],
)
def test_pods_that_no_completion_needs_any_more_are_reclaimable(
    spec: dict[str, Any], succeeded: int, failed: str, admitted: int, expected: int
) -> None:
    of = job(suspend=False, started=True, **spec)
    status = msgspec.structs.replace(of.status, succeeded=succeeded, failed_indexes=failed)
    of = msgspec.structs.replace(of, status=status)
    found = kind_of(of).reclaimable_pods(of, {"main": admitted})
    assert found == ({"main": expected} if expected else {})


def test_a_job_that_may_be_resized_reclaims_nothing() -> None:
    elastic = {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}
    of = job(suspend=False, completionMode="Indexed", meta=elastic)
    of = msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, succeeded=2))
    assert kind_of(of).reclaimable_pods(of, {"main": 4}) == {}


def test_the_admitted_pods_count_and_a_job_that_is_about_to_end_reclaims_nothing_more() -> None:
    of = job(suspend=False, started=True, count=4, ready=4)
    ready = {"PodsReady": ("True", "Started")}
    own = workload(of, admitted=True, topology=True, conditions=ready)
    for succeeded, expected in ((0, None), (1, {"main": 1}), (3, {"main": 3}), (4, None)):
        now = msgspec.structs.replace(
            of, status=msgspec.structs.replace(of.status, succeeded=succeeded)
        )
        step = plan_job(now, [own], facts(now, own))
        found = step.counts if isinstance(step, UpdateReclaimablePods) else None
        assert found == expected
