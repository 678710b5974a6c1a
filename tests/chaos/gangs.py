"""Gangs of a scenario: what a seed draws of them, and their manifests. Pure.

Every other seed has them, with the feature gates of gangs and of plain pods. Then Indexed Jobs and
JobSets are gangs by default, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rackgate.api import names
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.features import GANG_SCHEDULING, POD_GROUPS, WORKLOAD_REV_N
from tests.chaos.composites import topology_annotations
from tests.chaos.job_options import TopologyMode
from tests.chaos.queues import QuotaPlan
from tests.support.composite_jobs import raycluster, worker_group
from tests.support.objects import BLOCK, RACK, Object, job

GATES: Final = (GANG_SCHEDULING, POD_GROUPS, WORKLOAD_REV_N)
# Of their own, so that the sizes of the other queues stay as they are. The RayCluster uses 3 CPU
# until the end; each of the others fits beside it, and not all at once.
QUEUE: Final = QuotaPlan("gangs", "", 12, preemption={})
WORKERS: Final = 2
TIMEOUT_S: Final = 90


class GangKind(StrEnum):
    """What a gang is made of."""

    JOB = "Job"
    RAY = "RayCluster"
    PODS = "plain pods"


class GangAction(StrEnum):
    """What its user does beside creating it."""

    NONE = "none"
    LATE = "creates the Workload of gangs after the Job"
    REMAKE = "deletes the Workload of gangs and creates it again"
    KILL = "deletes a pod of a gang with TerminateAll"


@dataclass(frozen=True, slots=True)
class GangPlan:
    """One job whose user has written its Workload of gangs, or a group of plain pods.

    Attributes:
        at: second of its creation.
        run_s: how long its pods run.
        action_at: second at which its user acts.
    """

    name: str
    kind: GangKind
    at: float
    pods: int
    cpu: int
    topology_mode: TopologyMode
    level: str
    run_s: float
    action: GangAction = GangAction.NONE
    action_at: float = 0.0

    @property
    def ends(self) -> bool:
        """Whether it completes by itself."""
        return self.kind is not GangKind.RAY

    @property
    def has_workload(self) -> bool:
        """Whether a Workload of gangs belongs to it."""
        return self.kind is not GangKind.PODS

    def __str__(self) -> str:
        words = f"{self.name}, gang of {self.kind.value}, {self.pods} pods of {self.cpu} CPU"
        if self.action is GangAction.NONE:
            return words
        return f"{words}; user {self.action.value} at {self.action_at:g} s"


def has_gangs(seed: int) -> bool:
    """Whether the scenario of a seed has gangs."""
    return seed % 2 == 1


def draw_gangs(seed: int, seconds: float) -> tuple[GangPlan, ...]:
    """The gangs of a seed, by dice of their own."""
    if not has_gangs(seed):
        return ()
    dice = random.Random(f"gangs {seed}")
    actions = [action for action in GangAction if action is not GangAction.NONE]
    jobs = [_draw(dice, GangKind.JOB, seconds, action) for action in actions]
    others = (GangKind.RAY, GangKind.PODS, GangKind.PODS)
    return (*jobs, *(_draw(dice, kind, seconds, number=n) for n, kind in enumerate(others)))


def _draw(
    dice: random.Random,
    kind: GangKind,
    seconds: float,
    action: GangAction = GangAction.NONE,
    number: int = 0,
) -> GangPlan:
    at = round(dice.uniform(0, seconds * 0.5), 1)
    pods, cpu = dice.choice(((2, 2), (4, 1), (4, 2), (6, 1), (8, 1)))
    name = f"{kind.name.lower()}-{number}" if action is GangAction.NONE else action.name.lower()
    action_at = round(min(at + dice.uniform(2, seconds * 0.5), seconds), 1)
    return GangPlan(
        name=f"gang-{name}",
        kind=kind,
        at=at,
        pods=WORKERS + 1 if kind is GangKind.RAY else pods,
        cpu=1 if kind is GangKind.RAY else cpu,
        topology_mode=dice.choice(list(TopologyMode)),
        level=dice.choice((RACK, BLOCK)),
        run_s=round(dice.uniform(8, 16) if action is GangAction.KILL else dice.uniform(1, 6), 1),
        action=action,
        action_at=action_at if action is not GangAction.NONE else 0.0,
    )


def gang_workload(plan: GangPlan) -> Object:
    """The Workload of gangs as its user writes it."""
    group: Object = {"name": "gg", "minCount": plan.pods, "scheduleTimeoutSeconds": TIMEOUT_S}
    if plan.action is GangAction.KILL:
        group["reschedulingPolicy"] = "TerminateAll"
    return {
        "apiVersion": GANG_WORKLOADS.api_version,
        "kind": GANG_WORKLOADS.kind,
        "metadata": {"name": plan.name},
        "spec": {"gangGroups": [group]},
    }


def gang_manifest(plan: GangPlan) -> Object:
    """The Job or RayCluster as its user writes it."""
    link = {names.GANG_LINK_ANNOTATION: plan.name}
    if plan.kind is GangKind.RAY:
        annotations = topology_annotations(plan.topology_mode, plan.level) | link
        group = worker_group("small", WORKERS, cpu=str(plan.cpu), annotations=annotations)
        return raycluster(
            plan.name, [group], queue=QUEUE.name, head_cpu=str(plan.cpu), head_annotations=link
        )
    return job(
        plan.name,
        plan.pods,
        queue=QUEUE.name,
        cpu=str(plan.cpu),
        annotations=topology_annotations(plan.topology_mode, plan.level, plan.run_s) | link,
        # Pods of drained nodes fail; that is no reason to give the Job up.
        spec={"backoffLimit": 1000},
    )


def group_pods(plan: GangPlan) -> dict[str, Object]:
    """The plain pods of a group as their user writes them, by name."""
    annotations = topology_annotations(plan.topology_mode, plan.level, plan.run_s)
    annotations[names.POD_GROUP_TOTAL_ANNOTATION] = str(plan.pods)
    container = {
        "name": "main",
        "image": "registry.example/any:1",
        "resources": {"requests": {"cpu": str(plan.cpu)}},
    }
    return {
        name: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {names.QUEUE_LABEL: QUEUE.name, names.POD_GROUP_LABEL: plan.name},
                "annotations": annotations,
            },
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        for name in (f"{plan.name}-{index}" for index in range(plan.pods))
    }
