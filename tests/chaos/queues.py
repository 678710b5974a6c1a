"""Queues that share quota, and what their administrator changes: what a seed draws. Pure.

    org ------------ production            batch: in org, or alone in annex, which has quota
      research ----- vision, speech

Quota is short, so that queues borrow, and jobs are preempted. Every job fits when others have
ended, beside all elastic jobs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rackgate.api import names
from tests.support.objects import Object, cluster_queue

# Values of the WorkloadPriorityClasses; jobs without one have 0.
PRIORITIES = {"low": -100, "normal": 100, "high": 1000}
NO_CLASS = ""
# Memory is requested by what KubeRay adds to heads alone.
MEMORY = "100Gi"
ORG, RESEARCH, ANNEX = "org", "research", "annex"
VISION, SPEECH, PRODUCTION, BATCH = "vision", "speech", "production", "batch"
QUEUES = (VISION, SPEECH, PRODUCTION, BATCH)


class Change(StrEnum):
    """What an administrator does to a queue for a while."""

    HOLD = "is stopped"
    DRAIN = "is drained"
    LESS = "has less quota"
    ALONE = "borrows nothing"


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """A ClusterQueue with its LocalQueue, or a Cohort.

    Attributes:
        cohort: above it, "" for none.
        cpu: nominal quota.
        borrowing, lending: limits; None for none.
        preemption: `spec.preemption` of a ClusterQueue; None for a Cohort.
        strategy: of a ClusterQueue.
        stop: `spec.stopPolicy` of a ClusterQueue.
    """

    name: str
    cohort: str
    cpu: int
    borrowing: int | None = None
    lending: int | None = None
    preemption: Object | None = None
    strategy: str = "BestEffortFIFO"
    stop: str = "None"

    @property
    def is_queue(self) -> bool:
        """Whether it is a ClusterQueue."""
        return self.preemption is not None

    def __str__(self) -> str:
        words = [f"{self.name} in {self.cohort}" if self.cohort else self.name, f"{self.cpu} CPU"]
        if self.borrowing is not None:
            words.append(f"borrows {self.borrowing}")
        if self.lending is not None:
            words.append(f"lends {self.lending}")
        if self.preemption is not None:
            words += [self.strategy, *_told(self.preemption)]
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """One change of a queue or Cohort, which is taken back.

    Attributes:
        at: second at which it begins.
        seconds: how long it lasts.
    """

    at: float
    name: str
    change: Change
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  {self.name} {self.change.value} for {self.seconds:.1f} s"


def changed(plan: QuotaPlan, change: Change) -> QuotaPlan:
    """A queue or Cohort while a change lasts."""
    match change:
        case Change.HOLD:
            return replace(plan, stop="Hold")
        case Change.DRAIN:
            return replace(plan, stop="HoldAndDrain")
        case Change.LESS:
            return replace(plan, cpu=plan.cpu // 4)
        case Change.ALONE:
            return replace(plan, borrowing=0)


def manifest(plan: QuotaPlan, pool: str) -> Object:
    """The ClusterQueue or Cohort; names of cluster-wide objects begin with the pool."""
    made = cluster_queue(f"{pool}-{plan.name}", pool, {"cpu": str(plan.cpu)})
    (group,) = made["spec"].pop("resourceGroups")
    (cpu,) = group["flavors"][0]["resources"]
    if plan.borrowing is not None:
        cpu["borrowingLimit"] = str(plan.borrowing)
    if plan.lending is not None:
        cpu["lendingLimit"] = str(plan.lending)
    above = f"{pool}-{plan.cohort}"
    if not plan.is_queue:
        parent = {"parentName": above} if plan.cohort else {}
        return made | {"kind": "Cohort", "spec": {"resourceGroups": [group], **parent}}
    group["coveredResources"].append("memory")
    group["flavors"][0]["resources"].append({"name": "memory", "nominalQuota": MEMORY})
    made["spec"] |= {
        "resourceGroups": [group],
        "preemption": dict(plan.preemption or {}),
        "queueingStrategy": plan.strategy,
        "stopPolicy": plan.stop,
    }
    if plan.cohort:
        made["spec"]["cohortName"] = above
    return made


def priority_classes(pool: str) -> Iterator[Object]:
    """The WorkloadPriorityClasses."""
    for name, value in PRIORITIES.items():
        yield {
            "apiVersion": names.API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": f"{pool}-{name}"},
            "value": value,
        }


def priority_label(priority: str, pool: str) -> dict[str, str]:
    """The label of a job that names its class; none for a job without one."""
    return {names.PRIORITY_CLASS_LABEL: f"{pool}-{priority}"} if priority else {}


def _told(preemption: Object) -> Iterator[str]:
    """Policies, for people."""
    for name, policy in preemption.items():
        if isinstance(policy, str):
            yield f"{name} {policy}"
        else:
            yield " ".join([name, *(str(value) for value in policy.values())])


def draw_tree(dice: random.Random) -> tuple[QuotaPlan, ...]:
    """Cohorts first. What they have is less than what jobs request, and enough for each of them."""
    alone = dice.random() < 0.5
    cohorts = [
        QuotaPlan(ORG, "", 48),
        QuotaPlan(RESEARCH, ORG, dice.choice((0, 16)), borrowing=dice.choice((None, 96))),
    ]
    if alone:
        cohorts.append(QuotaPlan(ANNEX, "", 96))
    queues = []
    for name in QUEUES:
        above = {VISION: RESEARCH, SPEECH: RESEARCH, BATCH: ANNEX if alone else ORG}.get(name, ORG)
        queues.append(
            QuotaPlan(
                name,
                above,
                dice.choice((24, 32, 48)),
                borrowing=dice.choice((None, None, 96)),
                lending=dice.choice((None, None, 16)),
                preemption=_preemption(dice),
                strategy=dice.choice(("BestEffortFIFO", "BestEffortFIFO", "StrictFIFO")),
            )
        )
    # One queue at least that preempts in every way.
    first = next(index for index, it in enumerate(queues) if it.name == PRODUCTION)
    everything: Object = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    everything["borrowWithinCohort"] = {"policy": "LowerPriority"}
    queues[first] = replace(queues[first], preemption=everything)
    return (*cohorts, *queues)


def _preemption(dice: random.Random) -> Object:
    within = ("LowerPriority", "LowerPriority", "LowerOrNewerEqualPriority", "Never")
    found: dict[str, Any] = {
        "withinClusterQueue": dice.choice(within),
        "reclaimWithinCohort": dice.choice(("Any", "Any", "LowerPriority", "Never")),
    }
    borrowing: Object = {"policy": dice.choice(("Never", "LowerPriority"))}
    # Only who reclaims may preempt while it borrows.
    if found["reclaimWithinCohort"] != "Never" and borrowing["policy"] != "Never":
        threshold = dice.choice((None, PRIORITIES["normal"]))
        found["borrowWithinCohort"] = (
            borrowing if threshold is None else {**borrowing, "maxPriorityThreshold": threshold}
        )
    return found


def draw_changes(dice: random.Random, seed: int, seconds: float) -> tuple[ChangePlan, ...]:
    """Two changes; consecutive seeds go through all kinds evenly."""
    found = []
    for number in range(2):
        change = list(Change)[(2 * seed + number) % len(Change)]
        # Only quota is also a Cohort's.
        struck = (*QUEUES, ORG) if change is Change.LESS else QUEUES
        at = round(dice.uniform(3, seconds * 0.75), 1)
        found.append(ChangePlan(at, dice.choice(struck), change, round(dice.uniform(3, 8), 1)))
    return tuple(sorted(found, key=lambda plan: plan.at))


def draw_home(dice: random.Random, *, early: bool) -> tuple[str, str]:
    """Queue and priority class of a job; what comes early is rather what others preempt."""
    classes = ("low", NO_CLASS, "normal") if early else ("low", NO_CLASS, "normal", "high", "high")
    return dice.choice(QUEUES), dice.choice(classes)
