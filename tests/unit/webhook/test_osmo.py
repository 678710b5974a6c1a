"""What is said about OSMO's Pools and Workflows, given what was read for them."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from typing import Any

import pytest

from rackgate_osmo.model.rejections import MAX_REJECTIONS
from rackgate_webhook.admission.osmo import (
    MAX_WARNINGS,
    POOL,
    WORKFLOW,
    is_osmo_write,
    pool_response,
    removed_topology_keys,
    topology_keys_of,
    workflow_response,
)
from rackgate_webhook.admission.review import MAX_WARNING, AdmissionResponse
from tests.unit.webhook.reviews import review

Object = dict[str, Any]
ZONE = {"key": "zone", "label": "topology.kubernetes.io/zone"}
RACK = {"key": "rack", "label": "topology.kubernetes.io/rack"}


def pool(*keys: Object, **spec: Any) -> Object:
    return {
        "metadata": {"name": "my-pool"},
        "spec": {"backend": "backend-1", "scheduler": "kai", "topology_keys": list(keys), **spec},
    }


def workflow(*requirements: Object, **spec: Any) -> Object:
    tasks = [{"name": "t1", "image": "registry.example/train:1"}, {"name": "t2"}]
    return {
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {
            "pool": "my-pool",
            "groups": [{"name": "group1", "tasks": tasks}],
            "resources": {"default": {"cpu": 1, "topology": list(requirements)}},
            **spec,
        },
    }


def of_pool(found: Object, stored: Object | None = None, **users: list[str]) -> AdmissionResponse:
    return pool_response(review(POOL, found, stored), users)


def of_workflow(found: Object, stored: Object | None = None) -> AdmissionResponse:
    return workflow_response(
        review(WORKFLOW, found), pool(ZONE, RACK) if stored is None else stored
    )


def said(admission_response: AdmissionResponse) -> list[tuple[str, str]]:
    return [(error.path, error.advice) for error in admission_response.errors]


@pytest.mark.requirement("OSM-01")
def test_a_pool_with_keys_of_kai_is_allowed() -> None:
    assert of_pool(pool(ZONE, RACK)) == AdmissionResponse()
    assert of_pool(pool(scheduler="default-scheduler")).allowed


@pytest.mark.requirement("OSM-02")
def test_keys_for_another_scheduler_are_rejected_by_pool_backend_and_scheduler() -> None:
    ((path, told),) = said(of_pool(pool(ZONE, scheduler="default-scheduler")))
    assert path == "spec.topology_keys"
    for name in ("my-pool", "backend-1", "default-scheduler"):
        assert f'"{name}"' in told


@pytest.mark.requirement("OSM-07")
@pytest.mark.parametrize(
    ("keys", "path", "word"),
    [
        ([ZONE, {**ZONE, "label": "example.com/z"}], "spec.topology_keys[1].key", "zone"),
        ([ZONE, {**ZONE, "key": "az"}], "spec.topology_keys[1].label", ZONE["label"]),
        ([{"key": "k", "label": "gpu clique"}], "spec.topology_keys[0].label", "gpu clique"),
    ],
)
def test_what_a_pool_may_not_hold_is_rejected_by_its_path(
    keys: list[Object], path: str, word: str
) -> None:
    ((found, told),) = said(of_pool(pool(*keys)))
    assert found == path
    assert word in told


def test_a_name_that_is_too_long_for_the_queue_is_rejected_at_the_name() -> None:
    long = pool(ZONE)
    long["metadata"]["name"] = "p" * 54
    ((path, told),) = said(of_pool(long))
    assert path == "metadata.name"
    assert "53" in told


@pytest.mark.requirement("OSM-06")
def test_an_unknown_key_is_rejected_by_task_key_and_the_keys_there_are() -> None:
    ((path, told),) = said(of_workflow(workflow({"key": "gpu-clique"})))
    assert path == "spec.resources.default.topology[0].key"
    for word in ("t1", "gpu-clique", "zone", "rack"):
        assert word in told


@pytest.mark.requirement("OSM-06", "OSM-19")
def test_any_key_is_unknown_to_a_pool_without_keys() -> None:
    assert not of_workflow(workflow({"key": "rack"}), pool()).allowed
    assert of_workflow(workflow(), pool()).allowed


@pytest.mark.requirement("OSM-04")
@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("topologies", "spec.resources.default.topologies"),
        ("topology", "spec.resources.default.topology[0].requirement_type"),
    ],
)
def test_a_misspelt_field_is_rejected_and_not_passed_over(field: str, path: str) -> None:
    asked = workflow()
    asked["spec"]["resources"]["default"][field] = [{"key": "rack", "requirement_type": "required"}]
    assert said(of_workflow(asked))[0][0] == path


def test_every_rejection_is_reported_at_once() -> None:
    asked = workflow({"key": "row"}, {"key": "rack", "requirementType": "Required"})
    asked["spec"]["groups"][0]["tasks"][0]["resource"] = "nope"
    paths = [path for path, _ in said(of_workflow(asked))]
    assert paths == sorted(set(paths), key=paths.index)
    assert len(paths) >= 2


def test_a_workflow_may_be_written_as_in_a_file_below_workflow() -> None:
    flat = workflow({"key": "row"})
    inner = {key: flat["spec"].pop(key) for key in ("groups", "resources")}
    flat["spec"]["workflow"] = {"name": "train", **inner}
    ((path, _),) = said(of_workflow(flat))
    assert path == "spec.workflow.resources.default.topology[0].key"
    assert topology_keys_of(flat) == {"row"}
    del flat["spec"]["workflow"]["name"]
    inner["resources"]["default"]["topology"] = [{"key": "rack"}]
    assert of_workflow(flat).allowed, "named by the object"


def test_a_pool_that_is_not_there_or_not_valid_is_reported() -> None:
    ((path, told),) = said(workflow_response(review(WORKFLOW, workflow()), None))
    assert (path, "my-pool" in told) == ("spec.pool", True)
    ((path, told),) = said(of_workflow(workflow(), pool(ZONE, ZONE)))
    assert path == "spec.pool"
    assert "not valid" in told


def test_keys_that_go_or_mean_another_label_are_given_up() -> None:
    before = pool(ZONE, RACK)
    for after, gone in (
        (pool(ZONE), ("rack",)),
        (pool({**ZONE, "label": "example.com/zone"}, RACK), ("zone",)),
        (pool(RACK, ZONE), ()),
        (pool(ZONE, RACK, {"key": "host", "label": "kubernetes.io/hostname"}), ()),
    ):
        assert removed_topology_keys(review(POOL, after, before)) == gone
    assert removed_topology_keys(review(POOL, before)) == ()


@pytest.mark.requirement("OSM-08")
def test_giving_up_a_key_in_use_is_allowed_with_a_warning_that_names_the_users() -> None:
    users = [f"team/w{number}" for number in range(5)]
    admission_response = of_pool(pool(ZONE), pool(ZONE, RACK), rack=users)
    assert admission_response.allowed
    (warning,) = admission_response.warnings
    assert warning.startswith('"rack" is used by team/w0, team/w1, team/w2 and 2 more; ')
    assert len(warning) <= MAX_WARNING
    assert of_pool(pool(ZONE), pool(ZONE, RACK)) == AdmissionResponse()


def test_users_that_could_not_be_read_are_a_warning_and_no_rejection() -> None:
    admission_response = pool_response(review(POOL, pool(), pool(ZONE, RACK)), None)
    assert admission_response.allowed
    assert "could not be read" in admission_response.warnings[0]


def test_warnings_are_bounded() -> None:
    keys = [{"key": f"k{n}", "label": f"example.com/k{n}"} for n in range(16)]
    users = {f"k{n}": ["team/" + "w" * 200] * 50 for n in range(16)}
    assert len(of_pool(pool(), pool(*keys), **users).warnings) == MAX_WARNINGS


@pytest.mark.parametrize("kind", [POOL, WORKFLOW])
def test_what_leaves_or_is_a_status_or_of_others_is_not_judged(kind: str) -> None:
    found = pool(ZONE)
    assert is_osmo_write(review(kind, found))
    assert not is_osmo_write(review(kind, found, sub_resource="status"))
    assert not is_osmo_write(review("argoproj.io/Workflow", found))
    leaving = copy.deepcopy(found)
    leaving["metadata"]["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    assert not is_osmo_write(review(kind, leaving, found))


def test_odd_shapes_are_no_keys() -> None:
    odd: list[Any] = [None, [], {"a": None}, {"a": {"topology": None}}, {"a": {"topology": [7]}}]
    for resources in odd:
        assert topology_keys_of({"spec": {"resources": resources}}) == set()
    assert topology_keys_of({"spec": {"resources": {"a": {"topology": [{"key": 1}, {}]}}}}) == set()


HOSTILE = {
    "unknown keys": {f"r{n}": {"topology": [{"key": "x"}] * 60} for n in range(600)},
    "unknown fields": {f"r{n}": {f"topolog{m}": 1 for m in range(60)} for n in range(600)},
    "one resource": {"r0": {f"topolog{m}": 1 for m in range(36_000)}},
    "resources that are not there": {f"s{n}": {} for n in range(8000)},
}


@pytest.mark.requirement("OSM-21")
@pytest.mark.parametrize("kind", HOSTILE)
def test_refusing_very_much_costs_little_more_than_reading_it(kind: str) -> None:
    """A review holds up all others of the webhook, so that nobody may make it take seconds."""
    count = 8000 if "not there" in kind else 600
    tasks = [{"name": f"t{n}", "resource": f"r{n}"} for n in range(count)]
    asked = workflow(groups=[{"name": "g", "tasks": tasks}], resources=HOSTILE[kind])
    calls = Counter[str]()

    def count_call(_: object, event: str, called: Any) -> None:
        if event in ("call", "c_call"):
            calls[getattr(called, "__name__", "")] += 1

    sys.setprofile(count_call)
    try:
        errors = of_workflow(asked).errors
    finally:
        sys.setprofile(None)
    assert calls.total() < len(json.dumps(asked))
    assert calls["sorted"] <= MAX_REJECTIONS, "each goes through all there is"
    assert len(errors) == MAX_REJECTIONS + 1
    assert errors[-1].problem.endswith(" more rejections are not shown")
