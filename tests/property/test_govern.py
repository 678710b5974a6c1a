"""Governing any Job is idempotent, undone exactly, and never touches what is not governed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.api import names
from rackgate.api.workload import PodSetTopologyRequest
from rackgate.jobframework.injection import StartConflict
from rackgate.jobframework.templates import strip_reserved
from rackgate.jobframework.topology_request import topology_errors, topology_request
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import answer_review
from rackgate_webhook.admission.validate import validate
from tests.support.kinds import inject_job, podsets_of, restore_patch
from tests.support.starting import start_patch
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

KEYS = st.sampled_from(["app", "a/b", "a~b", "pool", "zone", "kueue.x-k8s.io/other", "", "ä"])
VALUES = st.sampled_from(["", "x", "tas", "a/b"])
TOPOLOGY = st.sampled_from([*names.TOPOLOGY_ANNOTATIONS, names.SLICE_SIZE, names.PODSET_GROUP])


def maps(keys: st.SearchStrategy[str] = KEYS) -> st.SearchStrategy[dict[str, str]]:
    # The API server stores no empty map.
    return st.dictionaries(keys, VALUES, min_size=1, max_size=3)


def sometimes(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


GATES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "b/c"])}),
    min_size=1,
    max_size=2,
    unique_by=lambda gate: gate["name"],
)
TOLERATIONS = st.lists(
    st.sampled_from(
        [
            {"key": "gpu", "operator": "Exists"},
            {"key": "spot", "operator": "Equal", "value": "y", "effect": "NoSchedule"},
            {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3},
        ]
    ),
    min_size=1,
    max_size=3,
)
METADATA = sometimes(labels=maps(), annotations=maps(KEYS | TOPOLOGY), name=VALUES)
SPEC = sometimes(
    nodeSelector=maps(), tolerations=TOLERATIONS, schedulingGates=GATES, hostname=VALUES
)
# The API server stores no template without a spec.
TEMPLATES = st.fixed_dictionaries({"spec": SPEC}, optional={"metadata": METADATA})


@st.composite
def jobs(draw: st.DrawFn, governed: bool = True) -> dict[str, Any]:
    labels = draw(maps()) if draw(st.booleans()) else {}
    if governed:
        labels[names.QUEUE_LABEL] = draw(VALUES)
    spec: dict[str, Any] = {"template": draw(TEMPLATES)}
    spec |= draw(sometimes(suspend=st.booleans(), parallelism=st.integers(0, 9)))
    return {"metadata": {"labels": labels}, "spec": spec}


@given(jobs())
@pytest.mark.requirement("HOOK-06", "HOOK-07")
def test_governing_twice_is_governing_once(asked: dict[str, Any]) -> None:
    once = apply_patch(asked, inject_job(asked))
    assert inject_job(once) == []
    assert once["spec"]["suspend"] is True


@given(jobs(governed=False))
@pytest.mark.requirement("HOOK-05")
def test_an_ungoverned_job_is_never_touched(asked: dict[str, Any]) -> None:
    before = copy.deepcopy(asked)
    assert inject_job(asked) == []
    admission_response = mutate(review("batch/Job", asked))
    assert (admission_response.operations, admission_response.warnings) == ([], [])
    assert validate(review("batch/Job", asked)).allowed
    assert asked == before


@given(jobs(), maps(), TOLERATIONS, st.booleans())
@pytest.mark.requirement("TAS-26")
def test_a_stop_gives_back_exactly_what_the_user_wrote(
    asked: dict[str, Any], node_labels: dict[str, str], tolerations: list[Any], tas: bool
) -> None:
    governed = apply_patch(asked, inject_job(asked))
    (podset,) = podsets_of(governed)
    assert podset["template"] == asked["spec"]["template"]
    start = start_patch(
        governed["spec"]["template"],
        "main",
        workload="w",
        tas=tas,
        node_labels=node_labels,
        tolerations=tolerations,
    )
    if isinstance(start, StartConflict):
        assert asked["spec"]["template"]["spec"]["nodeSelector"][start.key] == start.have
        return
    running = apply_patch(governed, start)
    assert running["spec"]["suspend"] is False
    restore = restore_patch(running["spec"]["template"], podset["template"])
    restored = running if restore is None else apply_patch(running, restore)
    assert restored["spec"]["template"] == asked["spec"]["template"]
    assert restore_patch(restored["spec"]["template"], podset["template"]) is None


@given(jobs(), maps(), TOLERATIONS, st.booleans())
def test_starting_twice_is_starting_once(
    asked: dict[str, Any], node_labels: dict[str, str], tolerations: list[Any], tas: bool
) -> None:
    again: dict[str, Any] = asked
    for expected in (None, ["/spec/suspend"]):
        start = start_patch(
            again["spec"]["template"],
            "main",
            workload="w",
            tas=tas,
            node_labels=node_labels,
            tolerations=tolerations,
        )
        if isinstance(start, StartConflict):
            return
        paths = [operation["path"] for operation in start]
        assert expected is None or paths == expected
        again = apply_patch(again, start)


@given(TEMPLATES)
def test_stripping_is_idempotent_and_leaves_users_keys(template: dict[str, Any]) -> None:
    assert strip_reserved(template) == template


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
MARKS = st.dictionaries(TOPOLOGY | KEYS | st.just(names.WORKLOAD_ANNOTATION), ANYTHING | VALUES)
LABELS = ANYTHING | st.just({names.QUEUE_LABEL: "q", names.PODSET_LABEL: "main"})
META = sometimes(labels=LABELS, annotations=MARKS | ANYTHING, ownerReferences=ANYTHING)
POD = sometimes(metadata=META | ANYTHING, spec=sometimes(schedulingGates=ANYTHING, nodeName=VALUES))
PODSETS = st.lists(sometimes(template=POD, count=ANYTHING, topologyRequest=ANYTHING), max_size=2)
HINTED = sometimes(
    metadata=META | ANYTHING,
    spec=ANYTHING
    | sometimes(
        template=POD | ANYTHING,
        suspend=st.booleans(),
        parallelism=ANYTHING,
        podSets=PODSETS | ANYTHING,
        schedulingGates=ANYTHING,
        replicatedJobs=ANYTHING
        | st.lists(sometimes(name=ANYTHING, template=sometimes(spec=sometimes(template=POD)))),
        headGroupSpec=ANYTHING | sometimes(template=POD),
        workerGroupSpecs=ANYTHING | st.lists(sometimes(groupName=VALUES, template=POD)),
        levels=ANYTHING,
        resourceGroups=ANYTHING,
    ),
    status=ANYTHING | sometimes(active=ANYTHING, conditions=ANYTHING, startTime=ANYTHING),
)
KINDS = st.sampled_from(
    ["batch/Job", "jobset.x-k8s.io/JobSet", "ray.io/RayCluster", "/Pod"]
    + [
        f"{names.GROUP}/{kind}"
        for kind in ("Workload", "Topology", "ResourceFlavor", "ClusterQueue", "LocalQueue")
    ]
)


@settings(deadline=None, max_examples=300)
@given(KINDS, HINTED, st.none() | HINTED)
@pytest.mark.requirement("HOOK-01")
@pytest.mark.field_note("W8")
def test_any_json_object_gets_an_answer(
    kind: str, found: dict[str, Any], stored: dict[str, Any] | None
) -> None:
    group, _, name = kind.rpartition("/")
    request = {
        "uid": "u",
        "kind": {"group": group, "kind": name},
        "operation": "CREATE" if stored is None else "UPDATE",
        "object": found,
        "oldObject": stored,
    }
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    sent = json.dumps(envelope).encode()
    for decide in (mutate, validate):
        assert answer_review(sent, decide).status in (200, 400)


@given(st.dictionaries(TOPOLOGY, st.text(max_size=20) | VALUES))
@pytest.mark.field_note("P5")
def test_any_annotations_can_be_read(annotations: dict[str, str]) -> None:
    template = {"metadata": {"annotations": annotations}}
    topology_errors(template, "spec.template", count=4)
    request = topology_request(template)
    assert request is None or set(request) <= set(
        PodSetTopologyRequest.model_json_schema()["properties"]
    )
