"""One scheduling cycle (sections 5, 14 and 15)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.oracle.nodes import holds
from tests.support.quota_oracle.order import Entry, in_turn
from tests.support.quota_oracle.placing import still_room
from tests.support.quota_oracle.plan import FIT, NO_FIT, Head, Plan
from tests.support.quota_oracle.planning import plan_head
from tests.support.quota_oracle.preemption import keys
from tests.support.quota_oracle.tree import Fr, Held, Json, Node, State
from tests.support.quota_oracle.world import (
    World,
    age_of,
    condition,
    key_of,
    priority_of,
    running,
    uid_of,
)

OVERLAPPING = "Workload has overlapping preemption targets with another workload"


@dataclass(frozen=True)
class Outcome:
    """Why a head goes back; `left` is whether it may have flavors left to try."""

    requeue: str
    reason: str = ""
    message: str = ""
    left: bool = False


def answer(scenario: Json) -> Json:
    """The `expected` of a scenario in the format `quota-scenario/1`."""
    return _Cycle(scenario).run()


class _Cycle:
    def __init__(self, scenario: Json) -> None:
        self.world = World(scenario)
        self.pending = [work for work in scenario["workloads"] if not running(work)]
        # The last one is the present one.
        self.states = [self.world.state()]
        self.taken: set[str] = set()
        self.admitted: Json = {}
        self.preempted: list[Json] = []
        self.outcomes: dict[str, Outcome] = {}

    @property
    def state(self) -> State:
        return self.states[-1]

    def run(self) -> Json:
        heads = [self._head(queue) for queue in self.world.queues.values() if not queue.stopped]
        present = [head for head in heads if head is not None]
        entries = []
        for head in present:
            if self._selected(head):
                entries.append(Entry(head, plan_head(self.world, self.state, head)))
            else:
                self.outcomes[head.key] = Outcome(
                    "NamespaceMismatch",
                    "Misconfigured",
                    "workload namespace doesn't match ClusterQueue selector",
                )
        for entry in in_turn(self.world, entries, self.states):
            outcome = self._process(entry.head, entry.plan)
            if outcome is not None:
                self.outcomes[entry.head.key] = outcome
        return {
            "admitted": self.admitted,
            "preempted": sorted(self.preempted, key=lambda found: str(found["workload"])),
            "pending": self._pending(present),
        }

    def _head(self, queue: Node) -> Head | None:
        waiting = [
            work
            for work in self.pending
            if self.world.queue_of(work) is queue
            and self._may_run(work)
            and condition(work, "Requeued", False) is None
        ]
        if not waiting:
            return None
        return Head(min(waiting, key=lambda w: (-priority_of(w), age_of(w), uid_of(w))), queue)

    def _may_run(self, workload: Json) -> bool:
        held = condition(workload, "QuotaReserved", False)
        return not (
            workload.get("inactive")
            or condition(workload, "Finished")
            or self.world.queue_of(workload) is None
            or (held is not None and held["reason"] == "OnHold")
            or condition(workload, "WaitingForReplacementPods")
        )

    def _selected(self, head: Head) -> bool:
        selector = head.queue.rules.get("namespaceSelector")
        labels = self.world.labels.get(head.workload["namespace"], {})
        return selector is None or selects(selector, labels)

    def _room(self, head: Head, plan: Plan) -> tuple[bool, bool]:
        """Whether there is room in the quota, and on the nodes."""
        leaving = self.taken | keys(plan.victims)
        state = self.state.without(leaving)
        usage = plan.usage.items()
        quota = all(amount <= state.available(head.queue, fr) for fr, amount in usage)
        return quota, still_room(self.world, state, plan.placed)

    def _add(self, head: Head, plan: Plan, usage: dict[Fr, int]) -> None:
        self.states.append(self.state.plus(Held(f"+{head.key}", head.queue, usage, plan.placed)))

    def _process(self, head: Head, plan: Plan) -> Outcome | None:
        """Why the head goes back, or None if it is admitted."""
        quota, nodes = self._room(head, plan)
        overlaps = self._overlaps(plan)
        deferred = False
        if overlaps or (quota and not nodes):
            state = self.state.without(self.taken) if overlaps else self.state
            plan = plan_head(self.world, state, head, plan.flavors)
            deferred = overlaps and plan.mode == FIT
            quota, nodes = self._room(head, plan)
        if plan.mode == NO_FIT:
            return Outcome("NoFit", plan.reason(head.queue), plan.message, plan.flavors_left)
        if plan.mode != FIT and not plan.victims:
            if head.queue.policy("reclaimWithinCohort") != "Any":
                self._add(head, plan, self._held_back(head, plan))
            return Outcome(
                "PreemptionNoCandidates", "WaitingForQuota", plan.message, plan.flavors_left
            )
        if deferred:
            self._add(head, plan, plan.usage)
            text = f"{OVERLAPPING}, but will fit after these preemptions complete"
            return Outcome("PendingPreemption", "WaitingForPreemptedWorkloads", text)
        if self._overlaps(plan):
            return Outcome("FailedAfterNomination", "WaitingForQuota", OVERLAPPING)
        if not quota or not nodes:
            text = "Workload no longer fits after processing another workload"
            return Outcome("FailedAfterNomination", "WaitingForQuota", text)
        self.taken |= keys(plan.victims)
        self._add(head, plan, plan.usage)
        if plan.mode == FIT:
            self.admitted[head.key] = _admission(head, plan)
            return None
        for victim in plan.victims:
            self.preempted.append(_preemption(head, victim.held, victim.reason))
        number = len(plan.victims)
        text = f"{plan.message}. Pending the preemption of {number} workload(s)"
        return Outcome("PendingPreemption", "WaitingForPreemptedWorkloads", text)

    def _overlaps(self, plan: Plan) -> bool:
        return bool(self.taken & keys(plan.victims))

    def _held_back(self, head: Head, plan: Plan) -> dict[Fr, int]:
        """What a head holds that cannot preempt."""
        found = {}
        for fr, amount in plan.usage.items():
            quota, used = head.queue.quota(fr), self.state.usage(head.queue, fr)
            if plan.level == 0:
                found[fr] = max(0, min(amount, quota.nominal - used))
            elif quota.borrow is not None:
                found[fr] = max(0, min(amount, quota.nominal + quota.borrow - used))
            else:
                found[fr] = amount
        return found

    def _pending(self, heads: list[Head]) -> Json:
        places = {}
        for workload in self.pending:
            places[key_of(workload)] = self._place(workload)
        for head in heads:
            if head.key in self.outcomes:
                self._send_back(head, places)
        found: Json = {}
        evaluated = {head.key for head in heads}
        for workload in self.pending:
            key = key_of(workload)
            if key in self.admitted:
                continue
            outcome = self.outcomes.get(key, Outcome(""))
            texts = {
                "reason": outcome.reason,
                "message": outcome.message,
                "requeue": outcome.requeue,
            }
            found[key] = {
                "evaluated": key in evaluated,
                **{name: text for name, text in texts.items() if text},
                "place": places[key],
            }
        return found

    def _place(self, workload: Json) -> str:
        if not self._may_run(workload):
            return "none"
        parked = condition(workload, "Requeued", False) is not None
        return "inadmissible" if parked else "queue"

    def _send_back(self, head: Head, places: dict[str, str]) -> None:
        outcome = self.outcomes[head.key]
        strict = head.queue.rules.get("queueingStrategy") == "StrictFIFO"
        if (
            (strict and outcome.requeue != "NamespaceMismatch")
            or outcome.requeue in ("FailedAfterNomination", "PendingPreemption")
            or outcome.left
        ):
            return
        places[head.key] = "inadmissible"
        if strict or outcome.requeue not in ("NoFit", "PreemptionNoCandidates"):
            return
        for workload in self.pending:
            if (
                places[key_of(workload)] == "queue"
                and self.world.queue_of(workload) is head.queue
                and _shape(workload) == _shape(head.workload)
            ):
                places[key_of(workload)] = "inadmissible"


def _admission(head: Head, plan: Plan) -> Json:
    podsets = []
    for podset in plan.podsets:
        flavors = {resource: choice.flavor for resource, choice in podset.choices.items()}
        found = {"name": podset.name, "count": podset.count, "flavors": flavors}
        if podset.topology is not None:
            found["topology"] = podset.topology
        podsets.append(found)
    return {"clusterQueue": head.queue.name, "podSets": podsets}


def _preemption(head: Head, held: Held, reason: str) -> Json:
    assert held.workload is not None
    found: Json = {"workload": held.key, "by": head.key, "reason": reason}
    if condition(held.workload, "Evicted") is not None:
        found["ongoing"] = True
    return found


def _shape(workload: Json) -> object:
    done = workload.get("reclaimable") or {}
    podsets = [
        {**podset, "count": podset["count"] - done.get(podset["name"], 0)}
        for podset in workload["podSets"]
    ]
    return priority_of(workload), podsets


def selects(selector: Json, labels: dict[str, str]) -> bool:
    """A label selector."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(holds(given, labels) for given in selector.get("matchExpressions") or [])
