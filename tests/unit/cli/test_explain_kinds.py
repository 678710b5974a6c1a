"""JobSets and RayClusters that are not submitted, as `rackgate explain -f` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import SubmissionPreview, load, preview_submission
from tests.support import composite_jobs as composite
from tests.support.objects import RACK


def of(document: dict[str, Any], *, elastic: bool = False) -> SubmissionPreview:
    cache = Cache(Features(elastic_jobs=elastic))
    return preview_submission(document, None, ClusterReading(cache), "team")


def jobset(**spec: Any) -> dict[str, Any]:
    leader = composite.replicated_job("Leader", 1, annotations=composite.marks(required=RACK))
    workers = composite.replicated_job("workers", 2, replicas=3)
    return composite.jobset("train", [leader, workers], **spec)


def raycluster(**options: Any) -> dict[str, Any]:
    groups = [composite.worker_group("small", 3, hosts=2)]
    return composite.raycluster("ray", groups, **options)


def counts(found: SubmissionPreview) -> dict[str, int]:
    assert found.workload is not None, found.errors
    return {podset.name: podset.count for podset in found.workload.spec.pod_sets}


@pytest.mark.requirement("HOOK-03")
def test_a_jobset_becomes_the_workload_that_the_assigner_would_make() -> None:
    found = of(jobset())
    assert (found.name, found.kind, found.errors) == ("team/train", "JobSet", ())
    assert counts(found) == {"leader": 1, "workers": 6}
    assert found.workload is not None
    request = found.workload.spec.pod_sets[0].topology_request
    assert request is not None
    assert request.required == RACK


@pytest.mark.parametrize("elastic", [True, False])
def test_a_raycluster_becomes_the_workload_that_the_assigner_would_make(elastic: bool) -> None:
    found = of(raycluster(autoscaling=True), elastic=elastic)
    assert (found.name, found.kind) == ("team/ray", "RayCluster")
    assert counts(found) == {"head": 1, "small": 6}
    assert found.workload is not None
    assert found.workload.elastic is elastic


def test_one_of_several_kinds_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([jobset(), raycluster()]))
    assert load(str(path), "ray")["kind"] == "RayCluster"
    assert load(str(path), "train")["kind"] == "JobSet"


def test_what_would_be_rejected_is_reported_by_its_path() -> None:
    document = raycluster()
    document["spec"]["workerGroupSpecs"][0]["groupName"] = "Head"
    found = of(document)
    assert [error.path for error in found.errors] == ["spec.workerGroupSpecs[0].groupName"]
    document = jobset()
    document["spec"]["replicatedJobs"][1]["template"]["spec"]["template"] = {}
    assert [error.path for error in of(document).errors] == [
        "spec.replicatedJobs[1].template.spec.template"
    ]
    assert of(composite.jobset("empty", [])).errors


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (composite.jobset("train", [composite.replicated_job("w", 1)], queue=None), "other JobSet"),
        (raycluster(queue=None), "its own controller runs it as any other RayCluster"),
        (jobset(managedBy="kueue.x-k8s.io/multikueue"), "names another controller"),
    ],
)
def test_what_no_one_governs_is_left_alone_with_the_reason(
    document: dict[str, Any], words: str
) -> None:
    assert words in of(document).unmanaged_reason


def test_a_part_of_a_jobset_is_queued_with_the_whole() -> None:
    document = {
        "apiVersion": "ray.io/v1",
        **raycluster(),
    }
    document["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "name": "train",
            "uid": "u",
            "controller": True,
        }
    ]
    assert 'part of JobSet "train"' in of(document).unmanaged_reason


def test_a_misspelt_annotation_of_any_template_is_reported() -> None:
    document = jobset()
    template = document["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    key = names.REQUIRED_TOPOLOGY.replace("required", "requierd")
    template["metadata"] = {"annotations": {key: RACK}}
    (warning,) = of(document).warnings
    assert f'did you mean "{names.REQUIRED_TOPOLOGY}"' in warning
