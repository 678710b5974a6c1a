"""Reviews of Workloads of gangs, and what is said about gangs in jobs."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.features import GANG_SCHEDULING, WORKLOAD_REV_N
from rackgate.gang.forms.expand import quote_off
from rackgate.gang.link import PER_JOB, child_job_link
from rackgate_webhook.admission.gangs import GANG_WORKLOAD, GangRules
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.gang_cases import invalid_cases, pairs, rev1_specs, rev_n_specs
from tests.support.objects import RACK, job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

Object = dict[str, Any]
OFF, REV1, REV_N = GangRules(), GangRules(on=True), GangRules(on=True, rev_n=True)
LINK, TEMPLATE = names.GANG_LINK_ANNOTATION, names.GANG_TEMPLATE_ANNOTATION

MARK = {LINK: "w"}


def workload(spec: Any) -> Object:
    return {"metadata": {"name": "w"}, "spec": spec}


def validated(
    spec: Any, stored: Any = None, rules: GangRules = REV_N, **more: Any
) -> AdmissionResponse:
    old = None if stored is None else workload(stored)
    return validate(review(GANG_WORKLOAD, workload(spec), old, **more), gangs=rules)


def paths(response: AdmissionResponse) -> list[str]:
    return [error.path for error in response.errors]


@pytest.mark.parametrize("name", invalid_cases("webhook"))
def test_what_the_api_server_cannot_check_is_rejected_with_its_path(name: str) -> None:
    case = invalid_cases("webhook")[name]
    assert case["path"] in paths(validated(case["spec"]))


def test_valid_specs_are_accepted() -> None:
    for name, spec in rev1_specs():
        assert validated(spec, rules=REV1) == validated(spec), name
        assert paths(validated(spec)) == [], name
    for name, spec in rev_n_specs():
        assert paths(validated(spec)) == [], name


@pytest.mark.requirement("GNG-09")
def test_fields_of_rev_n_are_rejected_with_the_name_of_their_gate() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]}
    (error,) = validated(spec, rules=REV1).errors
    assert error.path == "spec.gangGroups[0].maxCount"
    assert WORKLOAD_REV_N in error.advice
    assert paths(validated(spec)) == []


def test_what_is_only_lenient_is_a_warning() -> None:
    for pair in pairs().values():
        found = validated(pair["revN"]["spec"]).warnings
        expected = [one["path"] for one in pair.get("warnings", [])]
        assert [one.partition(": ")[0] for one in found] == expected


@pytest.mark.requirement("GNG-44")
def test_an_error_that_is_stored_blocks_no_other_change() -> None:
    """It was written while the webhook was down, or with a gate that is off now."""
    group = {"name": "gg", "minCount": 2, "maxCount": 3}
    stored = {"gangGroups": [group]}
    changed = {"gangGroups": [{**group, "scheduleTimeoutSeconds": 30}]}
    assert paths(validated(changed, stored, REV1)) == []
    assert paths(validated(stored, stored, REV1)) == []
    worse = {"gangGroups": [{**group, "gangMode": "Gang"}]}
    assert paths(validated(worse, stored, REV1)) == ["spec.gangGroups[0].gangMode"]


def test_what_is_immutable_is_compared_with_the_stored_object() -> None:
    stored = {"gangGroups": [{"name": "gg", "minCount": 2}]}
    other = {"gangGroups": [{"name": "other", "minCount": 2}]}
    assert paths(validated(other, stored)) == ["spec.gangGroups"]
    assert paths(validated({"gangGroups": [{"name": "gg", "minCount": 3}]}, stored)) == []


def test_what_is_being_deleted_or_has_a_subresource_is_not_checked() -> None:
    broken = next(iter(invalid_cases("webhook").values()))["spec"]
    going = workload(broken)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert validate(review(GANG_WORKLOAD, going), gangs=REV_N).allowed
    assert validated(broken, sub_resource="status").allowed


@pytest.mark.requirement("GNG-34")
@pytest.mark.parametrize(
    "spec",
    [
        {"gangGroups": [{"name": "a", "gangMode": False}, {"name": "b", "rankMode": False}]},
        {"gangGroups": [{"name": "a", "rankedGroups": [{"name": "r", "rankMode": False}]}]},
        {"rankedGroups": [{"name": "r", "rankMode": False}]},
        {"gangGroups": [{"name": "a", "gangMode": True, "rankMode": "Off"}]},
        {"gangGroups": False, "rankedGroups": [False, None], "eqGroups": {"gangMode": False}},
        None,
        [],
    ],
)
def test_an_unquoted_off_gets_its_quotes_where_it_has_a_meaning(spec: Any) -> None:
    found = workload(spec)
    before = copy.deepcopy(found)
    operations = mutate(review(GANG_WORKLOAD, found), gangs=REV_N).operations
    assert apply_patch(found, operations)["spec"] == quote_off(spec)
    assert found == before


def linked(name: str = "w") -> Object:
    return job("train", 2, annotations={LINK: name})


def judged(found: Object, kind: str, rules: GangRules) -> AdmissionResponse:
    asked = review(kind, found)
    patched = apply_patch(found, mutate(asked, gangs=rules).operations)
    return validate(review(kind, patched), gangs=rules)


def test_a_link_has_no_effect_and_says_so_while_gang_scheduling_is_off() -> None:
    path = f"spec.template.metadata.annotations[{LINK}]"
    (warning,) = judged(linked(), "batch/Job", OFF).warnings
    assert warning.startswith(f"{path} has no effect")
    assert GANG_SCHEDULING in warning
    assert len(warning) <= 256, "the API server cuts longer ones"
    assert judged(linked(), "batch/Job", REV1).warnings == []
    stored = linked()
    again = validate(review("batch/Job", linked(), stored), gangs=OFF)
    assert again.warnings == [], "said once"


def test_links_of_all_templates_are_looked_at() -> None:
    for kind, found in (
        (
            "jobset.x-k8s.io/JobSet",
            jobset("train", [replicated_job(n, 2, annotations=MARK) for n in "ab"]),
        ),
        (
            "ray.io/RayCluster",
            raycluster("train", [worker_group("w", 2, annotations=MARK)], head_annotations=MARK),
        ),
    ):
        warnings = judged(found, kind, OFF).warnings
        assert len(warnings) > 1
        assert all(f"annotations[{LINK}] has no effect" in one for one in warnings)


def test_a_link_that_is_no_name_is_rejected() -> None:
    assert paths(judged(linked("No Name"), "batch/Job", REV1)) == [
        f"spec.template.metadata.annotations[{LINK}]"
    ]


def test_settings_of_gangs_on_a_job_are_checked() -> None:
    def errors(**annotations: str) -> list[str]:
        found = job("train", 2)
        given = {f"{names.GANG_GROUP}/{key.replace('_', '-')}": v for key, v in annotations.items()}
        found["metadata"]["annotations"] = given
        return [str(error) for error in judged(found, "batch/Job", REV1).errors]

    good = json.dumps({"gangGroups": [{"name": "gg", "minCount": 2}]})
    assert errors(workload_template=good, gang_per="ReplicatedJob") == []
    (error,) = errors(workload_template="{")
    assert error.startswith(f"metadata.annotations[{TEMPLATE}]: is not JSON")
    (error,) = errors(workload_template='{"gangGroups": [{"name": "gg", "minCount": -1}]}')
    assert "spec.gangGroups[0].minCount" in error
    (error,) = errors(gang_per="Pod")
    assert error == f'metadata.annotations[{names.GANG_PER_ANNOTATION}]: unknown value "Pod"; ' + (
        "use ReplicatedJob"
    )


def test_the_gate_and_the_run_are_reserved_in_templates() -> None:
    for rules in (OFF, REV1):
        gated = job("train", 2, required=RACK)
        gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": names.GANG_GATE}]
        (error,) = judged(gated, "batch/Job", rules).errors
        assert error.path == "spec.template.spec.schedulingGates[0].name"
        forged = job("train", 2, annotations={names.GANG_RUN_ANNOTATION: "1"})
        (error,) = judged(forged, "batch/Job", rules).errors
        assert error.path == f"spec.template.metadata.annotations[{names.GANG_RUN_ANNOTATION}]"


def test_a_pod_of_a_gang_without_topology_gets_no_topology_gate() -> None:
    pod: Object = {
        "metadata": {
            "name": "p",
            "labels": {names.PODSET_LABEL: "main"},
            "annotations": {names.WORKLOAD_ANNOTATION: "job-train", LINK: "w"},
        },
        "spec": {"schedulingGates": [{"name": names.GANG_GATE}]},
    }
    assert mutate(review("/Pod", pod)).operations == []
    del pod["spec"]["schedulingGates"]
    assert mutate(review("/Pod", pod)).operations != []


DEFAULTS: dict[str, Any] = {"scheduleTimeoutSeconds": 300, "reschedulingPolicy": "TerminateAll"}


def filled(spec: Any, operation: str = "CREATE") -> Any:
    rules = GangRules(on=True, rev_n=True, defaults=DEFAULTS)
    stored = workload(spec) if operation == "UPDATE" else None
    found = mutate(review(GANG_WORKLOAD, workload(copy.deepcopy(spec)), stored), gangs=rules)
    return apply_patch(workload(copy.deepcopy(spec)), found.operations)["spec"]


@pytest.mark.requirement("GNG-30")
def test_the_defaults_of_the_cluster_fill_what_a_new_gang_leaves_out() -> None:
    group = {"name": "gg", "minCount": 4}
    assert filled({"gangGroups": [group]}) == {"gangGroups": [{**group, **DEFAULTS}]}
    own = {**group, "scheduleTimeoutSeconds": 10}
    assert filled({"gangGroups": [own]})["gangGroups"] == [{**DEFAULTS, **own}]
    assert filled({"gangGroups": [group]}, "UPDATE") == {"gangGroups": [group]}


@pytest.mark.requirement("GNG-30")
@pytest.mark.parametrize(
    "spec",
    [
        {"gangGroups": [{"name": "gg"}]},
        {"gangGroups": [{"name": "gg", "minCount": 0}]},
        {"gangGroups": [{"name": "gg", "minCount": 4, "gangMode": "Off"}]},
        {"replicaMode": "ReplicatedPods", "gangGroups": [{"name": "gg", "minCount": 4}]},
        {"eqGroups": [{"name": "one", "count": 4}]},
        {"gangGroups": [{"name": "gg", "minCount": "4"}, None, 7]},
        {"gangGroups": {"name": "gg"}},
        [],
    ],
)
def test_what_is_no_gang_or_no_valid_spec_gets_no_defaults(spec: Any) -> None:
    assert filled(spec) == spec


def test_without_a_setting_nothing_is_filled() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 4}]}
    assert mutate(review(GANG_WORKLOAD, workload(spec)), gangs=REV_N) == AdmissionResponse()


def created(pod: Object, rules: GangRules, *, pod_groups: bool = False) -> Object:
    found = mutate(review("/Pod", copy.deepcopy(pod)), gangs=rules, pod_groups=pod_groups)
    assert found.errors == []
    patched: Object = apply_patch(copy.deepcopy(pod), found.operations)
    return patched


def gates_of_created(pod: Object, rules: GangRules, *, pod_groups: bool = False) -> set[str]:
    patched = created(pod, rules, pod_groups=pod_groups)
    return {gate["name"] for gate in patched["spec"].get("schedulingGates", [])}


@pytest.mark.requirement("GNG-12")
def test_a_linked_pod_gets_the_gate_beside_all_others_that_it_needs() -> None:
    """The way of servers before Kubernetes 1.36."""
    meta: Object = {"name": "p", "annotations": dict(MARK)}
    pod: Object = {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}
    assert gates_of_created(pod, REV1) == {names.GANG_GATE}
    assert gates_of_created(pod, OFF) == set()
    pod["spec"]["schedulingGates"] = [{"name": "example.com/own"}]
    assert gates_of_created(pod, REV1) == {names.GANG_GATE, "example.com/own"}
    meta["labels"] = {names.QUEUE_LABEL: "queue"}
    gates = gates_of_created(pod, REV1, pod_groups=True)
    assert gates == {names.GANG_GATE, names.ADMISSION_GATE, "example.com/own"}
    meta["labels"] = {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"}
    meta["annotations"][names.WORKLOAD_ANNOTATION] = "k"
    gates = gates_of_created(pod, REV1)
    assert gates == {names.GANG_GATE, names.TOPOLOGY_GATE, "example.com/own"}
    meta["labels"] = {"ray.io/node-type": "redis-cleanup"}
    assert names.GANG_GATE not in gates_of_created(pod, REV1)


@pytest.mark.requirement("GNG-12")
def test_a_linked_pod_that_no_managed_job_owns_gets_the_label_of_managed_pods() -> None:
    """The assigner watches pods by it."""
    meta: Object = {"name": "p", "annotations": dict(MARK)}
    pod: Object = {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}
    assert created(pod, REV1)["metadata"]["labels"] == {names.MANAGED_LABEL: "true"}
    meta["annotations"][names.WORKLOAD_ANNOTATION] = "k"
    assert "labels" not in created(pod, REV1)["metadata"]


@pytest.mark.requirement("GNG-29")
def test_a_pod_of_a_child_job_gets_the_name_of_its_own_workload_of_gangs() -> None:
    """The way of servers before Kubernetes 1.36."""
    uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-workers-1", "uid": uid}
    meta: Object = {
        "name": "p",
        "annotations": {LINK: PER_JOB, names.WORKLOAD_ANNOTATION: "k"},
        "ownerReferences": [{**owner, "name": "other"}, {**owner, "controller": True}],
    }
    pod: Object = {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}
    found = created(pod, REV1)["metadata"]["annotations"]
    assert found[LINK] == child_job_link("train-workers-1", uid) == "job-train-workers-1-0f1e2d3c"
    meta["ownerReferences"][1]["kind"] = "ReplicaSet"
    assert created(pod, REV1)["metadata"]["annotations"][LINK] == PER_JOB


@pytest.mark.requirement("GNG-29")
def test_the_templates_of_child_jobs_are_checked_where_they_count() -> None:
    def made(text: str, link: str = "", **spec: Any) -> Object:
        part = replicated_job("workers", 2, replicas=2)
        part["template"]["metadata"] = {"annotations": {TEMPLATE: text}}
        if link:
            part["template"]["spec"]["template"]["metadata"] = {"annotations": {LINK: link}}
        return dict(jobset("train", [part], suspend=True, **spec))

    order: Object = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    path = f"spec.replicatedJobs[0].template.metadata.annotations[{TEMPLATE}]"
    good = json.dumps({"gangGroups": [{"name": "gg", "minCount": 2}]})
    for text, expected in ((good, []), ("{", [path]), ('{"gangGroups": 1}', [path])):
        found = validate(review("jobset.x-k8s.io/JobSet", made(text, **order)), gangs=REV1)
        assert paths(found) == expected
    # What the start writes is no name, and only allowed together with such a template.
    found = validate(review("jobset.x-k8s.io/JobSet", made(good, PER_JOB, **order)), gangs=REV1)
    assert paths(found) == []
    alone = jobset("train", [replicated_job("w", 2, annotations={LINK: PER_JOB})], suspend=True)
    assert paths(validate(review("jobset.x-k8s.io/JobSet", dict(alone)), gangs=REV1)) != []
    # Without an order, the JobSet is the gang.
    found = validate(review("jobset.x-k8s.io/JobSet", made(good)), gangs=REV1)
    assert found.warnings == [
        f"{path} has no effect: the JobSet is a gang itself, so its Jobs are none"
    ]
    (warning,) = validate(review("jobset.x-k8s.io/JobSet", made(good, **order)), gangs=OFF).warnings
    assert "feature gate GangScheduling is off" in warning


@pytest.mark.requirement("GNG-14")
def test_a_pod_without_a_link_gets_no_gate() -> None:
    for none in ({}, {LINK: ""}):
        pod = {"metadata": {"name": "p", "annotations": none}, "spec": {}}
        assert mutate(review("/Pod", pod), gangs=REV1) == AdmissionResponse()
