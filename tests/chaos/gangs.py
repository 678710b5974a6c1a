"""Gangs of a scenario: what a seed draws of them, and their manifests. Pure.

Every other seed has them, with the feature gates of gangs and of plain pods. Then Indexed Jobs and
JobSets are gangs by default, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
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
# Of their own, so that the sizes of the other queues stay as they are. RayCluster, StatefulSet and
# Deployment use 7 CPU until the end; each of the others fits beside them, and not all at once.
QUEUE: Final = QuotaPlan("gangs", "", 16, preemption={})
WORKERS: Final = 2
# Of pods that no managed job owns: the name of their gang.
LABEL: Final = "chaos.test/gang"
TIMEOUT_S: Final = 90


class GangKind(StrEnum):
    """What a gang is made of."""

    JOB = "Job"
    RAY = "RayCluster"
    PODS = "plain pods"
    SET = "StatefulSet"
    DEPLOYMENT = "Deployment"
    BARE = "pods without a controller"


# They run until they are deleted.
ENDLESS: Final = frozenset((GangKind.RAY, GangKind.SET, GangKind.DEPLOYMENT))


class GangAction(StrEnum):
    """What its user does beside creating it."""

    NONE = "none"
    LATE = "creates the Workload of gangs after the Job"
    REMAKE = "deletes the Workload of gangs and creates it again"
    KILL = "deletes a pod of a gang with TerminateAll"


@dataclass(frozen=True, slots=True)
class GangPlan:
    """One gang whose user has written its Workload of gangs; groups and sets need none.

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
        return self.kind not in ENDLESS

    @property
    def has_workload(self) -> bool:
        """Whether its user writes a Workload of gangs. That of a StatefulSet is a default."""
        return self.kind not in (GangKind.PODS, GangKind.SET)

    @property
    def is_kept(self) -> bool:
        """Whether only its user creates pods again that were deleted."""
        return self.kind in (GangKind.PODS, GangKind.BARE)

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
    others = (
        GangKind.RAY,
        GangKind.PODS,
        GangKind.PODS,
        GangKind.SET,
        GangKind.DEPLOYMENT,
        GangKind.BARE,
    )
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
        pods=_pods_of(kind, pods),
        cpu=1 if kind in ENDLESS else cpu,
        topology_mode=dice.choice(list(TopologyMode)),
        level=dice.choice((RACK, BLOCK)),
        run_s=round(dice.uniform(8, 16) if action is GangAction.KILL else dice.uniform(1, 6), 1),
        action=action,
        action_at=action_at if action is not GangAction.NONE else 0.0,
    )


def _pods_of(kind: GangKind, drawn: int) -> int:
    if kind is GangKind.RAY:
        return WORKERS + 1
    return WORKERS if kind in ENDLESS else drawn


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
    """The object as its user writes it, of gangs that are no groups of pods."""
    link = {names.GANG_LINK_ANNOTATION: plan.name}
    if plan.kind is GangKind.SET:
        return _stateful_set(plan)
    if plan.kind is GangKind.DEPLOYMENT:
        return _deployment(plan)
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


def _stateful_set(plan: GangPlan) -> Object:
    """One with a queue label: the webhook links its template."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": plan.name, "labels": {names.QUEUE_LABEL: QUEUE.name}},
        "spec": {
            "replicas": plan.pods,
            "serviceName": plan.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {LABEL: plan.name}},
            "template": _template(plan, {}, topology_annotations(plan.topology_mode, plan.level)),
        },
    }


def _deployment(plan: GangPlan) -> Object:
    """One whose user has linked its template."""
    link = {names.GANG_LINK_ANNOTATION: plan.name}
    annotations = topology_annotations(plan.topology_mode, plan.level) | link
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": plan.name},
        "spec": {
            "replicas": plan.pods,
            "selector": {"matchLabels": {LABEL: plan.name}},
            "template": _template(plan, {names.QUEUE_LABEL: QUEUE.name}, annotations),
        },
    }


def _template(plan: GangPlan, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Object:
    container = {
        "name": "main",
        "image": "registry.example/any:1",
        "resources": {"requests": {"cpu": str(plan.cpu)}},
    }
    return {
        "metadata": {"labels": {LABEL: plan.name, **labels}, "annotations": dict(annotations)},
        "spec": {"containers": [container]},
    }


def kept_pods(plan: GangPlan) -> dict[str, Object]:
    """The pods of a group, or of a gang without a controller, as their user writes them."""
    annotations = topology_annotations(plan.topology_mode, plan.level, plan.run_s)
    labels = {names.QUEUE_LABEL: QUEUE.name}
    if plan.kind is GangKind.BARE:
        annotations[names.GANG_LINK_ANNOTATION] = plan.name
    else:
        annotations[names.POD_GROUP_TOTAL_ANNOTATION] = str(plan.pods)
        labels[names.POD_GROUP_LABEL] = plan.name
    made = _template(plan, labels, annotations)
    spec = {**made["spec"], "restartPolicy": "Never"}
    return {
        name: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**made["metadata"], "name": name},
            "spec": spec,
        }
        for name in (f"{plan.name}-{index}" for index in range(plan.pods))
    }
