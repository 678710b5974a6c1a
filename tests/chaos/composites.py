"""JobSets and elastic jobs of a scenario: what a seed draws of them, and their manifests. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rackgate.api import names
from tests.chaos.job_options import TopologyMode, UserAction
from tests.chaos.queues import NO_CLASS, priority_label
from tests.support.composite_jobs import jobset, marks, raycluster, replicated_job, worker_group
from tests.support.objects import BLOCK, RACK, Object, job

KEPT_S = 600.0
GROUP = "small"
HEAD_CPU = 1
# What the autoscaler's container in the head pod asks for; KubeRay adds it.
AUTOSCALER_CPU = 0.5
# All elastic jobs of a scenario together fit into one rack beside each other.
LARGEST_SIZE = 8


@dataclass(frozen=True, slots=True)
class SetPlan:
    """One JobSet of a leader and of workers.

    Attributes:
        at: second of its creation.
        replicas: child Jobs of workers.
        pods: of each of them.
        run_s: how long its pods run.
        fate_at: second at which its fate comes.
        queue, priority: where it is submitted, and its class.
        gang_per_job: each replicated Job is a gang, if there are gangs; otherwise all together.
    """

    name: str
    at: float
    replicas: int
    pods: int
    cpu: int
    topology_mode: TopologyMode
    level: str
    run_s: float
    user_action: UserAction
    fate_at: float
    queue: str = ""
    priority: str = NO_CLASS
    gang_per_job: bool = False

    @property
    def ends(self) -> bool:
        """Whether it completes by itself."""
        return self.user_action not in (UserAction.DELETE, UserAction.DEACTIVATE)


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """One elastic job; it runs until the scenario ends.

    Attributes:
        ray: a RayCluster with one worker group; otherwise an Indexed Job.
        at: second of its creation.
        size: worker pods at first.
        sizes: second and number of pods of every resize, in order.
        together: the Job's completions follow its parallelism; otherwise they are many.
        fate_at: second at which its fate comes.
        queue, priority: where it is submitted, and its class.
    """

    name: str
    ray: bool
    at: float
    size: int
    cpu: int
    topology_mode: TopologyMode
    level: str
    sizes: tuple[tuple[float, int], ...]
    together: bool
    user_action: UserAction
    fate_at: float
    queue: str = ""
    priority: str = NO_CLASS

    @property
    def last(self) -> int:
        """Worker pods in the end."""
        return self.sizes[-1][1] if self.sizes else self.size

    @property
    def cpu_used(self) -> float:
        """CPU that it uses in the end."""
        head = HEAD_CPU + AUTOSCALER_CPU if self.ray else 0.0
        return head + self.last * self.cpu

    def wanted(self, second: float) -> int:
        """Worker pods that it is to have at a second of the scenario."""
        return ([self.size] + [size for at, size in self.sizes if at <= second])[-1]


def draw_set(dice: random.Random, index: int, seconds: float) -> SetPlan:
    """One JobSet."""
    at = round(dice.uniform(0, seconds * 0.5), 1)
    user_action = dice.choice(
        (UserAction.NONE, UserAction.SUSPEND, UserAction.DEACTIVATE, UserAction.DELETE)
    )
    replicas, pods, cpu = dice.choice(((1, 4, 2), (2, 2, 4), (2, 4, 1), (3, 4, 2), (2, 8, 2)))
    return SetPlan(
        name=f"set-{index:02}",
        at=at,
        replicas=replicas,
        pods=pods,
        cpu=cpu,
        topology_mode=dice.choice(list(TopologyMode)),
        level=dice.choice((RACK, BLOCK)),
        run_s=KEPT_S if user_action is UserAction.DEACTIVATE else round(dice.uniform(1, 6), 1),
        user_action=user_action,
        fate_at=_user_action_at(dice, at, user_action, seconds),
    )


def draw_elastic(dice: random.Random, name: str, seconds: float, *, ray: bool) -> ElasticPlan:
    """One elastic job that is resized three to six times."""
    at = round(dice.uniform(0, seconds * 0.2), 1)
    times = sorted(round(dice.uniform(at + 2, seconds), 1) for _ in range(dice.randint(3, 6)))
    user_action = dice.choice(
        (UserAction.NONE, UserAction.NONE, UserAction.NONE, UserAction.SUSPEND, UserAction.DELETE)
    )
    return ElasticPlan(
        name=name,
        ray=ray,
        at=at,
        size=dice.randint(1, LARGEST_SIZE // 2),
        cpu=dice.choice((1, 2)),
        topology_mode=dice.choice(list(TopologyMode)),
        level=dice.choice((RACK, BLOCK)),
        sizes=tuple((time, dice.randint(1, LARGEST_SIZE)) for time in times),
        together=dice.random() < 0.5,
        user_action=user_action,
        fate_at=_user_action_at(dice, at, user_action, seconds),
    )


def _user_action_at(
    dice: random.Random, at: float, user_action: UserAction, seconds: float
) -> float:
    moment = min(at + dice.uniform(4, max(5.0, seconds * 0.6)), seconds)
    return round(moment, 1) if user_action is not UserAction.NONE else 0.0


def topology_annotations(
    topology_mode: TopologyMode, level: str, run_s: float | None = None
) -> dict[str, str]:
    """Annotations of a pod template."""
    more = (
        {names.UNCONSTRAINED_TOPOLOGY: "true"}
        if topology_mode is TopologyMode.UNCONSTRAINED
        else None
    )
    return marks(
        more,
        required=level if topology_mode is TopologyMode.REQUIRED else None,
        preferred=level if topology_mode is TopologyMode.PREFERRED else None,
        run_seconds=run_s,
    )


def set_manifest(plan: SetPlan, pool: str) -> Object:
    """The JobSet as its user writes it."""
    # Pods of drained nodes fail; that is no reason to give a Job up.
    patient = {"backoffLimit": 1000}
    leader = replicated_job("leader", 1, annotations=marks(run_seconds=plan.run_s), spec=patient)
    workers = replicated_job(
        "workers",
        plan.pods,
        replicas=plan.replicas,
        cpu=str(plan.cpu),
        annotations=topology_annotations(plan.topology_mode, plan.level, plan.run_s),
        spec={"completionMode": "Indexed", **patient},
    )
    found = jobset(plan.name, [leader, workers], queue=plan.queue)
    if plan.gang_per_job:
        found["metadata"]["annotations"] = {names.GANG_PER_ANNOTATION: "ReplicatedJob"}
    found["metadata"]["labels"] |= priority_label(plan.priority, pool)
    return found


def elastic_manifest(plan: ElasticPlan, pool: str) -> Object:
    """The elastic job as its user writes it."""
    annotations = topology_annotations(plan.topology_mode, plan.level)
    labels = priority_label(plan.priority, pool)
    if plan.ray:
        group = worker_group(GROUP, plan.size, cpu=str(plan.cpu), annotations=annotations)
        found = raycluster(
            plan.name, [group], queue=plan.queue, autoscaling=True, head_cpu=str(HEAD_CPU)
        )
        found["metadata"]["labels"] |= labels
        return found
    found = job(
        plan.name,
        plan.size,
        queue=plan.queue,
        cpu=str(plan.cpu),
        labels=labels,
        annotations=annotations,
        completions=plan.size if plan.together else 50,
        spec={"backoffLimit": 1000},
    )
    found["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    return found
