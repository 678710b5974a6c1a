"""Who makes a Workload of gangs: the twelve settings, and the stories of its life as data.

What only a running control plane shows (garbage collection, the pods) is in the wire and
integration tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from rackgate.api.names import GANG_LINK_ANNOTATION
from rackgate.gang.forms.expand import expand
from rackgate.gang.lifecycle import (
    GangChoice,
    choose_gang,
    gang_workload_body,
    may_adopt,
    own_name,
    owner_reference,
)
from rackgate.gang.linked import linked_body
from rackgate.jobframework.generic_job import GenericJob
from rackgate.jobframework.linked_kind import LinkedKind
from rackgate.jobframework.registry import find_kind, find_linked_kind
from rackgate.wire.core import Meta, OwnerReference
from rackgate_assigner.gangs.linked import (
    CreateLinked,
    LinkedObject,
    linked_decoder,
    plan_linked,
)
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import Review
from tests.support.gang_cases import Case, lifecycles, pairs, settings
from tests.unit.govern.patching import apply_patch

UID: Final = "11111111-2222-3333-4444-555555555555"
QUEUED: Final = "kueue.x-k8s.io/queue-name"


def decoded(manifest: Case) -> tuple[GenericJob[Any], Any]:
    """A job as the watch of the assigner decodes it."""
    kind = find_kind(manifest["apiVersion"], manifest["kind"])
    assert kind is not None
    meta = {"namespace": "team", "uid": UID, **manifest["metadata"]}
    return kind, kind.decode(json.dumps({**manifest, "metadata": meta}).encode())


def choice_for(manifest: Case, *, rev_n: bool = False) -> GangChoice:
    kind, job = decoded(manifest)
    return choose_gang(kind, kind.manifest(job), job.metadata, rev_n=rev_n)


def given(case: Case, *kinds: str) -> Case:
    found: Case = next(item for item in case["given"] if item["kind"] in kinds)
    return found


LINKED_ROWS: Final = {1, 2, 4, 10, 11, 12}


@pytest.mark.requirement("GNG-31", "GNG-21", "GNG-27")
@pytest.mark.parametrize("row", sorted({*settings()} - LINKED_ROWS))
def test_each_row_of_a_job_gets_what_it_says(row: int) -> None:
    case = settings()[row]
    manifest = case["trueWorkload"]
    kind = find_kind(manifest["apiVersion"], manifest["kind"])
    assert kind is not None
    found = choice_for(manifest)
    assert found.problem == ""
    if case["create"] == "never":
        assert found == GangChoice()
        return
    reference = {
        "apiGroup": kind.resource.group,
        "kind": kind.name,
        "name": manifest["metadata"]["name"],
    }
    assert found.spec == {"controllerRef": reference, **case["rev1"]}
    assert found.name == own_name(kind, Meta(name=manifest["metadata"]["name"], uid=UID))
    assert set(found.links.values()) == {found.name}


def linked(manifest: Case) -> tuple[LinkedKind, LinkedObject]:
    """An object as the watch of the assigner decodes it, once the webhook has seen it."""
    group, _, _ = manifest["apiVersion"].rpartition("/")
    kind = find_linked_kind(group, manifest["kind"])
    assert kind is not None
    review = Review("uid", f"{group}/{kind.name}", "CREATE", manifest, {})
    seen = apply_patch(manifest, mutate(review, gangs=GangRules(on=True)).operations)
    meta = {"namespace": "team", "uid": UID, **seen["metadata"]}
    return kind, linked_decoder(kind)(json.dumps({**seen, "metadata": meta}).encode())


@pytest.mark.requirement("GNG-31", "GNG-21", "GNG-27", "GNG-18")
@pytest.mark.parametrize("rev_n", [False, True])
@pytest.mark.parametrize("row", sorted(LINKED_ROWS))
def test_each_row_of_a_linked_kind_gets_what_it_says_if_it_has_a_queue(
    row: int, rev_n: bool
) -> None:
    case = settings()[row]
    manifest = json.loads(json.dumps(case["trueWorkload"]))
    kind, found = linked(manifest)
    assert plan_linked(kind, found, None) is None, "nothing is made without the queue label"
    manifest["metadata"].setdefault("labels", {})[QUEUED] = "lq"
    kind, found = linked(manifest)
    assert plan_linked(kind, found, None) == CreateLinked()
    body = linked_body(kind, found.metadata, found.gang, rev_n=rev_n)
    spec = body["spec"]
    name = manifest["metadata"]["name"]
    reference = {"apiGroup": kind.resource.group, "kind": kind.name, "name": name}
    assert spec.pop("controllerRef") == reference
    assert body["metadata"]["labels"] == {QUEUED: "lq"}
    if case["create"] == "never":
        assert spec == {"replicaMode": "ReplicatedPods"}, "no gang: each pod is queued alone"
        assert expand(spec)["gangGroups"][0]["gangMode"] == "Off"
    else:
        assert case["create"] == "optIn"
        assert spec == case["revN" if rev_n else "rev1"]


@pytest.mark.requirement("GNG-23", "GNG-24")
def test_the_workload_of_a_linked_kind_is_owned_by_it_and_named_by_all_of_its_templates() -> None:
    pair = pairs()["leaderworkerset"]["trueWorkload"][0]
    manifest = json.loads(json.dumps(pair))
    manifest["metadata"]["labels"] = {QUEUED: "lq"}
    kind, found = linked(manifest)
    body = linked_body(kind, found.metadata, found.gang, rev_n=False)
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)
    review = Review("uid", f"{kind.resource.group}/{kind.name}", "CREATE", manifest, {})
    seen = apply_patch(manifest, mutate(review, gangs=GangRules(on=True)).operations)
    links = [holder.link for holder in kind.holders(seen)]
    assert links == [body["metadata"]["name"]] * 2


def test_a_job_of_an_ordered_jobset_may_have_its_own_by_its_annotation() -> None:
    row = settings()[9]
    inner = row["trueWorkload"]["spec"]["replicatedJobs"][1]["template"]
    text = json.dumps(row["perJob"]["rev1"])
    annotations = {"scheduling.rackgate.dev/workload-template": text}
    manifest = {
        **inner,
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "inner", "annotations": annotations},
    }
    found = choice_for(manifest)
    assert found.spec is not None
    assert {key: found.spec[key] for key in ("gangGroups",)} == row["perJob"]["rev1"]


@pytest.mark.requirement("GNG-31")
def test_a_jobset_that_starts_in_order_has_none() -> None:
    manifest = json.loads(json.dumps(settings()[7]["trueWorkload"]))
    manifest["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    assert choice_for(manifest) == GangChoice()
    manifest["spec"]["startupPolicy"] = {"startupPolicyOrder": "AnyOrder"}
    assert choice_for(manifest).is_own


@pytest.mark.requirement("GNG-25", "GNG-19")
@pytest.mark.parametrize("name", ["adoption", "adoption-not-due", "default-switched-off"])
def test_a_link_of_a_user_keeps_the_default_away(name: str) -> None:
    case = lifecycles()[name]
    wanted, manifest = given(case, "Workload")["metadata"]["name"], given(case, "Job")
    assert case["expect"]["created"] == []
    found = choice_for(manifest)
    assert (found.name, dict(found.links), found.spec) == (wanted, {"main": wanted}, None)


@pytest.mark.requirement("GNG-19", "GNG-25")
@pytest.mark.parametrize("queue", [None, "lq"])
def test_the_manifest_story_makes_nothing_with_or_without_a_queue(queue: str | None) -> None:
    case = lifecycles()["manifest"]
    manifest = json.loads(json.dumps(given(case, "StatefulSet")))
    if queue is not None:
        manifest["metadata"]["labels"] = {QUEUED: queue}
    kind, found = linked(manifest)
    assert plan_linked(kind, found, None) is None


@pytest.mark.requirement("GNG-20")
@pytest.mark.parametrize("name", ["adoption", "adoption-not-due", "default-switched-off"])
def test_a_job_that_deletes_itself_adopts_the_workload_of_its_user(name: str) -> None:
    case = lifecycles()[name]
    workload, (kind, job) = given(case, "Workload"), decoded(given(case, "Job"))
    expected = case["expect"].get("ownerReferencesOf", {}).get(workload["metadata"]["name"], [])
    meta = Meta(name=workload["metadata"]["name"], namespace="team")
    due = kind.deletes_itself(job) and may_adopt(kind, job.metadata, meta, workload["spec"])
    assert due == bool(expected)
    for wanted in expected:
        reference = owner_reference(kind, job.metadata)
        assert {key: reference.get(key, False) for key in wanted} == wanted


@pytest.mark.requirement("GNG-20")
def test_a_job_of_a_cron_job_adopts_and_a_workload_with_an_owner_is_left_alone() -> None:
    case = lifecycles()["adoption-not-due"]
    manifest = json.loads(json.dumps(given(case, "Job")))
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c"}
    manifest["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    kind, job = decoded(manifest)
    assert kind.deletes_itself(job)
    free = Meta(name="w", namespace="team")
    spec = given(case, "Workload")["spec"]
    assert may_adopt(kind, job.metadata, free, spec)
    described = {"apiGroup": "batch", "kind": "CronJob", "name": "nightly"}
    assert may_adopt(kind, job.metadata, free, {**spec, "controllerRef": described})
    other = {**described, "name": "weekly"}
    assert not may_adopt(kind, job.metadata, free, {**spec, "controllerRef": other})
    owned = Meta(name="w", namespace="team", owner_references=(OwnerReference(uid="x"),))
    assert not may_adopt(kind, job.metadata, owned, spec)


@pytest.mark.requirement("GNG-21", "GNG-24")
def test_a_default_is_owned_by_its_job_and_has_the_expected_spec() -> None:
    case = lifecycles()["default-created"]
    kind, job = decoded(given(case, "Job"))
    found = choose_gang(kind, kind.manifest(job), job.metadata, rev_n=False)
    body, (wanted,) = gang_workload_body(kind, job.metadata, found), case["expect"]["created"]
    assert body["spec"] == wanted["spec"]
    assert found.name.startswith("job-lc-default-")
    assert body["metadata"]["name"] == found.name
    (owner,) = body["metadata"]["ownerReferences"]
    assert {key: owner[key] for key in wanted["ownerReferences"][0]} == wanted["ownerReferences"][0]
    assert owner["uid"] == UID


@pytest.mark.requirement("GNG-22")
def test_each_run_of_a_cron_job_gets_its_own() -> None:
    case = lifecycles()["templated"]
    cron_job, (wanted,) = given(case, "CronJob"), case["expect"]["createdPerRun"]
    template = cron_job["spec"]["jobTemplate"]
    run = {
        **template,
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**template["metadata"], "name": "<run>"},
    }
    found = choice_for(run, rev_n=True)
    assert found.spec == wanted["spec"]
    refused = choice_for(run)
    assert "WorkloadRevN" in refused.problem
    assert refused.spec is None
    assert refused.links == {}


def test_the_job_of_a_started_default_has_the_same_choice() -> None:
    manifest = json.loads(json.dumps(settings()[3]["trueWorkload"]))
    before = choice_for(manifest)
    manifest["spec"]["template"]["metadata"] = {"annotations": {GANG_LINK_ANNOTATION: before.name}}
    assert choice_for(manifest) == before


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"gangGroups": 3}', "[" * 100_000])
def test_a_template_that_is_no_spec_is_a_problem_with_its_path(text: str) -> None:
    manifest = json.loads(json.dumps(settings()[3]["trueWorkload"]))
    manifest["metadata"]["annotations"] = {"scheduling.rackgate.dev/workload-template": text}
    found = choice_for(manifest)
    assert found.problem.startswith(
        "metadata.annotations[scheduling.rackgate.dev/workload-template]: "
    )
    assert not found.is_own


@pytest.mark.requirement("GNG-24")
@pytest.mark.requirement("GNG-03")
def test_templates_that_name_different_workloads_are_a_problem() -> None:
    manifest = json.loads(json.dumps(settings()[7]["trueWorkload"]))
    for replicated, link in zip(manifest["spec"]["replicatedJobs"], ("a", "b"), strict=True):
        template = replicated["template"]["spec"]["template"]
        template["metadata"] = {"annotations": {GANG_LINK_ANNOTATION: link}}
    assert "name 2 Workloads of gangs, a, b" in choice_for(manifest).problem


@pytest.mark.parametrize(
    "change",
    [
        {"parallelism": 4},
        {"completionMode": "NonIndexed"},
        {"parallelism": 1, "completions": 1},
    ],
)
def test_a_job_whose_pods_need_not_run_together_has_none(change: Mapping[str, Any]) -> None:
    manifest = json.loads(json.dumps(settings()[3]["trueWorkload"]))
    manifest["spec"].update(change)
    assert choice_for(manifest) == GangChoice()


@pytest.mark.parametrize(
    "key", ["kueue.x-k8s.io/elastic-job", "kueue.x-k8s.io/job-min-parallelism"]
)
def test_a_job_whose_size_may_change_has_none(key: str) -> None:
    manifest = json.loads(json.dumps(settings()[3]["trueWorkload"]))
    manifest["metadata"]["annotations"] = {key: "true" if key.endswith("elastic-job") else "2"}
    assert choice_for(manifest) == GangChoice()


def test_a_raycluster_has_none_and_takes_that_of_its_user() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    manifest: Case = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray"},
        "spec": {
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "w", "replicas": 2, "template": template}],
        },
    }
    assert choice_for(manifest) == GangChoice()
    linked = {**template, "metadata": {"annotations": {GANG_LINK_ANNOTATION: "mine"}}}
    manifest["spec"]["workerGroupSpecs"][0]["template"] = linked
    assert choice_for(manifest).links == {"w": "mine"}


def test_jobs_are_decoded_as_the_watch_does() -> None:
    kind, job = decoded(settings()[7]["trueWorkload"])
    assert kind.pod_selector(job) == "jobset.sigs.k8s.io/jobset-name=r7"
    labels = kind.pod_labels(kind.manifest(job))
    assert labels["workers"] == {"jobset.sigs.k8s.io/replicatedjob-name": "workers"}
    assert msgspec.json.encode(job)
