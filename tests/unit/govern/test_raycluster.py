"""RayClusters: podsets as KubeRay makes pods, marks at creation, what cannot be carried."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.jobframework.errors import MalformedError
from rackgate.jobframework.injection import restored_template
from rackgate.jobframework.raycluster.raycluster import replicas_of
from rackgate.jobframework.registry import RAYCLUSTER
from rackgate.jobframework.templates import annotations_of, gates_of, labels_of
from tests.support.composite_jobs import marks, raycluster, worker_group
from tests.support.kinds import inject_raycluster, remove_raycluster_injection
from tests.support.objects import RACK
from tests.unit.govern.patching import apply_patch

ASKS = marks(required=RACK)
ELASTIC = {names.ELASTIC_ANNOTATION: "true"}


def governed(asked: dict[str, Any], *, slices: bool = True) -> dict[str, Any]:
    result: dict[str, Any] = apply_patch(asked, inject_raycluster(asked, elastic_enabled=slices))
    return result


@pytest.mark.requirement("SLC-04", "TAS-28", "HOOK-03")
def test_the_head_and_each_worker_group_are_podsets() -> None:
    groups = [worker_group("Small", 2), worker_group("tpu", 3, hosts=4)]
    found = [
        (podset["name"], podset["count"])
        for podset in RAYCLUSTER.podsets(raycluster("ray", groups))
    ]
    assert found == [("head", 1), ("small", 2), ("tpu", 12)]


@pytest.mark.parametrize(
    ("group", "replicas"),
    [
        ({"replicas": 3}, 3),
        ({"replicas": 1, "minReplicas": 2}, 2),
        ({"replicas": 9, "maxReplicas": 4}, 4),
        ({"replicas": 9, "minReplicas": 5, "maxReplicas": 4}, 4),
        ({"minReplicas": 2}, 2),
        ({}, 0),
        ({"replicas": None}, 0),
        ({"replicas": 3, "suspend": True}, 0),
        ({"replicas": -3}, 0),
    ],
)
def test_replicas_are_those_that_kuberay_makes(group: dict[str, Any], replicas: int) -> None:
    assert replicas_of(group) == replicas


@pytest.mark.field_note("E20")
def test_the_sidecar_and_the_wait_for_the_head_count() -> None:
    found = raycluster("ray", [worker_group("w", 1)], autoscaling=True)
    head, workers = RAYCLUSTER.podsets(found)
    containers = head["template"]["spec"]["containers"]
    assert [container["name"] for container in containers] == ["main", "autoscaler"]
    asked = {"cpu": "500m", "memory": "512Mi"}
    assert containers[1]["resources"] == {"requests": asked, "limits": asked}
    (wait,) = workers["template"]["spec"]["initContainers"]
    asked = {"cpu": "200m"}
    assert wait["resources"] == {"requests": asked, "limits": asked}, "of what workers ask for"
    worker = found["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    worker["resources"] = {"limits": {"memory": "1Gi"}}
    (wait,) = RAYCLUSTER.podsets(found)[1]["template"]["spec"]["initContainers"]
    assert wait["resources"]["requests"] == {"memory": "256Mi"}
    worker["resources"] = {}
    assert "initContainers" not in RAYCLUSTER.podsets(found)[1]["template"]["spec"]
    for resources in ({}, {"requests": {"cpu": "1"}}):
        found["spec"]["autoscalerOptions"] = {"resources": resources}
        sidecar = RAYCLUSTER.podsets(found)[0]["template"]["spec"]["containers"][1]
        assert sidecar["resources"] == resources
    found["spec"]["enableInTreeAutoscaling"] = False
    assert len(RAYCLUSTER.podsets(found)[0]["template"]["spec"]["containers"]) == 1


@pytest.mark.requirement("RNK-02")
def test_ranks_are_those_of_kuberays_index_labels_unless_replicas_come_and_go() -> None:
    groups = [
        worker_group("one", 2, annotations=ASKS),
        worker_group("tpu", 3, hosts=4, annotations=ASKS),
    ]
    head, one, tpu = RAYCLUSTER.podsets(raycluster("ray", groups, head_annotations=ASKS))
    assert head["topologyRequest"] == {"required": RACK}
    replica, host = "ray.io/worker-group-replica-index", "ray.io/replica-host-index"
    assert one["topologyRequest"] == {"required": RACK, "podIndexLabel": replica}
    assert tpu["topologyRequest"] == {
        "required": RACK,
        "podIndexLabel": host,
        "subGroupIndexLabel": replica,
        "subGroupCount": 3,
    }
    elastic = RAYCLUSTER.podsets(raycluster("ray", groups, autoscaling=True))
    assert "topologyRequest" not in elastic[0]
    assert [podset["topologyRequest"] for podset in elastic[1:]] == [{"required": RACK}] * 2


@pytest.mark.requirement("SLC-13", "HOOK-04", "HOOK-10")
def test_every_template_of_an_elastic_cluster_is_held_the_heads_too() -> None:
    groups = [worker_group("w", 1), worker_group("racked", 1, annotations=ASKS)]
    result = governed(raycluster("ray", groups, autoscaling=True))
    assert result["spec"]["suspend"] is True
    head, plain, racked = RAYCLUSTER.templates(result)
    for part in (head, plain):
        assert gates_of(part.template) == [names.ELASTIC_GATE]
        assert labels_of(part.template) == {names.PODSET_LABEL: part.podset}
        assert annotations_of(part.template) == ELASTIC
    assert gates_of(racked.template) == [names.TOPOLOGY_GATE, names.ELASTIC_GATE]
    assert annotations_of(racked.template) == {**ASKS, **ELASTIC}
    assert inject_raycluster(result, elastic_enabled=True) == []


@pytest.mark.requirement("SLC-01", "SLC-02")
@pytest.mark.field_note("E16")
@pytest.mark.parametrize(("autoscaling", "slices"), [(True, False), (False, True)])
def test_without_gate_or_autoscaler_nothing_is_elastic(autoscaling: bool, slices: bool) -> None:
    asked = raycluster("ray", [worker_group("w", 1)], autoscaling=autoscaling)
    result = governed(asked, slices=slices)
    assert result["spec"].pop("suspend") is True
    assert result == asked


@pytest.mark.requirement("SLC-33")
def test_nothing_writes_replicas() -> None:
    asked = raycluster("ray", [worker_group("w", 1, annotations=ASKS)], autoscaling=True)
    operations = inject_raycluster(asked, elastic_enabled=True) + remove_raycluster_injection(
        governed(asked)
    )
    assert not [op for op in operations if "eplicas" in op["path"]]


def test_a_released_cluster_has_its_users_templates_but_for_empty_maps() -> None:
    asked = raycluster("ray", [worker_group("w", 1, annotations=ASKS)], autoscaling=True)
    result = governed(asked)
    released = RAYCLUSTER.templates(apply_patch(result, remove_raycluster_injection(result)))
    for part, wished in zip(released, RAYCLUSTER.templates(asked), strict=True):
        left = dict(part.template)
        if "metadata" not in wished.template:
            assert not left.pop("metadata", {})
        assert left == wished.template


def test_slices_divide_what_always_comes_together() -> None:
    groups = [worker_group("w", 6), worker_group("tpu", 3, hosts=4)]
    assert RAYCLUSTER.count_units(raycluster("ray", groups)) == {"head": 1, "w": 6, "tpu": 12}
    scaled = raycluster("ray", groups, autoscaling=True)
    assert RAYCLUSTER.count_units(scaled) == {"head": 1, "w": 1, "tpu": 4}
    assert RAYCLUSTER.counts(scaled) == {"head": 1, "w": 6, "tpu": 12}


def errors(*groups: dict[str, Any]) -> list[str]:
    return [str(error) for error in RAYCLUSTER.shape_errors(raycluster("ray", groups))]


def test_a_group_that_no_podset_can_be_is_rejected() -> None:
    assert errors() == [], "a head alone is a cluster"
    (error,) = errors(worker_group("Head", 1))
    assert error.startswith('spec.workerGroupSpecs[0].groupName: "Head" is the same podset as')
    (error,) = errors(worker_group("w", 1), worker_group("W", 1))
    assert error.startswith("spec.workerGroupSpecs[1].groupName: ")
    (error,) = errors(worker_group("w", 1, hosts=0))
    assert error.startswith("spec.workerGroupSpecs[0].numOfHosts: a replica of 0 hosts")
    (error,) = errors(*(worker_group(f"w{i}", 1) for i in range(18)))
    assert error.startswith("spec.workerGroupSpecs: 18 worker groups, a Workload has 17")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("workerGroupSpecs",), {}),
        (("workerGroupSpecs", 0), 3),
        (("workerGroupSpecs", 0, "template"), []),
        (("workerGroupSpecs", 0, "template", "spec"), "x"),
        (("headGroupSpec",), []),
        (("headGroupSpec", "template"), 1),
        (("headGroupSpec", "template", "metadata"), 1),
    ],
)
@pytest.mark.field_note("W8")
def test_a_shape_that_no_api_server_sends_is_named_by_its_path(
    path: tuple[str | int, ...], value: Any
) -> None:
    asked = raycluster("ray", [worker_group("w", 1)])
    holder: Any = asked["spec"]
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    with pytest.raises(MalformedError) as caught:
        inject_raycluster(asked, elastic_enabled=True)
    named = "spec" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    assert caught.value.path == named


def test_a_manifest_applied_over_a_running_cluster_is_not_undone_by_its_stop() -> None:
    """It drops what the flavor brought, so nobody can tell any more what that was."""
    old, new = ({"key": key, "operator": "Exists"} for key in ("old", "new"))
    flavor = {"key": "flavor", "operator": "Exists"}
    original = {
        "spec": {"nodeSelector": {"disk": "hdd", "gone": "x"}, "tolerations": [old, new]},
    }
    applied = {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [new]}}
    assert restored_template(applied, original) == applied
    stale = {"spec": {"nodeSelector": {"disk": "ssd", "pool": "a"}, "tolerations": [new, flavor]}}
    assert restored_template(stale, original) == applied, "what came besides may be the flavor's"
    bare: dict[str, Any] = {"spec": {}}
    assert restored_template(bare, original) == bare
