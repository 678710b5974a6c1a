"""JobSets, RayClusters, RayJobs of any shape: governed and started once, given back exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.api import names
from rackgate.jobframework import registry
from rackgate.jobframework.generic_job import GenericJob
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StartConflict,
    restore_ops,
    start_ops,
)
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse
from rackgate_webhook.admission.validate import validate
from tests.property.test_govern import TEMPLATES, TOLERATIONS, maps, sometimes
from tests.support.composite_jobs import jobset, raycluster, rayjob
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

JOBSET, RAYCLUSTER, RAYJOB = "jobset.x-k8s.io/JobSet", "ray.io/RayCluster", "ray.io/RayJob"
Object = dict[str, Any]
# Unlike of a Job, the API server keeps the empty maps and lists of a custom resource.
EMPTY: st.SearchStrategy[tuple[str, str, Object]] = st.sampled_from(
    [("metadata", "labels", {}), ("spec", "nodeSelector", {})]
)


@st.composite
def templates(draw: st.DrawFn) -> Object:
    found = draw(TEMPLATES)
    if draw(st.booleans()):
        part, field, value = draw(EMPTY)
        found.setdefault(part, {}).setdefault(field, value)
    return found


@st.composite
def jobsets(draw: st.DrawFn) -> tuple[str, Object]:
    parts = []
    for index in range(draw(st.integers(1, 3))):
        job = {"template": draw(templates())} | draw(sometimes(parallelism=st.integers(0, 9)))
        part = {"name": f"R{index}", "template": {"spec": job}}
        parts.append(part | draw(sometimes(replicas=st.integers(0, 9))))
    return JOBSET, jobset("any", parts, **draw(sometimes(suspend=st.booleans())))


@st.composite
def rayclusters(draw: st.DrawFn) -> tuple[str, Object]:
    groups = []
    for index in range(draw(st.integers(0, 2))):
        group = {"groupName": f"G{index}", "template": draw(templates())}
        sizes = sometimes(
            replicas=st.integers(0, 9), numOfHosts=st.integers(1, 4), maxReplicas=st.integers(0, 5)
        )
        groups.append(group | draw(sizes))
    found = raycluster("any", groups, **draw(sometimes(suspend=st.booleans())))
    found["spec"]["headGroupSpec"]["template"] = draw(templates())
    found["spec"]["enableInTreeAutoscaling"] = draw(st.booleans())
    return RAYCLUSTER, found


@st.composite
def rayjobs(draw: st.DrawFn) -> tuple[str, Object]:
    _, cluster = draw(rayclusters())
    found = rayjob("any", [], **draw(sometimes(suspend=st.booleans())))
    spec = cluster["spec"]
    del spec["enableInTreeAutoscaling"]
    spec.pop("suspend", None)
    found["spec"]["rayClusterSpec"] = spec
    if draw(st.booleans()):
        found["spec"]["submissionMode"] = "HTTPMode"
    else:
        found["spec"]["submitterPodTemplate"] = draw(templates())
    return RAYJOB, found


ANY = jobsets() | rayclusters() | rayjobs()
FLAVOR_TOLERATIONS: st.SearchStrategy[Any] = TOLERATIONS
RUN = {"op": "replace", "path": "/spec/suspend", "value": False}


def told(kind: str, found: Object, stored: Object | None = None) -> AdmissionResponse:
    return mutate(review(kind, found, stored), elastic_kinds=frozenset({"RayCluster"}))


def parts_of(kind: str, found: Object) -> list[PodTemplate]:
    if kind == JOBSET:
        return registry.JOBSET.templates(found)
    if kind == RAYJOB:
        return registry.RAYJOB.templates(found)
    elastic = found["spec"]["enableInTreeAutoscaling"]
    return registry.RAYCLUSTER.templates(found, elastic=elastic)


def podsets_of(kind: str, found: Object) -> list[Object]:
    kinds: dict[str, GenericJob[Any]] = {
        JOBSET: registry.JOBSET,
        RAYCLUSTER: registry.RAYCLUSTER,
        RAYJOB: registry.RAYJOB,
    }
    return kinds[kind].podsets(found)


def meant(template: Any) -> Any:
    """A template as it is meant: the absent and the empty are the same."""
    if not isinstance(template, dict):
        return template
    plain = {key: meant(value) for key, value in template.items()}
    return {key: value for key, value in plain.items() if value not in ({}, [], None)}


@settings(max_examples=40)
@given(ANY)
@pytest.mark.requirement("HOOK-06", "HOOK-10")
def test_governing_twice_is_governing_once_and_what_it_makes_is_accepted(
    asked: tuple[str, Object],
) -> None:
    kind, found = asked
    before = copy.deepcopy(found)
    once = apply_patch(found, told(kind, found).operations)
    assert found == before
    assert told(kind, once).operations == []
    assert once["spec"]["suspend"] is True
    elastic_kinds = frozenset({"RayCluster"})
    errors = validate(review(kind, once), elastic_kinds=elastic_kinds).errors
    assert not [error for error in errors if "reserved" in error.problem]


@settings(max_examples=40)
@given(ANY)
@pytest.mark.requirement("HOOK-05")
def test_an_ungoverned_job_is_never_touched(asked: tuple[str, Object]) -> None:
    kind, found = asked
    found["metadata"]["labels"] = {}
    assert told(kind, found) == AdmissionResponse()
    assert validate(review(kind, found)).allowed


@settings(max_examples=80)
@given(ANY, st.data())
@pytest.mark.requirement("TAS-26")
@pytest.mark.field_note("E11")
def test_a_stop_gives_back_exactly_what_the_user_wrote(
    asked: tuple[str, Object], data: st.DataObject
) -> None:
    kind, wished = asked
    governed = apply_patch(wished, told(kind, wished).operations)
    parts, podsets = parts_of(kind, governed), podsets_of(kind, governed)
    originals = {podset["name"]: podset["template"] for podset in podsets}
    infos = {
        part.podset: PodSetInfo(
            part.podset,
            data.draw(st.booleans()),
            data.draw(maps()),
            data.draw(FLAVOR_TOLERATIONS),
            gang=data.draw(st.sampled_from(["", "gangs"])),
        )
        for part in parts
    }
    started = start_ops(parts, infos, workload="w")
    if isinstance(started, StartConflict):
        assert started.path.startswith("spec.")
        return
    running = apply_patch(governed, started)
    assert start_ops(parts_of(kind, running), infos, workload="w") == []
    known = infos if data.draw(st.booleans()) else None
    restored = apply_patch(running, restore_ops(parts_of(kind, running), originals, known))
    assert podsets_of(kind, restored) == podsets
    for part, wish in zip(parts_of(kind, restored), parts_of(kind, wished), strict=True):
        assert meant(part.template) == meant(wish.template)
    assert restore_ops(parts_of(kind, restored), originals, known) == []


@settings(max_examples=40)
@given(ANY)
def test_what_the_user_wrote_while_it_ran_is_kept_where_the_admission_is_known(
    asked: tuple[str, Object],
) -> None:
    kind, wished = asked
    governed = apply_patch(wished, told(kind, wished).operations)
    originals = {podset["name"]: podset["template"] for podset in podsets_of(kind, governed)}
    infos = {
        part.podset: PodSetInfo(part.podset, True, {"flavor": "x"})
        for part in parts_of(kind, governed)
    }
    started = start_ops(parts_of(kind, governed), infos, workload="w")
    assert not isinstance(started, StartConflict)
    running = apply_patch(governed, started)
    for part in parts_of(kind, running):
        part.template["spec"]["nodeSelector"].update({"user/key": "v"})
        part.template["metadata"]["labels"].update({"user/label": "v"})
    restored = apply_patch(running, restore_ops(parts_of(kind, running), originals, infos))
    for part in parts_of(kind, restored):
        assert part.template["spec"]["nodeSelector"]["user/key"] == "v"
        assert part.template["metadata"]["labels"]["user/label"] == "v"
        assert "flavor" not in part.template["spec"]["nodeSelector"]
        assert names.PODSET_LABEL not in part.template["metadata"]["labels"]


@settings(max_examples=40)
@given(ANY, st.booleans(), st.sampled_from(["", "gangs"]))
def test_a_manifest_applied_again_changes_nothing(
    asked: tuple[str, Object], running: bool, gang: str
) -> None:
    kind, wished = asked
    stored = apply_patch(wished, told(kind, wished).operations)
    if running:
        infos = {
            part.podset: PodSetInfo(part.podset, True, gang=gang) for part in parts_of(kind, stored)
        }
        started = start_ops(parts_of(kind, stored), infos, workload="w")
        assert not isinstance(started, StartConflict)
        stored = apply_patch(stored, [*started, RUN])
    again = copy.deepcopy(wished)
    again["spec"]["suspend"] = stored["spec"]["suspend"]
    kept = apply_patch(again, told(kind, again, stored).operations)
    assert meant(kept) == meant(stored)
