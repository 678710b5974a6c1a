"""Whatever kind is mutated: once is enough, and what others wrote stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate.api import names
from rackgate.jobframework.managed import is_cleanup_pod
from rackgate_webhook.admission.mutate import mutate
from tests.property.test_govern import GATES, KEYS, TEMPLATES, VALUES, jobs, maps, sometimes
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

Object = dict[str, Any]

MARKS = st.dictionaries(
    KEYS | st.sampled_from([names.PODSET_LABEL, names.TAS_LABEL, "ray.io/node-type"]),
    VALUES | st.sampled_from(["main", "true", "redis-cleanup"]),
    max_size=4,
)
NOTES = st.dictionaries(
    KEYS | st.sampled_from([names.WORKLOAD_ANNOTATION, names.ELASTIC_ANNOTATION]),
    VALUES | st.sampled_from(["w", "true"]),
    max_size=4,
)
POD_GATES = st.lists(
    st.sampled_from(["a", "b/c", names.TOPOLOGY_GATE, names.ELASTIC_GATE]), unique=True, max_size=3
).map(lambda found: [{"name": name} for name in found])


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Pods near those of started podsets: with and without marks, gates and node."""
    spec = draw(sometimes(schedulingGates=POD_GATES, nodeName=VALUES, nodeSelector=maps()))
    return {"metadata": draw(sometimes(labels=MARKS, annotations=NOTES)), "spec": spec}


@st.composite
def workloads(draw: st.DrawFn) -> Object:
    """Workloads as people write them: some with requests, some with annotations only."""
    podsets = []
    for _ in range(draw(st.integers(1, 3))):
        podset = {"count": draw(st.integers(1, 9)), "template": draw(TEMPLATES)}
        podset |= draw(
            sometimes(name=VALUES, topologyRequest=st.just({"required": "rack"}) | st.none())
        )
        podsets.append(podset)
    return {"spec": {"podSets": podsets, **draw(sometimes(active=st.booleans()))}}


CREATED = (
    jobs().map(lambda found: ("batch/Job", found))
    | jobs(governed=False).map(lambda found: ("batch/Job", found))
    | pods().map(lambda found: ("/Pod", found))
    | workloads().map(lambda found: (f"{names.GROUP}/Workload", found))
)


@given(CREATED, GATES, maps())
@pytest.mark.requirement("HOOK-06", "HOOK-07")
def test_a_second_call_changes_nothing_also_after_other_webhooks(
    asked: tuple[str, Object], gates: list[Any], labels: dict[str, str]
) -> None:
    """With reinvocation, other webhooks have added what is theirs between our two calls."""
    kind, found = asked
    before = copy.deepcopy(found)
    once = apply_patch(found, mutate(review(kind, found)).operations)
    assert found == before, "what was asked is read, not changed"
    assert mutate(review(kind, once)).operations == []
    holder = once["spec"].get("template", once) if kind != "/Pod" else once
    if kind != f"{names.GROUP}/Workload":
        metadata = holder.setdefault("metadata", {})
        metadata["labels"] = {**labels, **metadata.get("labels", {})}
        there = holder["spec"].get("schedulingGates", [])
        holder["spec"]["schedulingGates"] = [
            *there,
            *(gate for gate in gates if gate not in there),
        ]
    assert mutate(review(kind, once)).operations == []


@given(jobs(), jobs(governed=False))
@pytest.mark.requirement("HOOK-06")
def test_entering_and_leaving_a_queue_are_done_once(governed: Object, plain: Object) -> None:
    for now, stored in ((governed, plain), (plain, governed)):
        now["spec"]["suspend"] = stored["spec"]["suspend"] = True
        once = apply_patch(now, mutate(review("batch/Job", now, stored)).operations)
        assert mutate(review("batch/Job", once, stored)).operations == []


def _without_marks(pod: Object) -> Object:
    """A pod that cleans up is rid of the marks that its template inherited: nothing else goes."""
    pod = copy.deepcopy(pod)
    for part, marks in (
        ("labels", {names.PODSET_LABEL, names.TAS_LABEL}),
        ("annotations", {names.WORKLOAD_ANNOTATION, names.ELASTIC_ANNOTATION}),
    ):
        had = pod["metadata"].get(part, {})
        kept = {key: value for key, value in had.items() if key not in marks}
        if had and not kept:
            del pod["metadata"][part]
        elif had:
            pod["metadata"][part] = kept
    ours = ({"name": names.TOPOLOGY_GATE}, {"name": names.ELASTIC_GATE})
    gates = [gate for gate in pod["spec"].pop("schedulingGates", []) if gate not in ours]
    if gates:
        pod["spec"]["schedulingGates"] = gates
    return pod


@given(CREATED)
@pytest.mark.requirement("HOOK-05", "HOOK-06")
def test_what_others_wrote_is_still_there(asked: tuple[str, Object]) -> None:
    kind, found = asked
    once = apply_patch(found, mutate(review(kind, found)).operations)
    if kind == "/Pod" and is_cleanup_pod(found):
        found = _without_marks(found)

    def kept(old: Any, new: Any, path: str) -> None:
        if isinstance(old, dict):
            for key, value in old.items():
                if (path, key) == ("/spec", "suspend"):
                    continue
                if value is None or (key == "name" and not value):
                    continue  # a default of ours
                assert key in new, f"{path}/{key}"
                kept(value, new[key], f"{path}/{key}")
        elif isinstance(old, list):
            for index, value in enumerate(old):
                kept(value, new[index], f"{path}/{index}")
        elif not path.endswith(f"/labels/{names.TAS_LABEL}"):
            assert old == new, path

    kept(found, once, "")
