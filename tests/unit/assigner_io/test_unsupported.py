"""What has no effect, as the condition of a Workload says it."""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.api import names
from rackgate.jobframework.registry import JOB, RAYJOB
from rackgate.wire.kueue import ClusterQueue, Workload
from rackgate_assigner.workload.unsupported import KnownTexts, without_effect
from tests.support.composite_jobs import rayjob, worker_group
from tests.support.objects import RACK, Object, job

CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]


def workload(template: Object | None = None, **metadata: Any) -> Workload:
    podset = {"name": "main", "count": 1, "template": template or {"spec": {}}}
    body = {"metadata": {"name": "w", **metadata}, "spec": {"podSets": [podset]}}
    return msgspec.json.decode(msgspec.json.encode(body), type=Workload)


def of_job(manifest: Object, **options: Any) -> str:
    kind = JOB if manifest["kind"] == "Job" else RAYJOB
    return without_effect(workload(), kind.decode(msgspec.json.encode(manifest)), None, **options)


def test_a_job_that_sets_nothing_without_effect_says_nothing() -> None:
    assert of_job(job("train", 2, required=RACK)) == ""
    assert of_job(rayjob("train", [worker_group("w", 1)])) == ""


def test_an_annotation_behind_a_gate_has_an_effect_with_it() -> None:
    manifest = job("train", 2)
    manifest["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    said = of_job(manifest)
    assert said.startswith(f"metadata.annotations[{names.ELASTIC_ANNOTATION}] has no effect: ")
    assert of_job(manifest, elastic_kinds={"Job"}) == ""


def test_claims_are_named_where_the_job_has_them() -> None:
    manifest = job("train", 2)
    manifest["spec"]["template"]["spec"]["resourceClaims"] = CLAIMS
    assert of_job(manifest).startswith("spec.template.spec.resourceClaims has no effect: ")
    ray = rayjob("train", [worker_group("w", 1)])
    group = ray["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    group["template"]["spec"]["resourceClaims"] = CLAIMS
    path = "spec.rayClusterSpec.workerGroupSpecs[0].template.spec.resourceClaims"
    assert of_job(ray).startswith(f"{path} has no effect: ")


def test_a_workload_without_a_job_says_what_its_own_templates_set() -> None:
    found = without_effect(workload({"spec": {"resourceClaims": CLAIMS}}), None, None)
    assert found.startswith("spec.podSets[0].template.spec.resourceClaims has no effect: ")


def test_an_excluded_resource_is_named_once() -> None:
    containers = [
        {"resources": {"requests": {"cpu": "1", "example.com/licence": "1"}}},
        {"resources": {"limits": {"example.com/licence": "2"}}},
    ]
    found = workload({"spec": {"containers": containers}})
    said = without_effect(found, None, None, excluded=("example.com/",))
    assert said.count("example.com/licence") == 1
    assert "counts neither for quota nor for capacity" in said
    assert without_effect(found, None, None, excluded=("other.com/",)) == ""


def test_concurrent_admission_of_the_queue_is_named() -> None:
    policy = {"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}
    queue = ClusterQueue()
    assert without_effect(workload(), None, queue) == ""
    body = {"metadata": {"name": "cq"}, "spec": policy}
    queue = msgspec.json.decode(msgspec.json.encode(body), type=ClusterQueue)
    said = without_effect(workload(), None, queue)
    assert said.startswith('ClusterQueue "cq": spec.concurrentAdmissionPolicy has no effect: ')


def test_a_text_is_kept_until_its_object_changes_and_none_fails_a_write() -> None:
    texts = KnownTexts(elastic_kinds=(), excluded=())
    found = workload({"spec": {"resourceClaims": CLAIMS}})
    said = texts.text(found, None, None)
    assert said == without_effect(found, None, None) != ""
    assert texts.text(found, None, None) is said
    meta = msgspec.structs.replace(found.metadata, generation=found.metadata.generation + 1)
    plain = msgspec.structs.replace(workload(), metadata=meta)
    assert texts.text(plain, None, None) == ""
    deep = b'{"spec":' + b"[" * 5000 + b"]" * 5000 + b"}"
    podset = msgspec.structs.replace(found.spec.pod_sets[0], template=msgspec.Raw(deep))
    spec = msgspec.structs.replace(found.spec, pod_sets=(podset,))
    odd = msgspec.structs.replace(found, spec=spec)
    texts.forget(found.metadata.key)
    assert texts.text(odd, None, None) == ""
