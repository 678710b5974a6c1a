"""Pending Workloads kept from plan to plan are what sorting and filtering all of them finds."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from rackgate.api.names import PendingReason
from rackgate_assigner.quota.queues import cluster_queue_info
from rackgate_assigner.scheduler.cycle import cycle_key
from rackgate_assigner.scheduler.eligibility import Eligible
from rackgate_assigner.scheduler.nomination.nomination import PendingWorkload
from rackgate_assigner.scheduler.pending_queues import OrderKey, PendingCounts, PendingQueues
from rackgate_assigner.scheduler.quota_cycle import HeadRequeue, RequeueReason
from rackgate_assigner.workload.decisions import Deactivate, Requeue
from rackgate_assigner.workload.info import WorkloadInfo, workload_info
from tests.unit.assigner.builders import cluster_queue, podset, workload

ROOTS = {"a": "x", "b": "x", "c": "y", "d": "z", "e": "e"}
FLAVORS: dict[str, tuple[str, ...]] = {
    "a": ("one",),
    "b": (),
    "c": ("one", "two"),
    "d": ("two",),
    "e": ("three",),
}
NAMES = [f"w{number}" for number in range(10)]
INFO = workload_info(workload("w", [podset(count=1)]))
QUEUES = {name: cluster_queue_info(cluster_queue(name)) for name in ROOTS}
BEHIND = "behind"
TEXTS = ("no quota", "no domain")

names = st.sampled_from(NAMES)
queues = st.sampled_from(sorted(ROOTS))


def order_of(info: WorkloadInfo) -> OrderKey:
    return cycle_key(info, {})


def eligible(
    name: str, queue: str = "a", kind: int = 0, *, age: int = 0, priority: int = 0
) -> Eligible:
    info = replace(
        INFO,
        key=f"team/{name}",
        name=name,
        priority=priority,
        queue_timestamp=f"2026-08-01T12:{age:05}Z",
        shape=kind,
    )
    return Eligible(info, QUEUES[queue])


def requeue(name: str, text: str) -> Requeue:
    return Requeue(f"team/{name}", PendingReason.NO_MATCHING_FLAVOR, text)


def shape(one: Eligible) -> tuple[str, Any]:
    """Who gets the same answer."""
    return one.queue.name, (one.info.priority, one.info.shape)


def pending_queues() -> PendingQueues:
    return PendingQueues(order_of, ROOTS.__getitem__, FLAVORS.__getitem__)


def put(pending: PendingQueues, one: Eligible) -> Requeue | None:
    return pending.put(one.info, one)


def keys(found: list[Eligible]) -> list[str]:
    return [one.info.name for one in found]


def park_all(pending: PendingQueues, text: str = "no quota") -> list[str]:
    """Park all that is due; return for whom it is reported."""
    reported: list[str] = []
    lines = pending.due()
    for line in lines.values():
        while (head := line.head()) is not None:
            reported += keys(line.park(requeue(head.info.name, text), same_shape=True))
    pending.done(lines)
    return reported


@dataclass
class Model:
    """The same by looking at everything each time."""

    places: dict[str, Eligible] = field(default_factory=dict)
    shapes: dict[tuple[str, Any], tuple[str, OrderKey]] = field(default_factory=dict)
    alone: dict[str, str] = field(default_factory=dict)
    ineligible: set[str] = field(default_factory=set)
    due: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def members(self, queue: str) -> list[Eligible]:
        found = (
            one
            for key, one in self.places.items()
            if one.queue.name == queue and key not in self.holders.values()
        )
        return sorted(found, key=lambda one: order_of(one.info))

    def answer(self, key: str) -> str | None:
        """What parks a Workload; None if it is active."""
        one = self.places[key]
        found = self.shapes.get(shape(one))
        return self.alone.get(key) or (found[0] if found else None)

    def active(self, queue: str) -> list[Eligible]:
        return [one for one in self.members(queue) if self.answer(one.info.key) is None]

    def head(self, queue: str) -> Eligible | None:
        return next(iter(self.active(queue)), None)

    def in_shape(self, one: Eligible) -> list[Eligible]:
        return [
            other
            for other in self.members(one.queue.name)
            if shape(other) == shape(one) and other.info.key not in self.alone
        ]

    def wake(self, root: str) -> None:
        if not any(ROOTS[queue] == root for queue in self.seen):
            return
        self.due.add(root)
        self.shapes = {k: v for k, v in self.shapes.items() if ROOTS[k[0]] != root}
        self.alone = {
            key: text
            for key, text in self.alone.items()
            if ROOTS[self.places[key].queue.name] != root
        }

    def wake_flavor(self, flavor: str) -> None:
        for queue in sorted(self.seen):
            root = ROOTS[queue]
            if flavor in FLAVORS[queue] and any(
                ROOTS[one.queue.name] == root for one in self.places.values()
            ):
                self.wake(root)

    def wake_around(self, queue: str) -> None:
        self.wake(ROOTS[queue])
        for flavor in FLAVORS[queue]:
            self.wake_flavor(flavor)

    def remove(self, key: str) -> None:
        one = self.places.pop(key)
        self.alone.pop(key, None)
        if self.holders.get(one.queue.name) == key:
            del self.holders[one.queue.name]
        if not self.in_shape(one):
            self.shapes.pop(shape(one), None)

    def drop(self, key: str) -> None:
        self.ineligible.discard(key)
        if key not in self.places:
            return
        queue = self.places[key].queue.name
        head = self.head(queue)
        was_head = head is not None and head.info.key == key
        held_room = self.holders.get(queue) == key
        self.remove(key)
        if held_room:
            self.wake_around(queue)
        elif was_head:
            self.due.add(ROOTS[queue])

    def put(self, one: Eligible) -> str | None:
        key, queue = one.info.key, one.queue.name
        self.drop(key)
        self.seen.add(queue)
        self.places[key] = one
        found = self.shapes.get(shape(one))
        if found is not None and order_of(one.info) < found[1]:
            del self.shapes[shape(one)]
        if self.answer(key) is None:
            self.due.add(ROOTS[queue])
        return self.answer(key)

    def touch(self, key: str) -> None:
        one = self.places.get(key)
        if one is None:
            return
        self.due.add(ROOTS[one.queue.name])
        if self.holders.get(one.queue.name) != key:
            self.alone.pop(key, None)
            self.shapes.pop(shape(one), None)

    def lines(self) -> set[str]:
        roots = set(self.due)
        while True:
            flavors = {f for queue in self.seen if ROOTS[queue] in roots for f in FLAVORS[queue]}
            more = {
                ROOTS[queue]
                for queue in self.holders
                for other in self.seen
                if ROOTS[other] == ROOTS[queue] and flavors & set(FLAVORS[other])
            }
            if more <= roots:
                return {
                    queue
                    for queue in self.seen
                    if ROOTS[queue] in roots and (self.active(queue) or queue in self.holders)
                }
            roots |= more


class PendingMachine(RuleBasedStateMachine):
    """Workloads come, change and go between and during plans."""

    def __init__(self) -> None:
        super().__init__()
        self.pending, self.model = pending_queues(), Model()
        self.heard: dict[str, str] = {}

    @rule(
        name=names,
        queue=queues,
        kind=st.integers(0, 2),
        age=st.integers(0, 3),
        priority=st.integers(0, 1),
    )
    def put(self, name: str, queue: str, kind: int, age: int, priority: int) -> None:
        one = eligible(name, queue, kind, age=age, priority=priority)
        reported = put(self.pending, one)
        assert (reported.message if reported else None) == self.model.put(one)
        assert reported is None or reported.workload == one.info.key
        if reported is not None:
            self.heard[one.info.key] = reported.message

    @rule(name=names, deactivate=st.booleans())
    def put_ineligible(self, name: str, deactivate: bool) -> None:
        one = eligible(name)
        key = one.info.key
        result = Deactivate(key, "", "") if deactivate else requeue(name, "no queue")
        assert self.pending.put(one.info, result) is None
        self.model.drop(key)
        self.model.ineligible.add(key)
        assert self.pending.ineligible[key] == one.info

    @rule(name=names)
    def drop(self, name: str) -> None:
        self.pending.drop(f"team/{name}")
        self.model.drop(f"team/{name}")

    @rule(name=names)
    def touch(self, name: str) -> None:
        self.pending.touch(f"team/{name}")
        self.model.touch(f"team/{name}")

    @rule(queue=queues)
    def wake_queue(self, queue: str) -> None:
        self.pending.wake_queue(queue)
        self.model.wake(ROOTS[queue])

    @rule(flavor=st.sampled_from(["one", "two", "none"]))
    def wake_flavor(self, flavor: str) -> None:
        self.pending.wake_flavor(flavor)
        self.model.wake_flavor(flavor)

    @rule(chosen=st.integers(0, 20))
    def wake_all(self, chosen: int) -> None:
        if not chosen:
            self.pending.wake_all()
            for root in set(ROOTS.values()):
                self.model.wake(root)

    @rule(queue=queues, text=st.sampled_from(TEXTS), action=st.sampled_from("ppppaaxxshht"))
    def decide(self, queue: str, text: str, action: str) -> None:
        line = self.pending.due().get(queue)
        head = self.model.head(queue)
        if line is None or head is None:
            return
        key = head.info.key
        match action:
            case "p" | "a":
                same = action == "p"
                reported = line.park(requeue(head.info.name, text), same_shape=same)
                self.heard.update({one.info.key: text for one in reported})
                if same:
                    self.model.shapes[shape(head)] = (text, order_of(head.info))
                else:
                    self.model.alone[key] = text
            case "x" | "s":
                assert line.pop() == head
                self.model.remove(key)
                if action == "s":
                    self.pending.set_aside(head, requeue(head.info.name, text))
                    self.model.places[key] = head
                    self.model.alone[key] = self.heard[key] = text
            case "t":
                taken = self.model.active(queue)[-1].info.key
                line.take(taken)
                self.model.remove(taken)
            case "h" if queue not in self.model.holders:
                line.hold_room()
                self.model.holders[queue] = key
                if not self.model.in_shape(head):
                    self.model.shapes.pop(shape(head), None)

    @rule(queue=queues, text=st.sampled_from(TEXTS), admitted=st.booleans())
    def decide_about_a_holder(self, queue: str, text: str, admitted: bool) -> None:
        key = self.model.holders.get(queue)
        line = self.pending.due().get(queue)
        if key is None or line is None:
            return
        one = self.model.places[key]
        assert line.holder() == one
        self.model.remove(key)
        if admitted:
            assert line.pop_holder() == one
            return
        assert line.park_holder(requeue(one.info.name, text)) == one
        self.model.places[key] = one
        self.model.alone[key] = self.heard[key] = text
        self.model.released.append(queue)

    @rule(finished=st.sets(queues))
    def finish(self, finished: set[str]) -> None:
        lines = {name: line for name, line in self.pending.due().items() if name in finished}
        for name, line in lines.items():
            left = line.left()
            self.heard.update({one.info.key: BEHIND for one in left})
            for one in self.model.active(name)[1:]:
                assert self.heard[one.info.key] == BEHIND
        self.pending.done(lines)
        for root in {ROOTS[name] for name in lines}:
            of_root = [queue for queue in self.model.seen if ROOTS[queue] == root]
            if all(queue in lines or not self.model.active(queue) for queue in of_root):
                self.model.due.discard(root)
        for root in list(self.model.due):
            of_root = [queue for queue in self.model.seen if ROOTS[queue] == root]
            if not any(self.model.active(one) or one in self.model.holders for one in of_root):
                self.model.due.discard(root)
        released, self.model.released = self.model.released, []
        for queue in released:
            self.model.wake_around(queue)

    @invariant()
    def the_same_heads_and_roots_are_due(self) -> None:
        lines = self.pending.due()
        assert lines.keys() == self.model.lines()
        for name, line in lines.items():
            assert line.head() == self.model.head(name)
            first = 0 if name in self.model.holders else 1
            for most in (0, 1, 3, 20):
                assert line.behind(most) == self.model.active(name)[first : first + most]
            others = [other for other in self.model.holders if other != name]
            assert line.is_near_holder() == any(
                ROOTS[name] == ROOTS[other] or bool(set(FLAVORS[name]) & set(FLAVORS[other]))
                for other in others
            )
        assert self.pending.is_due == bool(self.model.due)

    @invariant()
    def the_same_are_parked_and_each_answer_was_reported(self) -> None:
        for name in ROOTS:
            all_of, active = len(self.model.members(name)), len(self.model.active(name))
            holding = name in self.model.holders
            assert self.pending.counts(name) == PendingCounts(active + holding, all_of - active)
        for key in self.model.places:
            assert key in self.pending
            if key not in self.model.holders.values():
                found = self.model.answer(key)
                assert found is None or self.heard[key] == found
        assert len(self.pending) == len(self.model.places) + len(self.model.ineligible)


def test_pending_queues_are_what_sorting_everything_finds() -> None:
    run_state_machine_as_test(
        PendingMachine,
        settings=settings(max_examples=200, stateful_step_count=50, deadline=None),
    )


# Single rules.


def test_who_joins_a_parked_shape_gets_its_answer_at_once() -> None:
    pending = pending_queues()
    put(pending, eligible("first"))
    park_all(pending)
    reported = put(pending, eligible("second", age=1))
    assert reported == requeue("second", "no quota")
    assert not pending.is_due


def test_who_is_older_than_the_one_decided_about_is_decided_about() -> None:
    """It may preempt Workloads of equal priority that are newer than itself."""
    pending = pending_queues()
    put(pending, eligible("newer", age=1))
    park_all(pending)
    assert put(pending, eligible("older", age=0)) is None
    head = pending.due()["a"].head()
    assert head is not None
    assert head.info.name == "older"


def test_a_workload_alone_in_its_shape_is_decided_about_again_when_it_changes() -> None:
    """Such as a slice: its shape is its key, and what it may get depends on its family."""
    pending = pending_queues()
    one = eligible("slice")
    one = replace(one, info=replace(one.info, parent="team/parent"))
    put(pending, one)
    park_all(pending)
    assert put(pending, one) is None
    assert list(pending.due()) == ["a"]


def test_an_answer_that_stays_the_same_is_reported_once() -> None:
    pending = pending_queues()
    for number in range(5):
        put(pending, eligible(f"w{number}", age=number))
    assert len(park_all(pending)) == 5
    pending.wake_queue("a")
    put(pending, eligible("late", age=9))
    assert park_all(pending) == ["late"]
    pending.wake_queue("a")
    assert len(park_all(pending, "no domain")) == 6


def test_waiting_behind_a_head_that_stays_is_reported_once() -> None:
    pending = pending_queues()
    for number in range(5):
        put(pending, eligible(f"w{number}", kind=number, age=number))
    line = pending.due()["a"]
    assert keys(line.left()) == [f"w{number}" for number in range(5)]
    pending.done(["a"])
    put(pending, eligible("late", kind=9, age=9))
    assert sorted(keys(pending.due()["a"].left())) == ["late", "w0"]


def test_the_result_of_a_shape_is_known_to_whoever_is_its_first_later() -> None:
    pending = pending_queues()
    for number in range(3):
        put(pending, eligible(f"w{number}", age=number))
    put(pending, eligible("other", kind=1, age=9))
    line = pending.due()["a"]
    assert line.known() is None
    head = PendingWorkload("team/w0", "", "team", "a", 0, 0.0, ())
    result = HeadRequeue(head, "", "", RequeueReason.NO_FIT, inadmissible=True)
    line.park(requeue("w0", "no quota"), same_shape=True, known=result)
    assert line.known() is None
    pending.drop("team/w0")
    pending.wake_queue("a")
    assert line.known() is result
    line.park(requeue("w1", "no domain"), same_shape=True)
    pending.wake_queue("a")
    assert line.known() is None


def test_capacity_wakes_without_a_look_at_what_waits_for_quota() -> None:
    def cost(waiting: int) -> int:
        pending = pending_queues()
        for number in range(waiting):
            put(pending, eligible(f"w{number}", kind=number, age=number))
        line = pending.due()["a"]
        while (head := line.head()) is not None:
            line.park(requeue(head.info.name, "no quota"), same_shape=True, by_quota=True)
        pending.done(["a"])
        found = operations(lambda: pending.wake_flavor("one"))
        assert not pending.is_due
        return found

    assert cost(2_000) == cost(10)


def test_who_had_an_answer_of_its_own_is_told_later_that_it_waits() -> None:
    pending = pending_queues()
    for number in range(4):
        put(pending, eligible(f"w{number}", age=number))
    line = pending.due()["a"]
    assert len(line.left(["team/w2"])) == 4
    assert keys(line.left()) == ["w0", "w2"]
    assert keys(line.left()) == ["w0"]


def test_those_behind_a_head_are_found_without_a_look_at_all() -> None:
    def cost(waiting: int) -> int:
        pending = pending_queues()
        for number in range(waiting):
            put(pending, eligible(f"w{number}", kind=number % 1000, age=number))
        line = pending.due()["a"]
        assert keys(line.behind(5)) == [f"w{number}" for number in range(1, 6)]
        return operations(lambda: line.behind(5))

    assert cost(10_000) < 1.5 * cost(100)


def test_fields_that_decide_nothing_change_nothing_but_the_workload() -> None:
    pending = pending_queues()
    one = eligible("w")
    put(pending, one)
    park_all(pending)
    pending.refresh(replace(one.info, pending_reason="NoMatchingFlavor"))
    assert not pending.is_due
    pending.wake_all()
    head = pending.due()["a"].head()
    assert head is not None
    assert head.info.pending_reason == "NoMatchingFlavor"


def test_when_a_head_goes_the_next_one_is_due() -> None:
    pending = pending_queues()
    put(pending, eligible("first", kind=1))
    put(pending, eligible("second", kind=2, age=1))
    pending.done(pending.due())
    assert not pending.is_due
    pending.drop("team/first")
    head = pending.due()["a"].head()
    assert head is not None
    assert head.info.name == "second"


def test_when_the_last_one_goes_nothing_is_due() -> None:
    """Otherwise the cycles would never end."""
    pending = pending_queues()
    put(pending, eligible("only"))
    pending.done(pending.due())
    pending.drop("team/only")
    pending.done(pending.due())
    assert not pending.is_due


def test_when_one_that_held_room_goes_those_it_kept_out_are_due() -> None:
    """Also in another root, whose ClusterQueue has the same flavor with a topology."""
    pending = pending_queues()
    put(pending, eligible("holder", "a", priority=1))
    put(pending, eligible("kept-out", "c"))
    put(pending, eligible("far", "e"))
    lines = pending.due()
    lines["a"].hold_room()
    for name in "ce":
        lines[name].park(requeue(name, "no domain"), same_shape=True)
    pending.done(lines)
    assert pending.due() == {}
    pending.drop("team/holder")
    assert list(pending.due()) == ["c"]


def test_when_one_that_held_room_is_parked_those_it_kept_out_are_due_next() -> None:
    """Not in the same plan, which would not end if each of two kept the other one out."""
    pending = pending_queues()
    put(pending, eligible("holder", "a", priority=1))
    put(pending, eligible("kept-out", "c"))
    lines = pending.due()
    lines["a"].hold_room()
    lines["c"].park(requeue("kept-out", "no domain"), same_shape=True)
    lines["a"].park_holder(requeue("holder", "no quota"))
    assert lines["c"].head() is None
    pending.done(lines)
    assert sorted(pending.due()) == ["a", "c"]


def test_one_that_was_admitted_holds_no_room() -> None:
    pending = pending_queues()
    put(pending, eligible("holder", "a"))
    put(pending, eligible("next", "a", kind=1, age=1))
    line = pending.due()["a"]
    line.hold_room()
    line.pop_holder()
    pending.done(["a"])
    put(pending, eligible("new", "c"))
    assert list(pending.due()) == ["c"]


def test_the_answer_of_its_shape_is_reported_for_one_that_was_parked_alone() -> None:
    pending = pending_queues()
    for number in range(3):
        put(pending, eligible(f"w{number}", age=number))
    park_all(pending)
    pending.wake_queue("a")
    pending.due()["a"].park(requeue("w0", "an error"))
    assert park_all(pending) == []
    pending.wake_queue("a")
    assert park_all(pending) == ["w0"]


def test_workloads_that_come_and_go_leave_nothing_behind() -> None:
    pending = pending_queues()
    for number in range(10):
        put(pending, eligible(f"w{number}", age=number))
    park_all(pending)

    def churn() -> None:
        for number in range(5_000):
            for kind in (0, 1):
                put(pending, eligible(f"late{kind}", kind=kind, age=number))
            park_all(pending)
            pending.drop("team/late0")
            pending.drop("team/late1")

    tracemalloc.start()
    try:
        churn()
        before, _ = tracemalloc.get_traced_memory()
        churn()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000


def test_one_that_holds_room_is_decided_about_with_those_who_could_take_it() -> None:
    pending = pending_queues()
    put(pending, eligible("holder", "a"))
    put(pending, eligible("other", "b"))
    pending.due()["a"].hold_room()
    park = pending.due()["b"]
    park.park(requeue("other", "no quota"))
    pending.done(["a", "b"])
    put(pending, eligible("new", "c"))
    assert list(pending.due()) == ["c", "a"]
    put(pending, eligible("far", "e"))
    pending.done(["c", "a"])
    assert list(pending.due()) == ["e"]


@given(budget=st.integers(1, 7), changes=st.integers(0, 3))
def test_whoever_stops_a_plan_early_decides_about_every_workload(budget: int, changes: int) -> None:
    """However few heads one plan looks at, and although more Workloads arrive between plans."""
    pending = pending_queues()
    for number in range(30):
        put(pending, eligible(f"w{number}", "abcde"[number % 5], kind=number, age=number))
    decided: list[str] = []
    for plan in range(200):
        left = budget
        finished = []
        for name, line in pending.due().items():
            while left and (head := line.head()) is not None:
                left -= 1
                decided.append(head.info.name)
                line.park(requeue(head.info.name, "no quota"), same_shape=True)
            if line.head() is None:
                finished.append(name)
        pending.done(finished)
        if plan < changes:
            put(pending, eligible(f"late{plan}", "a", kind=100 + plan, priority=1))
    assert len(decided) == len(set(decided)) == 30 + changes
    assert not pending.is_due


def test_a_root_that_is_due_again_comes_after_those_that_wait() -> None:
    pending = pending_queues()
    for number, queue in enumerate("ace"):
        put(pending, eligible(f"w{number}", queue))
    park_all(pending)
    for queue in "ace":
        pending.wake_queue(queue)
    assert list(pending.due()) == ["a", "c", "e"]
    pending.due()["a"].park(requeue("w0", "no quota"))
    pending.done(["a"])
    pending.wake_queue("a")
    assert list(pending.due()) == ["c", "e", "a"]


class Counted(tuple[int, str, str]):
    """An order key that counts its comparisons."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, tuple) and tuple(self) < tuple(other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, tuple) and tuple(self) == tuple(other)

    __hash__ = tuple.__hash__


def operations(action: Callable[[], object]) -> int:
    """Bytecodes of the module that run in a call, and comparisons of order keys."""
    counted = 0
    module = sys.modules[PendingQueues.__module__].__file__
    Counted.comparisons = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal counted
        if frame.f_code.co_filename != module:
            return None
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return counted + Counted.comparisons


@pytest.mark.parametrize("shapes", [1, 7, 10_000])
def test_one_change_costs_the_same_whatever_waits(shapes: int) -> None:
    """After a plan: one is put, found due, and parked; one is dropped."""

    def cost(waiting: int) -> int:
        pending = PendingQueues(
            lambda info: Counted(order_of(info)), ROOTS.__getitem__, FLAVORS.__getitem__
        )
        for number in range(waiting):
            put(pending, eligible(f"w{number}", "abc"[number % 3], number % shapes, age=number))
        park_all(pending)

        def change() -> None:
            for step, kind in enumerate((0, shapes + 1)):
                new = eligible(f"new{step}", kind=kind, age=99_999)
                put(pending, new)
                park_all(pending)
                pending.drop(new.info.key)
                pending.drop(f"team/w{3 * step + 6}")

        return operations(change)

    few, many = cost(100), cost(10_000)
    assert many < 1.1 * few
