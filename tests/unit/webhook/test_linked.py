"""Reviews of objects whose pods are linked to a Workload of gangs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rackgate.api.names import GANG_LINK_ANNOTATION as LINK
from rackgate.api.names import QUEUE_LABEL as QUEUE
from rackgate.api.resources import Resource
from rackgate.gang.linked import linked_name
from rackgate.jobframework import registry
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind, Manifest, count_at
from rackgate.jobframework.registry import LINKED_KINDS
from rackgate_assigner.gangs.linked import CreateLinked, linked_decoder, plan_linked
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import jobset, leaderworkerset, replicated_job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

Object = dict[str, Any]
ON = GangRules(on=True)
SET = "apps/StatefulSet"
OWN = linked_name(LINKED_KINDS["StatefulSet"], "ss")


def stateful_set(queue: str | None = "lq", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "ss"}}, "spec": {"containers": [{"name": "c"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "ss", "labels": {} if queue is None else {QUEUE: queue}},
        "spec": {
            "replicas": 4,
            "podManagementPolicy": "Parallel",
            "template": template,
            **spec,
        },
    }


def linked(found: Object, stored: Object | None = None, kind: str = SET) -> Object:
    """The object after the mutation."""
    operations = mutate(review(kind, found, stored), gangs=ON).operations
    changed: Object = apply_patch(found, operations)
    again = mutate(review(kind, changed, stored), gangs=ON)
    assert again.operations == [], "the webhook may be called twice"
    return changed


def checked(found: Object, stored: Object | None = None, kind: str = SET) -> AdmissionResponse:
    return validate(review(kind, found, stored), gangs=ON)


def with_pods(found: Object) -> Object:
    return {**copy.deepcopy(found), "status": {"replicas": 4}}


@pytest.mark.requirement("GNG-24")
def test_the_templates_of_a_queued_object_get_the_link_and_the_queue() -> None:
    template = linked(stateful_set())["spec"]["template"]
    assert template["metadata"]["annotations"] == {LINK: OWN}
    assert template["metadata"]["labels"] == {"app": "ss", QUEUE: "lq"}


def test_nothing_changes_without_a_queue_or_without_the_gate() -> None:
    assert mutate(review(SET, stateful_set(None)), gangs=ON).operations == []
    for found in (stateful_set(), stateful_set(None)):
        assert mutate(review(SET, found)) == AdmissionResponse()
        assert validate(review(SET, {**found, "metadata": {}})) == AdmissionResponse()


@pytest.mark.requirement("GNG-25")
def test_the_link_of_a_user_stays_and_its_pods_get_the_queue() -> None:
    found = stateful_set()
    found["spec"]["template"]["metadata"]["annotations"] = {LINK: "mine"}
    metadata = linked(found)["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {LINK: "mine"}
    assert metadata["labels"][QUEUE] == "lq"


@pytest.mark.requirement("GNG-28")
def test_what_another_known_object_makes_is_left_to_it() -> None:
    found = stateful_set()
    owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "l"}
    found["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    assert mutate(review(SET, found), gangs=ON) == AdmissionResponse()
    assert checked(found) == AdmissionResponse()
    found["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]
    assert mutate(review(SET, found), gangs=ON).operations


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (SET, {"podManagementPolicy": "OrderedReady"}, "OrderedReady"),
        ("apps/Deployment", {}, "Deployment"),
    ],
)
@pytest.mark.requirement("GNG-27")
def test_who_gets_no_gang_is_told_why_once(kind: str, change: Object, why: str) -> None:
    found = stateful_set(**change)
    answer = mutate(review(kind, found), gangs=ON)
    (warning,) = answer.warnings
    assert "no gang" in warning
    assert why in warning
    assert answer.operations, "its pods are queued one by one"
    changed = apply_patch(found, answer.operations)
    scaled = copy.deepcopy(changed)
    scaled["spec"]["replicas"] = 9
    assert mutate(review(kind, scaled, changed), gangs=ON).warnings == []


@pytest.mark.parametrize(
    ("spec", "annotations", "why"),
    [
        ({"startupPolicy": "LeaderReady"}, {}, "LeaderReady"),
        ({}, {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}, "exclusive-topology"),
        ({}, {"scheduling.rackgate.dev/replicas-vary": "true"}, "replicas-vary"),
    ],
)
@pytest.mark.requirement("GNG-27")
def test_a_leaderworkerset_whose_group_would_wait_for_itself_is_no_gang(
    spec: Object, annotations: Object, why: str
) -> None:
    kind = "leaderworkerset.x-k8s.io/LeaderWorkerSet"
    found = leaderworkerset("l", replicas=2, size=3, annotations=annotations)
    found["metadata"]["labels"] = {QUEUE: "lq"}
    found["spec"] |= spec
    (warning,) = mutate(review(kind, found), gangs=ON).warnings
    assert why in warning
    assert len(warning) <= 256


def test_an_mpijob_whose_launcher_waits_for_workers_is_no_gang() -> None:
    kind = LINKED_KINDS["MPIJob"]
    roles = {"Launcher": {"template": {}}, "Worker": {"replicas": 4, "template": {}}}
    assert kind.gang({"spec": {"mpiReplicaSpecs": roles}}) == LinkedGang(5)
    spec = {"mpiReplicaSpecs": roles, "launcherCreationPolicy": "WaitForWorkersReady"}
    assert "AtStartup" in kind.gang({"spec": spec}).alone


def test_a_template_written_again_without_the_link_keeps_it() -> None:
    stored = with_pods(linked(stateful_set()))
    assert linked(stateful_set(), stored)["spec"] == stored["spec"], "no pod is replaced"


@pytest.mark.requirement("STR-20")
def test_a_rolling_update_of_a_leaderworkerset_keeps_the_link_of_its_groups() -> None:
    kind = "leaderworkerset.x-k8s.io/LeaderWorkerSet"
    written = leaderworkerset("l", replicas=2, size=3)
    written["metadata"]["labels"] = {QUEUE: "lq"}
    stored = {**linked(written, kind=kind), "status": {"replicas": 2}}
    new = copy.deepcopy(written)
    worker = new["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    worker["spec"]["containers"][0]["image"] = "registry.example/train:2"
    found = linked(new, stored, kind)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    before = stored["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert found["metadata"] == before["metadata"]


def test_pods_that_were_created_without_a_link_are_not_replaced_one_by_one() -> None:
    """A rolling update would wait for the new pod, and that for its gang."""
    stored = with_pods(stateful_set())
    answer = mutate(review(SET, stateful_set(replicas=5), stored), gangs=ON)
    assert answer.operations == []
    assert "use no quota" in answer.warnings[0]
    stored["status"]["replicas"] = 0
    assert mutate(review(SET, stateful_set(), stored), gangs=ON).operations


@pytest.mark.parametrize("before", [None, "other"])
def test_the_queue_changes_only_while_there_are_no_pods(before: str | None) -> None:
    stored, found = stateful_set(before), stateful_set()
    assert checked(found, stored).errors == []
    (error,) = checked(found, with_pods(stored)).errors
    assert error.path == f"metadata.labels[{QUEUE}]"
    assert "while the StatefulSet has pods" in error.problem


def test_the_queue_is_never_removed() -> None:
    (error,) = checked(stateful_set(None), stateful_set()).errors
    assert error.path == f"metadata.labels[{QUEUE}]"
    assert "cannot be removed" in error.problem


def test_what_could_not_work_is_rejected_with_its_path() -> None:
    found = stateful_set("Not A Queue")
    found["metadata"]["generateName"] = found["metadata"].pop("name")
    template = found["spec"]["template"]
    template["metadata"]["annotations"] = {LINK: "Not A Name"}
    template["spec"]["nodeName"] = "n1"
    assert [error.path for error in checked(found).errors] == [
        f"metadata.labels[{QUEUE}]",
        "metadata.name",
        f"spec.template.metadata.annotations[{LINK}]",
        "spec.template.spec.nodeName",
    ]
    # What is stored already blocks no other change.
    assert checked({**found, "spec": {**found["spec"], "replicas": 5}}, found).errors == []


def test_what_has_no_effect_on_such_an_object_is_warned_about_once() -> None:
    found = stateful_set()
    found["metadata"]["labels"] |= {
        "kueue.x-k8s.io/priority-class": "high",
        "kueue.x-k8s.io/pod-group-name": "g",
    }
    found["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    group, topology = checked(found).warnings
    assert group.startswith("metadata.labels[kueue.x-k8s.io/pod-group-name] has no effect")
    assert "set it in the metadata of the pod templates" in topology
    assert checked({**found, "spec": {**found["spec"], "replicas": 5}}, found).warnings == []


def test_the_templates_of_one_object_name_one_workload() -> None:
    found = leaderworkerset("l", replicas=2, size=3)
    found["metadata"]["labels"] = {QUEUE: "lq"}
    template = found["spec"]["leaderWorkerTemplate"]
    template["leaderTemplate"] = copy.deepcopy(template["workerTemplate"])
    for name in ("leaderTemplate", "workerTemplate"):
        template[name]["metadata"] = {"annotations": {LINK: name.lower()}}
    (error,) = checked(found, kind="leaderworkerset.x-k8s.io/LeaderWorkerSet").errors
    assert "name 2 Workloads of gangs" in error.problem


def train_job(**spec: Any) -> Object:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "t", "labels": {QUEUE: "lq"}},
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 4}, **spec},
    }


@pytest.mark.requirement("GNG-28")
@pytest.mark.parametrize("link", [None, "mine"])
def test_a_trainjob_passes_its_link_to_the_pods_by_its_jobset(link: str | None) -> None:
    job = train_job(**({"annotations": {LINK: link}} if link else {}))
    found = linked(job, kind="trainer.kubeflow.org/TrainJob")
    annotations = found["spec"]["annotations"]
    own = linked_name(LINKED_KINDS["TrainJob"], "t")
    assert annotations == {LINK: link or own}
    assert "labels" not in found["spec"], "a JobSet with a queue label would be a job of its own"
    first, main = replicated_job("first", 1), replicated_job("main", 4)
    made = jobset("t", [first, main], queue=None)
    made["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "first", "status": "Complete"}]
    made["metadata"] |= {
        "annotations": annotations,
        "ownerReferences": [
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "name": "t",
                "controller": True,
            }
        ],
    }
    seen = linked(made, kind="jobset.x-k8s.io/JobSet")
    links = [
        job["template"]["spec"]["template"].get("metadata", {}).get("annotations", {}).get(LINK)
        for job in seen["spec"]["replicatedJobs"]
    ]
    # An initializer ends before the gang exists; who names one counts its pods, too.
    assert links == [link, link or own]
    del made["metadata"]["ownerReferences"]
    assert mutate(review("jobset.x-k8s.io/JobSet", made), gangs=ON).operations == []


class FarmKind(LinkedKind):
    """A kind of tests alone: nothing but this class and one line in the registry knows it."""

    resource = Resource("farm.example.com", "v1", "farms", True, "Farm")
    rank_path = "metadata.labels['farm.example.com/index']"

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        yield "spec", "barn", "template"

    def gang(self, manifest: Manifest) -> LinkedGang:
        return LinkedGang(count_at(manifest, "spec", "cows"))

    def has_pods(self, manifest: Manifest) -> bool:
        return count_at(manifest, "status", "cows") > 0


def test_a_new_kind_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = FarmKind()
    monkeypatch.setitem(registry.LINKED_KINDS, kind.name, kind)
    farm: Object = {
        "metadata": {"name": "f", "uid": "u", "labels": {QUEUE: "lq"}},
        "spec": {"cows": 3, "barn": {"template": {"spec": {}}}},
    }
    seen = linked(farm, kind="farm.example.com/Farm")
    own = linked_name(kind, "f")
    assert seen["spec"]["barn"]["template"]["metadata"] == {
        "annotations": {LINK: own},
        "labels": {QUEUE: "lq"},
    }
    moved = {**copy.deepcopy(seen), "status": {"cows": 3}}
    moved["metadata"]["labels"][QUEUE] = "other"
    assert checked(farm, moved, "farm.example.com/Farm").errors
    found = linked_decoder(kind)(json.dumps(seen).encode())
    assert found.metadata.labels == {QUEUE: "lq"}
    assert (found.gang, found.is_linked) == (LinkedGang(3), True)
    assert plan_linked(kind, found, None) == CreateLinked()
