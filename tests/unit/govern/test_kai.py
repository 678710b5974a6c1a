"""What a Job for KAI is told of its queue and levels, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate.jobframework.errors import MalformedError
from rackgate.jobframework.kai import (
    KAI_PREFERRED,
    KAI_QUEUE,
    KAI_REQUIRED,
    KAI_SCHEDULER,
    KAI_TOPOLOGY,
    RenderOptions,
    is_for_kai,
    render,
)
from tests.support.objects import BLOCK, RACK, Object, job
from tests.unit.govern.patching import apply_patch

KNOWN = RenderOptions(topology="racks", jobs_grouped=True)
INSIDE = "spec.template.metadata.annotations"
NO_LABEL: dict[str, str | None] = {names.QUEUE_LABEL: None}


def kai_job(count: int = 4, *, scheduler: str = KAI_SCHEDULER, **more: Any) -> Object:
    return job("train", count, pod={"schedulerName": scheduler}, **more)


def with_meta(
    found: Object,
    *,
    labels: dict[str, str | None] | None = None,
    notes: dict[str, str] | None = None,
) -> Object:
    """A copy with these labels, None takes one away, and annotations besides its own."""
    result = copy.deepcopy(found)
    together = {**result["metadata"].get("labels", {}), **(labels or {})}
    kept = {key: value for key, value in together.items() if value is not None}
    result["metadata"] |= {"labels": kept}
    if notes:
        result["metadata"]["annotations"] = {
            **result["metadata"].get("annotations", {}),
            **notes,
        }
    return result


def rendered(found: Object, rendering: RenderOptions = KNOWN) -> Object:
    result = render(found, rendering)
    assert result.errors == []
    patched: Object = apply_patch(found, result.operations)
    return patched


def refused(found: Object, rendering: RenderOptions = KNOWN) -> list[str]:
    """Paths of what is refused; then nothing is written."""
    result = render(found, rendering)
    assert result.operations == []
    assert all(error.problem and error.help for error in result.errors)
    return [error.path for error in result.errors]


@pytest.mark.parametrize(
    ("levels", "marks"),
    [
        ({"required": RACK}, {KAI_TOPOLOGY: "racks", KAI_REQUIRED: RACK}),
        ({"preferred": RACK}, {KAI_TOPOLOGY: "racks", KAI_PREFERRED: RACK}),
        ({}, None),
    ],
)
def test_queue_and_level_become_kais_and_the_spec_stays(
    levels: dict[str, Any], marks: dict[str, str] | None
) -> None:
    found = kai_job(**levels, labels={"app": "x"})
    after = rendered(found)
    assert after["metadata"]["labels"] == {"app": "x", KAI_QUEUE: "queue"}
    assert after["metadata"].get("annotations") == marks
    assert after["spec"] == found["spec"]


def test_kais_words_are_spelled_as_it_reads_them() -> None:
    pod = {"schedulerName": "kai-scheduler"}
    found = job("train", 1, required=BLOCK, preferred=RACK, pod=pod)
    assert is_for_kai(found, {})
    assert rendered(found, RenderOptions("racks", both_levels=True))["metadata"] == {
        "name": "train",
        "labels": {"kai.scheduler/queue": "queue"},
        "annotations": {
            "kai.scheduler/topology": "racks",
            "kai.scheduler/topology-required-placement": BLOCK,
            "kai.scheduler/topology-preferred-placement": RACK,
        },
    }


def test_both_levels_are_rendered_where_both_may_be_asked_for() -> None:
    found = kai_job(required=BLOCK, preferred=RACK)
    both = RenderOptions("racks", jobs_grouped=True, both_levels=True)
    notes = rendered(found, both)["metadata"]["annotations"]
    assert notes == {KAI_TOPOLOGY: "racks", KAI_REQUIRED: BLOCK, KAI_PREFERRED: RACK}
    assert refused(found) == [INSIDE]


def test_the_topology_that_a_job_names_comes_first() -> None:
    found = with_meta(kai_job(required=RACK), notes={KAI_TOPOLOGY: "mine", "other": "x"})
    notes = rendered(found)["metadata"]["annotations"]
    assert notes == {KAI_TOPOLOGY: "mine", "other": "x", KAI_REQUIRED: RACK}


def test_a_level_in_kais_own_words_gets_the_topology_too() -> None:
    notes = rendered(with_meta(kai_job(), notes={KAI_REQUIRED: RACK}))["metadata"]["annotations"]
    assert notes == {KAI_REQUIRED: RACK, KAI_TOPOLOGY: "racks"}


@pytest.mark.requirement("HOOK-06")
def test_a_rendered_job_is_nobodys_to_render() -> None:
    assert not is_for_kai(rendered(kai_job(required=RACK)), {})


@pytest.mark.parametrize(
    ("annotations", "path"),
    [
        ({names.UNCONSTRAINED_TOPOLOGY: "true"}, names.UNCONSTRAINED_TOPOLOGY),
        (
            {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "2"},
            names.SLICE_REQUIRED_TOPOLOGY,
        ),
        ({names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "2"}, names.SLICE_SIZE),
        (
            {names.SLICE_CONSTRAINTS: '[{"topology": "a", "size": 2}]'},
            names.SLICE_CONSTRAINTS,
        ),
        (
            {names.REQUIRED_TOPOLOGY: RACK, names.PODSET_GROUP: "g"},
            names.PODSET_GROUP,
        ),
        ({names.POD_INDEX_OFFSET: "1"}, names.POD_INDEX_OFFSET),
        ({names.REQUIRED_TOPOLOGY: "no key"}, names.REQUIRED_TOPOLOGY),
    ],
)
def test_what_kai_has_no_annotation_for_is_rejected(annotations: dict[str, str], path: str) -> None:
    assert f"{INSIDE}[{path}]" in refused(kai_job(annotations=annotations))


def test_a_request_that_is_switched_off_is_none() -> None:
    found = kai_job(annotations={names.UNCONSTRAINED_TOPOLOGY: "false"})
    assert "annotations" not in rendered(found)["metadata"]


def test_what_belongs_to_our_queues_is_rejected() -> None:
    elastic = with_meta(kai_job(), notes={names.ELASTIC_ANNOTATION: "true"})
    assert refused(elastic) == [f"metadata.annotations[{names.ELASTIC_ANNOTATION}]"]
    first = with_meta(kai_job(), labels={names.PRIORITY_CLASS_LABEL: "high"})
    assert refused(first) == [f"metadata.labels[{names.PRIORITY_CLASS_LABEL}]"]


@pytest.mark.parametrize(
    ("found", "path"),
    [
        (with_meta(kai_job(), labels={KAI_QUEUE: "b"}), f"labels[{KAI_QUEUE}]"),
        (
            with_meta(kai_job(required=RACK), notes={KAI_REQUIRED: BLOCK}),
            f"annotations[{KAI_REQUIRED}]",
        ),
        (
            with_meta(kai_job(preferred=RACK), notes={KAI_PREFERRED: BLOCK}),
            f"annotations[{KAI_PREFERRED}]",
        ),
    ],
)
def test_two_answers_to_one_question_are_rejected(found: Object, path: str) -> None:
    assert refused(found) == [f"metadata.{path}"]


def test_one_answer_reported_twice_is_taken() -> None:
    twice = with_meta(
        kai_job(required=RACK), labels={KAI_QUEUE: "queue"}, notes={KAI_REQUIRED: RACK}
    )
    assert rendered(twice)["metadata"] == rendered(kai_job(required=RACK))["metadata"]


@pytest.mark.requirement("OSM-20")
def test_what_kai_would_leave_pending_for_ever_is_rejected() -> None:
    """A Topology without a level is never scheduled, nor is a level without a Topology kept."""
    nowhere = RenderOptions(jobs_grouped=True)
    path = f"metadata.annotations[{KAI_TOPOLOGY}]"
    assert refused(kai_job(required=RACK), nowhere) == [path]
    assert refused(with_meta(kai_job(), notes={KAI_TOPOLOGY: "racks"}), nowhere) == [path]
    empty = with_meta(kai_job(required=RACK), notes={KAI_TOPOLOGY: ""})
    assert refused(empty) == [path]


def test_a_level_that_would_hold_for_each_pod_alone_is_rejected() -> None:
    alone = RenderOptions(topology="racks")
    assert refused(kai_job(2, required=RACK), alone) == [f"metadata.annotations[{KAI_REQUIRED}]"]
    assert refused(kai_job(2, preferred=RACK), alone) == [f"metadata.annotations[{KAI_PREFERRED}]"]
    rendered(kai_job(1, required=RACK), alone)
    rendered(kai_job(2), alone)


def test_every_fault_is_reported_at_once() -> None:
    found = with_meta(
        kai_job(annotations={names.UNCONSTRAINED_TOPOLOGY: "true", names.POD_INDEX_OFFSET: "1"}),
        labels={KAI_QUEUE: "b", names.PRIORITY_CLASS_LABEL: "high"},
    )
    assert len(refused(found)) == 4


def test_only_a_managed_job_whose_template_names_kai_goes_there() -> None:
    assert is_for_kai(kai_job(), {})
    assert not is_for_kai(kai_job(scheduler="default-scheduler"), {})
    assert not is_for_kai(job("plain", 2), {})
    assert not is_for_kai(kai_job(queue=None), {})
    part = kai_job()
    part["metadata"]["ownerReferences"] = [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "controller": True}
    ]
    assert not is_for_kai(part, {})


def test_a_manifest_applied_again_goes_to_kai_again_and_a_stranger_that_runs_does_not() -> None:
    asked = kai_job(required=RACK)
    stored = rendered(asked)
    assert is_for_kai(with_meta(stored, labels={names.QUEUE_LABEL: "queue"}), stored)
    assert not is_for_kai(asked, with_meta(asked, labels=NO_LABEL))
    waiting = kai_job(required=RACK, spec={"suspend": True})
    assert is_for_kai(waiting, with_meta(waiting, labels=NO_LABEL))
    running = with_meta(kai_job(required=RACK), labels=NO_LABEL)
    assert not is_for_kai(waiting, running), "stopped in the same write"
    rested = with_meta(waiting, labels=NO_LABEL)
    assert not is_for_kai(asked, rested), "started in the same write"
    assert not is_for_kai(waiting, waiting), "who is ours stays ours"


def test_a_queue_changed_in_the_manifest_is_rejected_by_both_names() -> None:
    stored = rendered(kai_job())
    (error,) = render(with_meta(stored, labels={names.QUEUE_LABEL: "other"}), KNOWN).errors
    assert error.path == f"metadata.labels[{KAI_QUEUE}]"
    assert '"queue" is not "other"' in error.problem


def test_a_suspended_job_and_one_of_another_owner_are_warned_about() -> None:
    (warning,) = render(kai_job(spec={"suspend": True}), KNOWN).warnings
    assert warning.startswith("spec.suspend is true")
    owned = kai_job()
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "CronJob", "controller": True},
    ]
    assert render(owned, KNOWN).warnings == []
    owned["metadata"]["ownerReferences"][0]["kind"] = "Workflow"
    (warning,) = render(owned, KNOWN).warnings
    assert warning.startswith("metadata.ownerReferences[0]")
    owned["metadata"]["ownerReferences"][0]["controller"] = False
    assert render(owned, KNOWN).warnings == []


def test_a_shape_that_no_api_server_sends_is_named() -> None:
    found = kai_job()
    found["metadata"]["annotations"] = ["a"]
    with pytest.raises(MalformedError, match=r"metadata\.annotations"):
        render(found, KNOWN)
