"""What a job in a gang gets at its start, and what is left of it after its stop."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.names import (
    GANG_GATE,
    GANG_LINK_ANNOTATION,
    NATIVE_GROUP_ANNOTATION,
    TOPOLOGY_GATE,
)
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StartConflict,
    keep_injection_ops,
    reinjection_ops,
    restored_template,
    start_ops,
)
from rackgate.jobframework.templates import annotations_of, gates_of, labels_of, reserved_errors
from tests.unit.govern.patching import apply_patch

Template = dict[str, Any]
PLAIN: Template = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
LINKED: Template = {**PLAIN, "metadata": {"annotations": {GANG_LINK_ANNOTATION: "mine"}}}


def part(template: Template) -> PodTemplate:
    return PodTemplate("main", "spec.template", "/spec/template", template)


def written(template: Template, operations: Any) -> Template:
    assert not isinstance(operations, StartConflict)
    found: Template = apply_patch({"spec": {"template": copy.deepcopy(template)}}, operations)
    whole: Template = found["spec"]["template"]
    return whole


def started(template: Template, gang: str, *, tas: bool = False) -> Template:
    info = PodSetInfo("main", tas, {"pool": "a"}, gang=gang)
    return written(template, start_ops([part(template)], {"main": info}, workload="w"))


@pytest.mark.requirement("GNG-12", "GNG-26")
@pytest.mark.parametrize("tas", [False, True])
def test_the_start_links_the_pods_and_holds_them_also_without_topology(tas: bool) -> None:
    found = started(PLAIN, "job-train-12345", tas=tas)
    assert gates_of(found) == [*([TOPOLOGY_GATE] if tas else []), GANG_GATE]
    assert annotations_of(found)[GANG_LINK_ANNOTATION] == "job-train-12345"
    assert annotations_of(found)[names.WORKLOAD_ANNOTATION] == "w"
    assert labels_of(found)[names.PODSET_LABEL] == "main"
    assert (names.TAS_LABEL in labels_of(found)) == tas


@pytest.mark.requirement("GNG-25")
def test_a_link_of_the_user_stays_and_gets_the_gate() -> None:
    found = started(LINKED, "mine")
    assert annotations_of(found)[GANG_LINK_ANNOTATION] == "mine"
    assert gates_of(found) == [GANG_GATE]


def with_group(template: Template, gang: str = "w") -> tuple[PodSetInfo, Template]:
    info = PodSetInfo("main", False, gang=gang, pod_group={NATIVE_GROUP_ANNOTATION: "w-gg"})
    ops = start_ops([part(template)], {"main": info}, workload="k")
    return info, written(template, ops)


@pytest.mark.requirement("GNG-12")
@pytest.mark.parametrize("known", [True, False])
def test_the_start_names_the_native_pod_group_and_the_stop_forgets_it(known: bool) -> None:
    info, running = with_group(PLAIN)
    assert annotations_of(running)[NATIVE_GROUP_ANNOTATION] == "w-gg"
    assert restored_template(running, PLAIN, info if known else None) == PLAIN
    kept = written(PLAIN, keep_injection_ops([part(PLAIN)], [part(running)]))
    assert annotations_of(kept)[NATIVE_GROUP_ANNOTATION] == "w-gg"


def test_a_pod_group_that_the_user_names_stays() -> None:
    theirs = {GANG_LINK_ANNOTATION: "w", NATIVE_GROUP_ANNOTATION: "theirs"}
    named: Template = {**PLAIN, "metadata": {"annotations": theirs}}
    info, running = with_group(named)
    assert annotations_of(running)[NATIVE_GROUP_ANNOTATION] == "theirs"
    assert restored_template(running, named, info) == named


@pytest.mark.requirement("GNG-14")
def test_a_job_without_gangs_gets_neither() -> None:
    found = started(PLAIN, "")
    assert gates_of(found) == []
    assert GANG_LINK_ANNOTATION not in annotations_of(found)
    assert names.PODSET_LABEL not in labels_of(found)


@pytest.mark.requirement("TAS-26")
@pytest.mark.parametrize("original", [PLAIN, LINKED])
@pytest.mark.parametrize("known", [True, False])
def test_the_stop_gives_back_exactly_what_the_user_wrote(original: Template, known: bool) -> None:
    gang = "mine" if original is LINKED else "job-train-12345"
    info = PodSetInfo("main", False, {"pool": "a"}, gang=gang)
    running = started(original, gang)
    assert restored_template(running, original, info if known else None) == original


def test_a_client_that_drops_the_link_of_running_pods_gets_it_back() -> None:
    running = started(PLAIN, "job-train-12345")
    kept = written(PLAIN, keep_injection_ops([part(PLAIN)], [part(running)]))
    assert annotations_of(kept)[GANG_LINK_ANNOTATION] == "job-train-12345"
    assert gates_of(kept) == [GANG_GATE]
    # Another link of the user stays: it is the user's to say.
    moved = written(LINKED, keep_injection_ops([part(LINKED)], [part(running)]))
    assert annotations_of(moved)[GANG_LINK_ANNOTATION] == "mine"


def test_the_link_of_a_pending_job_belongs_to_its_user() -> None:
    """Removed or written, it stays as it is: nothing was injected."""
    assert reinjection_ops([part(PLAIN)], [part(LINKED)]) == []
    assert reinjection_ops([part(LINKED)], [part(LINKED)]) == []
    assert reinjection_ops([part(LINKED)], [part(PLAIN)]) == []


@pytest.mark.requirement("GNG-12")
def test_only_rackgate_sets_the_gate_and_the_run() -> None:
    template: Template = {
        "metadata": {"annotations": {names.GANG_RUN_ANNOTATION: "0123456789"}},
        "spec": {"schedulingGates": [{"name": GANG_GATE}]},
    }
    found = [error.path for error in reserved_errors(template, "spec.template")]
    assert found == [
        f"spec.template.metadata.annotations[{names.GANG_RUN_ANNOTATION}]",
        "spec.template.spec.schedulingGates[0].name",
    ]
    assert reserved_errors(LINKED, "spec.template") == []
