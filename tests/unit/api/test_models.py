from __future__ import annotations

import pytest

from rackgate.api.crd import CRD_KINDS
from rackgate.api.queues import ClusterQueue, ResourceFlavor
from rackgate.api.workload import PodSet, Workload, WorkloadSpec
from rackgate_webhook.admission.objects import model_errors
from tests.support.bad_manifests import BAD, Bad
from tests.support.good_manifests import GOOD, Good
from tests.support.manifests import cluster_queue, group, workload

MODELS = {kind.model.__name__: kind.model for kind in CRD_KINDS}
REFUSED_BY_MODELS = [case for case in BAD if case.python]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
@pytest.mark.requirement("OPS-04")
def test_good_manifests_survive_the_round_trip(case: Good) -> None:
    manifest = case.manifest if case.status is None else {**case.manifest, "status": case.status}
    model = MODELS[manifest["kind"]]
    assert model.model_validate(manifest).to_json() == manifest


@pytest.mark.parametrize("case", REFUSED_BY_MODELS, ids=lambda case: case.name)
@pytest.mark.requirement("TAS-01", "TAS-02", "VAL-01", "VAL-11")
def test_bad_manifests_are_rejected_by_their_path(case: Bad) -> None:
    manifest = case.manifest if case.status is None else {**case.manifest, "status": case.status}
    errors = model_errors(MODELS[manifest["kind"]], manifest)
    assert any(case.path in str(error).split(": ")[0] for error in errors)


def test_unknown_fields_are_kept() -> None:
    manifest = workload()
    manifest["spec"]["newField"] = {"x": [1]}
    assert Workload.model_validate(manifest).to_json() == manifest


def test_defaults_are_those_of_the_api() -> None:
    queue = ClusterQueue.model_validate(cluster_queue())
    assert queue.spec.queueing_strategy == "BestEffortFIFO"
    assert queue.spec.stop_policy == "None"
    assert queue.spec.namespace_selector is None
    assert Workload.model_validate(workload()).spec.active


def test_models_are_built_by_their_python_names() -> None:
    spec = WorkloadSpec(pod_sets=[PodSet(name="main", count=2, template={})], queue_name="lq")
    built = Workload(spec=spec)
    assert built.to_json() == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "spec": {
            "podSets": [{"name": "main", "count": 2, "template": {}}],
            "queueName": "lq",
        },
    }


def test_a_flavor_needs_no_spec() -> None:
    flavor = ResourceFlavor.model_validate({"metadata": {"name": "plain"}})
    assert flavor.spec.topology_name is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([group("a"), group("b")], 'resource "cpu" is in two groups'),
        ([group("a"), group("a", resources=("memory",))], 'flavor "a" is in two groups'),
    ],
)
def test_a_resource_or_flavor_in_two_groups_is_rejected(
    groups: list[dict[str, object]], message: str
) -> None:
    (error,) = model_errors(ClusterQueue, cluster_queue(resourceGroups=groups))
    assert str(error).startswith(f"spec.resourceGroups: {message}")


@pytest.mark.parametrize("quota", ["1e3", "0.5", "100m", "1Ki", "1.5Gi", "1e30", 7, "+1"])
def test_every_form_of_quantity_is_a_quota(quota: str | int) -> None:
    queue = cluster_queue(resourceGroups=[group("a", nominalQuota=quota)])
    assert ClusterQueue.model_validate(queue).to_json() == queue
