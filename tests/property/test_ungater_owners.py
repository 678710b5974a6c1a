"""Child Jobs, their pods and the Workload of a JobSet, in whichever order three watches tell."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rackgate.api import names
from rackgate_ungater.state_machine.events import Event, JobGone, JobSeen, PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import WorkloadKey
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.support.ungater_invariants import check_invariants
from tests.unit.ungater.builders import INDEX, OWNER, R1, R2, PodBuilder, pod, podset, workload

KEY = WorkloadKey("team/train")
JOBS = st.integers(0, 3)
PODS = st.lists(st.tuples(JOBS, st.sampled_from(["gated", "gated", "free", "leaving"])), max_size=9)


def child(number: int, job: int, state: str) -> PodBuilder:
    """A pod of child Job `job`; Jobs 0 to 2 are ours, Job 3 is another JobSet's."""
    found = pod(number).of(owner=f"job-{job}").rank(number).label(names.JOB_INDEX_LABEL, job)
    if state != "gated":
        found = found.ungated((R1, R2)[number % 2])
    return found.terminating() if state == "leaving" else found


@pytest.mark.requirement("UNG-10", "UNG-13", "TAS-28")
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), PODS, st.randoms(use_true_random=False), st.sets(JOBS))
def test_no_order_of_events_releases_too_many_and_the_last_one_releases_all(
    each: int, pods: list[tuple[int, str]], rng: random.Random, gone: set[int]
) -> None:
    """Pods that were released before, and whose Job is not seen yet, hold their places."""
    rows = [child(number, job, state).build() for number, (job, state) in enumerate(pods)]
    events: list[Event] = [PodSeen(row) for row in rows]
    events += [JobSeen(f"job-{job}", OWNER if job < 3 else "another") for job in range(4)]
    given_row = podset((R1, each), (R2, each), requested=True, pod_index_label=INDEX)
    events.append(WorkloadSeen(workload(given_row, owned_by_jobset=True)))
    rng.shuffle(events)
    machine = StateMachine()
    seen: set[str] = set()
    woken = False
    for event in events:
        woken |= machine.handle(event) is not None
        check_invariants(machine)
        if isinstance(event, PodSeen):
            seen.add(event.pod.uid)
        live = sum(row.uid in seen and not row.gated and row.owner_uid != "job-3" for row in rows)
        ungates = machine.propose(KEY, 0.0).ungates
        assert not ungates or live + len(ungates) <= 2 * each
        assert not ungates or woken, "whoever told of the last thing that was missing wakes it"
    ours = [row for row in rows if row.owner_uid != "job-3"]
    held = sum(not row.gated for row in ours)
    gated = sum(row.gated for row in ours)
    ungates = machine.propose(KEY, 0.0).ungates
    assert len(ungates) <= max(0, min(gated, 2 * each - held))
    if held == 0:
        assert len(ungates) == min(gated, 2 * each)
    for job in gone:  # its pods are still there
        machine.handle(JobGone(f"job-{job}"))
    after = machine.propose(KEY, 0.0).ungates
    assert not after or held + len(after) <= 2 * each
