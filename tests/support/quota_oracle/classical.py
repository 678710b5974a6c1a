"""Whom a head evicts without fair sharing (section 8)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.quota_oracle.plan import Victim
from tests.support.quota_oracle.preemption import Question, is_evicted, keys, order_of, put_back
from tests.support.quota_oracle.tree import Held, Node, State, sub
from tests.support.quota_oracle.world import priority_of


@dataclass(frozen=True)
class Candidate:
    """Who may leave; `under` is the cohort at which a workload of another queue was found."""

    held: Held
    reason: str
    under: Node | None = None
    without_borrowing_only: bool = False


def find_classical(question: Question) -> list[Victim]:
    hierarchy, priority = _of_other_queues(question)
    queue = question.head.queue
    same = [
        Candidate(held, "InClusterQueue")
        for held in question.qualified(queue, queue.policy("withinClusterQueue"))
    ]
    joined = [
        candidate
        for evicted in (True, False)
        for candidates in (hierarchy, priority, same)
        for candidate in sorted(candidates, key=lambda candidate: order_of(candidate.held))
        if is_evicted(candidate.held) == evicted
    ]
    for borrowing in _runs(question, bool(hierarchy), bool(priority)):
        victims = _run(question, joined, borrowing)
        if victims:
            return victims
    return []


def _of_other_queues(question: Question) -> tuple[list[Candidate], list[Candidate]]:
    """Those that the head has an advantage over, and the others."""
    queue, state = question.head.queue, question.state
    hierarchy: list[Candidate] = []
    priority: list[Candidate] = []
    policy = queue.policy("reclaimWithinCohort")
    if policy == "Never":
        return hierarchy, priority
    rest = dict(question.request)
    advantage = False
    for below, cohort in zip(queue.path, queue.path[1:], strict=False):
        # What the level below has room for gives an advantage from here on.
        if all(state.usage(below, fr) + amount <= sub(below, fr) for fr, amount in rest.items()):
            advantage = True
        for fr, amount in rest.items():
            rest[fr] = max(0, amount - state.local_free(below, fr))
        for other in _reached(question, cohort, below):
            for held in question.qualified(other, policy):
                if advantage:
                    hierarchy.append(Candidate(held, "InCohortReclamation", cohort))
                else:
                    priority.append(_by_priority(question, held, cohort))
    return hierarchy, priority


def _reached(question: Question, cohort: Node, came_from: Node) -> list[Node]:
    """Queues below a cohort that are not, with all above them, within nominal quota."""
    found = []
    for child in cohort.children:
        if child is came_from or question.state.within_nominal(child, question.need):
            continue
        found += [child] if child.spec is not None else _reached(question, child, came_from)
    return found


def _by_priority(question: Question, held: Held, under: Node) -> Candidate:
    assert held.workload is not None
    priority, borrow = priority_of(held.workload), question.head.queue.borrow_within_cohort
    threshold = borrow.get("maxPriorityThreshold")
    if (
        not question.head.queue.preempts_to_borrow
        or priority >= question.head.priority
        or (threshold is not None and priority > threshold)
    ):
        return Candidate(held, "InCohortReclamation", under, without_borrowing_only=True)
    return Candidate(held, "InCohortReclaimWhileBorrowing", under)


def _runs(question: Question, hierarchy: bool, priority: bool) -> tuple[bool, ...]:
    """With borrowing allowed or not."""
    queue = question.head.queue
    if not hierarchy and not priority:
        return (True,)
    if not queue.preempts_to_borrow:
        usage = question.state.usage
        if any(usage(queue, fr) >= queue.quota(fr).nominal for fr in question.need):
            return (True,)
        if not hierarchy:
            return (False, True)
    return (True, False)


def _run(question: Question, candidates: list[Candidate], borrowing: bool) -> list[Victim]:
    def fits(state: State) -> bool:
        return question.fits(state, borrowing)

    victims: list[Victim] = []
    for candidate in candidates:
        state = question.state.without(keys(victims))
        if candidate.under is not None:
            if borrowing and candidate.without_borrowing_only:
                continue
            path = candidate.held.queue.path
            below = path[: path.index(candidate.under)]
            if any(state.within_nominal(node, question.need) for node in below):
                continue
        victims.append(Victim(candidate.held, candidate.reason))
        if fits(question.state.without(keys(victims))):
            return put_back(question.state, victims, fits)
    return []
