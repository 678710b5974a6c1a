"""Many cycles on one scenario: what is admitted runs, who is evicted waits again, work finishes.

Nothing here knows who decides.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.support.oracle.amounts import whole

Json = dict[str, Any]
Decide = Callable[[Json], Json]


def key_of(workload: Json) -> str:
    return f"{workload['namespace']}/{workload['name']}"


class History:
    """A scenario that goes on: `decide` answers it, and each `step` applies the answer.

    A victim has left by the next cycle. Parked work wakes up as soon as somebody leaves. With
    `sticky`, who waits for the preemption of others is the head of its queue in the next cycle.
    """

    def __init__(self, scenario: Json, decide: Decide, *, sticky: bool = True) -> None:
        self.scenario = deepcopy(scenario)
        self.decide = decide
        self.sticky = sticky
        self.now = 0
        self.waiting: dict[str, str] = {}

    @property
    def workloads(self) -> dict[str, Json]:
        return {key_of(workload): workload for workload in self.scenario["workloads"]}

    @property
    def running(self) -> set[str]:
        return {key for key, work in self.workloads.items() if work.get("reservedAt") is not None}

    def step(self) -> Json:
        answer = self.decide(self._seen())
        self.apply(answer)
        return answer

    def _seen(self) -> Json:
        """What the cycle sees: nobody else of a queue whose head waits for a preemption."""
        seen = deepcopy(self.scenario)
        for workload in seen["workloads"]:
            head = self.waiting.get(workload["queue"])
            if workload.get("reservedAt") is None and head not in (None, key_of(workload)):
                _set(workload, "Requeued", False, "Behind", self.now)
        return seen

    def apply(self, answer: Json) -> None:
        self.now += 1
        workloads = self.workloads
        for key, admitted in answer["admitted"].items():
            self._start(workloads[key], admitted)
        behind = set(self.waiting)
        self.waiting = {
            workloads[key]["queue"]: key
            for key, told in answer["pending"].items()
            if self.sticky and told.get("requeue") == "PendingPreemption"
        }
        for key, told in answer["pending"].items():
            if told["place"] == "inadmissible" and (
                told["evaluated"] or workloads[key]["queue"] not in behind
            ):
                _set(workloads[key], "Requeued", False, "Inadmissible", self.now)
        for preempted in answer["preempted"]:
            self._evict(workloads[preempted["workload"]])
        # Some were evicted before, and their eviction ends now.
        for workload in self.scenario["workloads"]:
            if workload.get("reservedAt") is not None and _is(workload, "Evicted"):
                self._evict(workload)

    def finish(self, key: str) -> None:
        workload = self.workloads[key]
        self.scenario["workloads"].remove(workload)
        self._wake()

    def alone(self, key: str) -> Json:
        """The present scenario with nothing else pending."""
        kept = [work for other, work in self.workloads.items() if other in self.running | {key}]
        return {**self.scenario, "workloads": kept}

    def _start(self, workload: Json, admitted: Json) -> None:
        podsets = []
        for given, podset in zip(workload["podSets"], admitted["podSets"], strict=True):
            one = {name: whole(name, quantity) for name, quantity in given["requests"].items()}
            one["pods"] = 1
            usage = {
                name: _quantity(name, one.get(name, 0) * podset["count"])
                for name in podset["flavors"]
            }
            podsets.append({**podset, "usage": usage})
        workload["admission"] = {"clusterQueue": admitted["clusterQueue"], "podSets": podsets}
        workload["reservedAt"] = self.now
        workload.pop("conditions", None)

    def _evict(self, workload: Json) -> None:
        for name in ("admission", "reservedAt"):
            workload.pop(name, None)
        _set(workload, "Evicted", True, "Preempted", self.now)
        _set(workload, "Requeued", True, "Preempted", self.now)
        self._wake()

    def _wake(self) -> None:
        for workload in self.scenario["workloads"]:
            kept = [
                condition
                for condition in workload.get("conditions") or []
                if (condition["type"], condition["status"], condition["reason"])
                != ("Requeued", False, "Inadmissible")
            ]
            workload["conditions"] = kept


def _is(workload: Json, kind: str) -> bool:
    conditions = workload.get("conditions") or []
    return any(found["type"] == kind and found["status"] for found in conditions)


def _set(workload: Json, kind: str, status: bool, reason: str, at: int) -> None:
    others = [found for found in workload.get("conditions") or [] if found["type"] != kind]
    new = {"type": kind, "status": status, "reason": reason, "at": at}
    workload["conditions"] = [*others, new]


def _quantity(resource: str, amount: int) -> str:
    return f"{amount}m" if resource == "cpu" else str(amount)
