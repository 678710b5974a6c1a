"""Handing Jobs over to KAI: once is enough, nothing is lost, and nobody else notices."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate.api import names
from rackgate.jobframework import kai
from rackgate.jobframework.kai import RenderOptions, is_for_kai
from rackgate.jobframework.managed import is_managed
from rackgate_webhook.admission.mutate import mutate
from tests.property.test_govern import jobs
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

Object = dict[str, Any]

RENDERINGS = st.builds(
    RenderOptions,
    topology=st.sampled_from(["", "racks"]),
    jobs_grouped=st.booleans(),
    both_levels=st.booleans(),
)
LEVELS = st.dictionaries(
    st.sampled_from([names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY]),
    st.sampled_from(["example.com/rack", "zone", "no key"]),
    max_size=2,
)
OWN = st.dictionaries(
    st.sampled_from([kai.KAI_TOPOLOGY, kai.KAI_REQUIRED, kai.KAI_PREFERRED, "other"]),
    st.sampled_from(["racks", "zone", ""]),
    max_size=2,
)


@st.composite
def kai_jobs(draw: st.DrawFn) -> Object:
    """Governed Jobs of KAI, half of them such as can be handed over."""
    found = draw(jobs())
    found["metadata"]["labels"][names.QUEUE_LABEL] = draw(st.sampled_from(["a", "b.c", "", "N_N"]))
    if draw(st.booleans()):
        found["metadata"]["labels"][kai.KAI_QUEUE] = draw(st.sampled_from(["a", "b.c"]))
    if draw(st.booleans()):
        found["metadata"]["annotations"] = draw(OWN)
    template = found["spec"]["template"]
    template["spec"]["schedulerName"] = kai.KAI_SCHEDULER
    if draw(st.booleans()):
        template["metadata"] = {"annotations": draw(LEVELS)}
    return found


@given(kai_jobs(), RENDERINGS)
@pytest.mark.requirement("HOOK-06", "HOOK-07")
def test_a_job_is_handed_over_once_and_whole_or_rejected(
    asked: Object, known: RenderOptions
) -> None:
    before = copy.deepcopy(asked)
    admission_response = mutate(review("batch/Job", asked), kai=known)
    assert asked == before, "what was asked is read, not changed"
    assert admission_response.allowed != bool(admission_response.errors)
    if admission_response.errors:
        assert admission_response.operations == []
        assert all(error.path and error.problem for error in admission_response.errors)
        return
    after = apply_patch(asked, admission_response.operations)
    assert not is_managed(after)
    assert after["spec"] == before["spec"]
    queue = before["metadata"]["labels"].pop(names.QUEUE_LABEL)
    assert after["metadata"]["labels"] == {**before["metadata"]["labels"], kai.KAI_QUEUE: queue}
    own = before["metadata"].get("annotations", {})
    assert own.items() <= after["metadata"].get("annotations", {}).items()
    assert mutate(review("batch/Job", after), kai=known).operations == []


@given(kai_jobs(), RENDERINGS)
@pytest.mark.requirement("HOOK-06")
def test_a_manifest_applied_again_leaves_what_is_stored(
    asked: Object, known: RenderOptions
) -> None:
    admission_response = mutate(review("batch/Job", asked), kai=known)
    if admission_response.errors:
        return
    stored = apply_patch(asked, admission_response.operations)
    for written in (asked, _merged(asked, stored)):
        again = mutate(review("batch/Job", written, stored), kai=known)
        assert apply_patch(written, again.operations) == stored


def _merged(asked: Object, stored: Object) -> Object:
    """What a client that merges its manifest into the stored object sends."""
    both = copy.deepcopy(stored)
    for part in ("labels", "annotations"):
        together = {**stored["metadata"].get(part, {}), **asked["metadata"].get(part, {})}
        if together:
            both["metadata"][part] = together
    return both


@given(jobs() | jobs(governed=False), jobs() | jobs(governed=False) | st.none(), RENDERINGS)
@pytest.mark.requirement("HOOK-05", "HOOK-06")
def test_with_the_gate_on_a_job_that_does_not_name_kai_is_treated_as_before(
    asked: Object, stored: Object | None, known: RenderOptions
) -> None:
    assert not is_for_kai(asked, stored or {})
    asked_review = review("batch/Job", asked, stored)
    assert mutate(asked_review, kai=known) == mutate(asked_review)


@given(kai_jobs(), st.none() | kai_jobs() | jobs(governed=False))
@pytest.mark.requirement("HOOK-06")
def test_with_the_gate_off_the_scheduler_of_a_job_makes_no_difference(
    asked: Object, stored: Object | None
) -> None:
    def other(found: Object | None) -> Object | None:
        if found is None:
            return None
        result = copy.deepcopy(found)
        result["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
        return result

    plain = other(asked)
    assert plain is not None
    mine = mutate(review("batch/Job", asked, stored))
    assert mine == mutate(review("batch/Job", plain, other(stored)))
