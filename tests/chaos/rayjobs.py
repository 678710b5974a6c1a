"""RayJobs of a scenario: what a seed draws of them, and their manifests. Pure.

No pod runs Ray here, so none of them ends: each runs with its cluster and its submitter until the
scenario ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.chaos.composites import topology_annotations
from tests.chaos.job_options import TopologyMode, UserAction
from tests.chaos.queues import QuotaPlan
from tests.support.composite_jobs import rayjob, worker_group
from tests.support.objects import BLOCK, RACK, Object

# Of their own, so that the sizes of the other queues stay as they are. It has room for all.
QUEUE: Final = QuotaPlan("rayjobs", "", 16, preemption={})
HEAD_CPU: Final = 1
SUBMITTER_CPU: Final = 1


@dataclass(frozen=True, slots=True)
class RayJobPlan:
    """One RayJob with one worker group.

    Attributes:
        at: second of its creation.
        own_submitter: its user wrote the template of its submitter.
        fate_at: second at which its fate comes.
    """

    name: str
    at: float
    workers: int
    cpu: int
    topology_mode: TopologyMode
    level: str
    own_submitter: bool
    user_action: UserAction
    fate_at: float

    @property
    def pods(self) -> int:
        """Its head, its workers and its submitter."""
        return self.workers + 2

    def __str__(self) -> str:
        words = (
            f"{self.name}, {self.workers} workers of {self.cpu} CPU, {self.topology_mode.value} "
            f"{self.level.rpartition('-')[2]}"
        )
        if self.user_action is UserAction.NONE:
            return words
        return f"{words}, {self.user_action} at {self.fate_at:g} s"


def draw_rayjobs(seed: int, seconds: float) -> tuple[RayJobPlan, ...]:
    """The RayJobs of a seed, by dice of their own. The first one is suspended while it runs."""
    dice = random.Random(f"rayjobs {seed}")
    others = (UserAction.NONE, UserAction.SUSPEND, UserAction.DELETE)
    return (
        _draw(dice, 0, seconds, UserAction.SUSPEND),
        _draw(dice, 1, seconds, dice.choice(others)),
    )


def _draw(dice: random.Random, number: int, seconds: float, user_action: UserAction) -> RayJobPlan:
    at = round(dice.uniform(0, seconds * 0.3), 1)
    fate_at = round(dice.uniform(at + 4, seconds), 1)
    return RayJobPlan(
        name=f"rayjob-{number}",
        at=at,
        workers=dice.randint(1, 3),
        cpu=dice.choice((1, 2)),
        topology_mode=dice.choice(list(TopologyMode)),
        level=dice.choice((RACK, BLOCK)),
        own_submitter=dice.random() < 0.5,
        user_action=user_action,
        fate_at=fate_at if user_action is not UserAction.NONE else 0.0,
    )


def rayjob_manifest(plan: RayJobPlan) -> Object:
    """The RayJob as its user writes it."""
    annotations = topology_annotations(plan.topology_mode, plan.level)
    group = worker_group("small", plan.workers, cpu=str(plan.cpu), annotations=annotations)
    # Pods of drained nodes fail; that is no reason to give the submitter up.
    found = rayjob(
        plan.name,
        [group],
        queue=QUEUE.name,
        head_cpu=str(HEAD_CPU),
        submitterConfig={"backoffLimit": 1000},
    )
    if plan.own_submitter:
        container = {
            "name": "submit",
            "image": "registry.example/ray:2.46.0",
            "resources": {"requests": {"cpu": str(SUBMITTER_CPU)}},
        }
        spec = {"containers": [container], "restartPolicy": "Never"}
        found["spec"]["submitterPodTemplate"] = {"spec": spec}
    return found


def cpu_used(plan: RayJobPlan) -> int:
    """Thousandths of a CPU that it uses."""
    submitter = SUBMITTER_CPU * 1000 if plan.own_submitter else 500
    return (HEAD_CPU + plan.workers * plan.cpu) * 1000 + submitter
