"""Native PodGroups in each generation of the API, from fixtures; and what is read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from rackgate.gang.native import v1alpha2, v1beta1
from rackgate.gang.native.adapter import Adapter, decode_pod_group
from rackgate.gang.native.model import Owner, PodGroup
from rackgate.gang.native.versions import ADAPTERS, candidates, serves_pod_groups

FOLDER: Final = Path(__file__).parent / "native"
OWNER: Final = Owner("kueue.x-k8s.io/v1beta2", "Workload", "job-train-1a2b3", "k")
RUN: Final = "0123456789"
Case = dict[str, Any]


def cases(file: str) -> list[Case]:
    found: list[Case] = yaml.safe_load((FOLDER / f"{file}.yaml").read_text())
    return found


def group(case: Case) -> PodGroup:
    return PodGroup("team", "train-gg", OWNER, RUN, **case["group"])


ADAPTED: Final = [
    pytest.param(adapter, case, id=f"{adapter.resource.version}: {case['name']}")
    for adapter in (v1alpha2.ADAPTER, v1beta1.ADAPTER)
    for case in cases(adapter.resource.version)
]


@pytest.mark.parametrize(("adapter", "case"), ADAPTED)
def test_one_model_becomes_the_object_of_each_generation(adapter: Adapter, case: Case) -> None:
    made = json.loads(adapter.body(group(case)))
    assert made == case["object"]
    read = decode_pod_group(adapter.body(group(case)))
    assert read.is_of("k", RUN)
    assert (read.key, read.owner_name) == ("team/train-gg", OWNER.name)
    assert read.min_count == case["group"]["min_count"]


@pytest.mark.parametrize("name", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
@pytest.mark.parametrize(("status", "scheduled"), [("True", True), ("False", False)])
def test_conditions_of_both_names_are_understood(name: str, status: str, scheduled: bool) -> None:
    condition = {"type": name, "status": status, "message": "said"}
    stored = {"metadata": {"name": "g", "namespace": "n"}, "status": {"conditions": [condition]}}
    found = decode_pod_group(json.dumps(stored).encode())
    assert (found.scheduled, found.message) == (scheduled, "said")
    stored["status"] = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert decode_pod_group(json.dumps(stored).encode()).scheduled is None


def discovered(*versions: str) -> bytes:
    return json.dumps({"versions": [{"version": version} for version in versions]}).encode()


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (("v1",), []),
        (("v1", "v1alpha2"), ["v1alpha2"]),
        (("v1", "v1alpha2", "v1beta1", "v1alpha3"), ["v1beta1", "v1alpha2"]),
        (("v1", "v2"), []),
    ],
)
def test_the_newest_known_generation_comes_first(
    served: tuple[str, ...], expected: list[str]
) -> None:
    assert [one.resource.version for one in candidates(discovered(*served))] == expected


def test_a_version_may_be_served_without_pod_groups() -> None:
    resources = json.dumps({"resources": [{"name": "priorityclasses"}]}).encode()
    assert not serves_pod_groups(v1alpha2.ADAPTER, resources)
    resources = json.dumps({"resources": [{"name": "podgroups"}]}).encode()
    assert serves_pod_groups(v1alpha2.ADAPTER, resources)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.resource.version)
def test_a_server_that_drops_the_policy_is_noticed(adapter: Adapter) -> None:
    sent = json.loads(adapter.probe("rackgate-system"))
    assert adapter.keeps_fields(json.dumps(sent).encode())
    assert "ownerReferences" not in sent["metadata"]
    del sent["spec"]["schedulingPolicy"]
    assert not adapter.keeps_fields(json.dumps(sent).encode())


def test_only_what_runs_on_a_real_control_plane_is_said_to_be_tested() -> None:
    assert {one.resource.version for one in ADAPTERS if one.is_tested} == {"v1alpha2"}
