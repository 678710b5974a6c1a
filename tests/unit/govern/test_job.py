"""Jobs: podsets, mutation at creation, start and stop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.injection import StartConflict, StopPhase
from rackgate.jobframework.job.batch_job import template_of
from rackgate.jobframework.jsonpatch import JsonPatchOp, with_preconditions
from rackgate.jobframework.registry import JOB
from rackgate.jobframework.templates import annotations_of, gates_of, labels_of, strip_reserved
from rackgate.wire.batch import Job
from rackgate.wire.core import Toleration
from rackgate.wire.kueue import Workload
from tests.support.kinds import (
    inject_job,
    next_stop_action,
    podsets_of,
    remove_job_injection,
    restore_patch,
)
from tests.support.objects import RACK, job
from tests.support.starting import start_patch
from tests.unit.govern.patching import PatchError, apply_patch

TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


def started(template: dict[str, Any], **changes: Any) -> list[JsonPatchOp]:
    asked: dict[str, Any] = {
        "workload": "job-train-1a2b3",
        "tas": True,
        "node_labels": {"pool": "tas"},
        "tolerations": [TOLERATION],
    }
    found = start_patch(template, "main", **{**asked, **changes})
    assert not isinstance(found, StartConflict)
    return found


@pytest.mark.requirement("TAS-09", "HOOK-05")
def test_a_job_without_the_queue_label_is_left_alone() -> None:
    assert inject_job(job("plain", 2, queue=None, required=RACK)) == []


@pytest.mark.requirement("HOOK-10")
def test_a_managed_job_is_suspended() -> None:
    governed = apply_patch(job("train", 2), inject_job(job("train", 2)))
    assert governed["spec"]["suspend"] is True


@pytest.mark.requirement("HOOK-10")
def test_a_job_written_with_suspend_false_is_suspended() -> None:
    asked = job("train", 2, spec={"suspend": False})
    assert apply_patch(asked, inject_job(asked))["spec"]["suspend"] is True


@pytest.mark.requirement("HOOK-04", "HOOK-07")
def test_a_template_that_asks_gets_gate_and_podset_label_in_maps_that_were_absent() -> None:
    asked = job("train", 2, required=RACK)
    template = apply_patch(asked, inject_job(asked))["spec"]["template"]
    assert template["metadata"]["labels"] == {names.PODSET_LABEL: "main"}
    assert template["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]


@pytest.mark.requirement("HOOK-09")
def test_a_podset_label_of_the_users_own_is_left_to_be_rejected() -> None:
    asked = job("train", 2, required=RACK)
    asked["spec"]["template"]["metadata"]["labels"] = {names.PODSET_LABEL: "mine"}
    template = apply_patch(asked, inject_job(asked))["spec"]["template"]
    assert template["metadata"]["labels"] == {names.PODSET_LABEL: "mine"}


@pytest.mark.requirement("HOOK-07")
def test_a_template_without_metadata_is_started() -> None:
    template: dict[str, Any] = {"spec": {"containers": []}}
    asked = {"spec": {"suspend": True, "template": template}}
    result = apply_patch(asked, started(template))
    assert result["spec"]["template"]["metadata"]["labels"][names.PODSET_LABEL] == "main"


@pytest.mark.requirement("HOOK-06")
def test_gates_and_labels_of_others_are_kept() -> None:
    asked = job("train", 2, required=RACK, pod={"schedulingGates": [{"name": "other/gate"}]})
    asked["spec"]["template"]["metadata"]["labels"] = {"app": "train"}
    template = apply_patch(asked, inject_job(asked))["spec"]["template"]
    assert gates_of(template) == ["other/gate", names.TOPOLOGY_GATE]
    assert labels_of(template) == {"app": "train", names.PODSET_LABEL: "main"}


def test_a_template_that_asks_for_nothing_gets_no_marks_at_creation() -> None:
    asked = job("train", 2)
    governed = apply_patch(asked, inject_job(asked))
    assert governed["spec"]["template"] == asked["spec"]["template"]


@pytest.mark.requirement("TAS-10", "RNK-02")
@pytest.mark.parametrize("indexed", [True, False])
def test_only_indexed_jobs_name_the_label_of_the_rank(indexed: bool) -> None:
    (podset,) = podsets_of(job("train", 2, required=RACK, indexed=indexed))
    expected: dict[str, Any] = {"required": RACK}
    if indexed:
        expected["podIndexLabel"] = "batch.kubernetes.io/job-completion-index"
    assert podset["topologyRequest"] == expected


@pytest.mark.requirement("TAS-10")
def test_without_annotation_there_is_no_topology_request() -> None:
    assert "topologyRequest" not in podsets_of(job("train", 2))[0]


@pytest.mark.requirement("TAS-08")
def test_annotations_on_the_job_itself_ask_for_nothing() -> None:
    asked = job("train", 2)
    asked["metadata"]["annotations"] = {names.REQUIRED_TOPOLOGY: RACK}
    assert "topologyRequest" not in podsets_of(asked)[0]


@pytest.mark.parametrize(
    ("parallelism", "completions", "count"),
    [(4, 10, 4), (4, 2, 2), (4, None, 4), (None, None, 1), (0, 5, 0)],
)
def test_the_count_is_what_runs_at_once(
    parallelism: int | None, completions: int | None, count: int
) -> None:
    asked = job("train", 1)
    asked["spec"].update(parallelism=parallelism, completions=completions)
    assert podsets_of(asked)[0]["count"] == count


@pytest.mark.field_note("W8")
def test_a_negative_parallelism_counts_as_no_pod() -> None:
    asked = job("train", 1)
    asked["spec"]["parallelism"] = -3
    assert podsets_of(asked)[0]["count"] == 0


def test_podsets_of_the_stored_job_and_of_its_view_agree() -> None:
    asked = job("train", 3, required=RACK)
    asked = apply_patch(asked, inject_job(asked))
    view = msgspec.json.decode(msgspec.json.encode(asked), type=Job)
    assert podsets_of(view) == podsets_of(asked)


def test_a_podset_template_holds_none_of_our_keys() -> None:
    asked = job("train", 3, required=RACK)
    governed = apply_patch(asked, inject_job(asked))
    assert podsets_of(governed)[0]["template"] == asked["spec"]["template"]


@pytest.mark.requirement("TAS-25", "TST-06")
def test_start_is_one_patch_with_gate_annotation_labels_and_the_flavors_keys() -> None:
    asked = job("train", 2, required=RACK, pod={"nodeSelector": {"zone": "a"}})
    asked = apply_patch(asked, inject_job(asked))
    result = apply_patch(asked, started(asked["spec"]["template"]))
    template = result["spec"]["template"]
    assert result["spec"]["suspend"] is False
    assert template["metadata"]["labels"] == {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"}
    assert template["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] == "job-train-1a2b3"
    assert gates_of(template) == [names.TOPOLOGY_GATE]
    assert template["spec"]["nodeSelector"] == {"zone": "a", "pool": "tas"}
    assert template["spec"]["tolerations"] == [TOLERATION]


@pytest.mark.requirement("TAS-25")
def test_a_podset_without_assignment_starts_with_the_name_of_its_workload_alone() -> None:
    asked = job("train", 2, required=RACK)
    asked = apply_patch(asked, inject_job(asked))
    patch = started(asked["spec"]["template"], tas=False)
    template = apply_patch(asked, patch)["spec"]["template"]
    plain = strip_reserved(template)
    assert list(annotations_of(template).keys() - annotations_of(plain).keys()) == [
        names.WORKLOAD_ANNOTATION
    ]
    assert (labels_of(plain), plain["spec"]) == (labels_of(template), template["spec"])
    assert template["spec"]["nodeSelector"] == {"pool": "tas"}


def test_start_applied_to_its_own_result_only_unsuspends() -> None:
    asked = job("train", 2, required=RACK)
    once = apply_patch(asked, started(asked["spec"]["template"]))
    again = started(once["spec"]["template"])
    assert [operation["path"] for operation in again] == ["/spec/suspend"]


@pytest.mark.requirement("TAS-25")
def test_a_key_that_the_user_set_to_another_value_stops_the_start() -> None:
    template = template_of(job("train", 2, pod={"nodeSelector": {"pool": "mine"}}))
    found = start_patch(
        template, "main", workload="w", tas=True, node_labels={"pool": "tas"}, tolerations=[]
    )
    assert isinstance(found, StartConflict)
    assert (found.key, found.have, found.want) == ("pool", "mine", "tas")
    assert 'spec.template.spec.nodeSelector[pool]: the job requests "mine"' in str(found)


def test_a_key_that_the_user_set_to_the_same_value_is_no_conflict() -> None:
    template = template_of(job("train", 2, pod={"nodeSelector": {"pool": "tas"}}))
    paths = [operation["path"] for operation in started(template)]
    assert not any("nodeSelector" in path for path in paths)


def test_a_toleration_that_is_there_already_is_not_repeated() -> None:
    template = template_of(job("train", 2, pod={"tolerations": [TOLERATION]}))
    view = Toleration(key="gpu", operator="Exists", effect="NoSchedule")
    paths = [op["path"] for op in started(template, tolerations=[view, TOLERATION])]
    assert not any("tolerations" in path for path in paths)


@pytest.mark.requirement("TAS-26")
def test_restore_is_the_exact_inverse_of_creation_and_start() -> None:
    asked = job("train", 2, required=RACK, spec={"suspend": True})
    governed = apply_patch(asked, inject_job(asked))
    running = apply_patch(governed, started(governed["spec"]["template"]))
    original = podsets_of(governed)[0]["template"]
    restore = restore_patch(running["spec"]["template"], original)
    assert restore is not None
    restored = apply_patch(running, restore)
    assert restored["spec"]["template"] == asked["spec"]["template"]
    assert restore_patch(restored["spec"]["template"], original) is None


def test_a_job_that_leaves_its_queue_loses_our_marks() -> None:
    asked = job("train", 2, required=RACK)
    governed = apply_patch(asked, inject_job(asked))
    released = apply_patch(governed, remove_job_injection(governed))
    assert released["spec"]["template"] == asked["spec"]["template"]


def stopping(suspend: bool, *, started_at: str | None, condition: str | None, active: int) -> Any:
    found = job("train", 2, required=RACK, spec={"suspend": suspend})
    found["spec"]["template"] = apply_patch(found, started(found["spec"]["template"]))["spec"][
        "template"
    ]
    conditions = [{"type": "Suspended", "status": condition}] if condition else []
    found["status"] = {"active": active, "startTime": started_at, "conditions": conditions}
    return found


@pytest.mark.requirement("TAS-26")
@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ({"suspend": False, "started_at": "T", "condition": None, "active": 2}, StopPhase.SUSPEND),
        ({"suspend": True, "started_at": "T", "condition": None, "active": 2}, StopPhase.WAIT),
        ({"suspend": True, "started_at": "T", "condition": "False", "active": 0}, StopPhase.WAIT),
        ({"suspend": True, "started_at": "T", "condition": "True", "active": 1}, StopPhase.WAIT),
        ({"suspend": True, "started_at": "T", "condition": "True", "active": 0}, StopPhase.RESTORE),
        ({"suspend": True, "started_at": None, "condition": None, "active": 0}, StopPhase.RESTORE),
    ],
)
def test_each_step_of_a_stop_is_read_from_the_job_alone(
    state: dict[str, Any], phase: StopPhase
) -> None:
    original = template_of(job("train", 2, required=RACK))
    found = stopping(**state)
    assert next_stop_action(found, original).phase is phase
    view = msgspec.json.decode(msgspec.json.encode(found), type=Job)
    assert next_stop_action(view, original) == next_stop_action(found, original)


def test_a_restored_job_is_done() -> None:
    found = job("train", 2, required=RACK, spec={"suspend": True})
    assert next_stop_action(found, found["spec"]["template"]).phase is StopPhase.DONE


def test_a_guarded_patch_fails_on_another_version() -> None:
    found = {"metadata": {"uid": "u", "resourceVersion": "2"}, "spec": {}}
    operations = with_preconditions(
        [{"op": "add", "path": "/spec/a", "value": 1}], uid="u", resource_version="1"
    )
    with pytest.raises(PatchError):
        apply_patch(found, operations)


def with_fewest(text: str, count: int = 8, **spec: Any) -> dict[str, Any]:
    found = job("train", count, spec=spec)
    found["metadata"]["annotations"] = {names.MIN_PARALLELISM_ANNOTATION: text}
    return found


@pytest.mark.parametrize(("text", "fewest"), [("3", 3), ("8", None), ("x", None), ("0", None)])
def test_the_podset_has_the_smallest_parallelism_that_allows_fewer_pods(
    text: str, fewest: int | None
) -> None:
    (podset,) = podsets_of(with_fewest(text))
    assert podset.get("minCount") == fewest


def admitted_with(count: int, asked: dict[str, Any]) -> Workload:
    (podset,) = podsets_of(asked)
    whole = {
        "metadata": {"name": "w"},
        "spec": {"podSets": [podset]},
        "status": {"admission": {"podSetAssignments": [{"name": "main", "count": count}]}},
    }
    return msgspec.json.decode(msgspec.json.encode(whole), type=Workload)


def reduced(asked: dict[str, Any], workload: Workload) -> dict[str, Any]:
    found: dict[str, Any] = apply_patch(asked, JOB.reduce_ops(decoded(asked), workload))
    return found


def decoded(found: dict[str, Any]) -> Job:
    return JOB.decode(msgspec.json.encode(found))


@pytest.mark.parametrize("equal", [False, True])
def test_a_job_starts_with_the_pods_that_were_admitted_and_gets_back_its_own(equal: bool) -> None:
    asked = with_fewest("3", completions=8)
    if equal:
        key = names.COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION
        asked["metadata"]["annotations"][key] = "true"
    workload = admitted_with(5, asked)
    running = reduced(asked, workload)
    assert running["spec"]["parallelism"] == 5
    assert running["spec"]["completions"] == (5 if equal else 8)
    restored = apply_patch(running, JOB.restore_count_ops(decoded(running), workload))
    assert restored["spec"] == asked["spec"]


def test_completions_other_than_the_parallelism_never_change() -> None:
    asked = with_fewest("3", completions=20)
    asked["metadata"]["annotations"][names.COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION] = "true"
    running = reduced(asked, admitted_with(5, asked))
    assert running["spec"]["completions"] == 20


def test_a_parallelism_that_the_user_changed_meanwhile_is_kept() -> None:
    asked = with_fewest("3")
    running = reduced(asked, workload := admitted_with(5, asked))
    running["spec"]["parallelism"] = 4
    assert JOB.restore_count_ops(decoded(running), workload) == []


def test_a_job_that_was_admitted_whole_is_left_as_it_is() -> None:
    asked = with_fewest("3")
    workload = admitted_with(8, asked)
    assert JOB.reduce_ops(decoded(asked), workload) == []
    assert JOB.restore_count_ops(decoded(asked), workload) == []


def test_more_pods_than_were_admitted_are_a_change_of_the_running_job() -> None:
    asked = with_fewest("3")
    running = reduced(asked, workload := admitted_with(5, asked))
    assert JOB.find_change(podsets_of(running), workload, elastic=False) is None
    running["spec"]["parallelism"] = 6
    assert JOB.find_change(podsets_of(running), workload, elastic=False) == (
        "the Job requests 6 pods, 5 were admitted"
    )


def test_completions_of_a_job_without_indexes_never_change() -> None:
    asked = with_fewest("3", completions=8, completionMode="NonIndexed")
    asked["metadata"]["annotations"][names.COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION] = "true"
    running = reduced(asked, admitted_with(5, asked))
    assert (running["spec"]["parallelism"], running["spec"]["completions"]) == (5, 8)


def test_a_job_that_may_start_with_fewer_pods_reclaims_none() -> None:
    """How many are needed depends on how many it starts with."""
    asked = with_fewest("3", completions=8)
    asked["status"] = {"succeeded": 5}
    assert JOB.reclaimable_pods(decoded(asked), {"main": 8}) == {}
    del asked["metadata"]["annotations"]
    assert JOB.reclaimable_pods(decoded(asked), {"main": 8}) == {"main": 5}
