"""Whether a queue admits Workloads, and if not, every reason at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rackgate.api.names import MULTIKUEUE_CONTROLLER, PROVISIONING_CONTROLLER, QueueReason
from rackgate.features import Features
from rackgate_assigner.quota.queues import (
    CheckInfo,
    ClusterQueueInfo,
    CohortInfo,
    FlavorInfo,
    LocalQueueInfo,
    without_topologies,
)


@dataclass(frozen=True, slots=True)
class Activity:
    """The Active condition of a queue.

    Attributes:
        problems: (reason, text), in a fixed order; empty when the queue is active.
        active_message: message while active.
        inactive_message: start of the message while inactive.
    """

    problems: tuple[tuple[str, str], ...]
    active_message: str
    inactive_message: str = ""

    @property
    def active(self) -> bool:
        """Whether Workloads are admitted."""
        return not self.problems

    @property
    def stopped_only(self) -> bool:
        """Whether the only problem is a stop policy."""
        return bool(self.problems) and all(
            reason == QueueReason.STOPPED for reason, _ in self.problems
        )

    @property
    def reason(self) -> str:
        """Reason of the condition: that of the first problem."""
        return self.problems[0][0] if self.problems else QueueReason.READY

    @property
    def message(self) -> str:
        """Message of the condition: all problems."""
        if not self.problems:
            return self.active_message
        return f"{self.inactive_message}: {', '.join(text for _, text in self.problems)}"


def _names(found: Sequence[str]) -> str:
    return f"[{', '.join(sorted(found))}]"


def _flavor_problems(
    queue: ClusterQueueInfo, flavors: Mapping[str, FlavorInfo]
) -> list[tuple[str, str]]:
    problems: list[tuple[str, str]] = []
    missing = [name for name in queue.flavors if name not in flavors]
    if missing:
        problems.append(
            (
                QueueReason.FLAVOR_NOT_FOUND,
                f"references missing ResourceFlavor(s): {_names(missing)}",
            )
        )
    for name in sorted(queue.flavors):
        flavor = flavors.get(name)
        if flavor is not None and flavor.topology is not None and not flavor.levels:
            text = f'there is no Topology "{flavor.topology}" for TAS flavor "{name}"'
            problems.append((QueueReason.TOPOLOGY_NOT_FOUND, text))
    return problems


def _check_problems(
    queue: ClusterQueueInfo, checks: Mapping[str, CheckInfo]
) -> list[tuple[str, str]]:
    problems: list[tuple[str, str]] = []
    named = [rule.name for rule in queue.checks]
    missing = [name for name in named if name not in checks]
    if missing:
        text = f"references missing AdmissionCheck(s): {_names(missing)}"
        problems.append((QueueReason.ADMISSION_CHECK_NOT_FOUND, text))
    inactive = [name for name in named if name in checks and not checks[name].active]
    if inactive:
        text = f"references inactive AdmissionCheck(s): {_names(inactive)}"
        problems.append((QueueReason.ADMISSION_CHECK_INACTIVE, text))
    return problems + _multikueue_problems(queue, checks)


def _multikueue_problems(
    queue: ClusterQueueInfo, checks: Mapping[str, CheckInfo]
) -> list[tuple[str, str]]:
    """Rules for checks that send the Workload to another cluster."""
    problems: list[tuple[str, str]] = []
    controllers = {name: check.controller for name, check in checks.items()}
    multikueue = [
        rule for rule in queue.checks if controllers.get(rule.name) == MULTIKUEUE_CONTROLLER
    ]
    if len(multikueue) > 1:
        found = _names([rule.name for rule in multikueue])
        text = f"Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue: {found}"
        problems.append((QueueReason.MULTIPLE_MULTIKUEUE_CHECKS, text))
    per_flavor = [rule.name for rule in multikueue if rule.on_flavors]
    if per_flavor:
        text = f"Cannot specify MultiKueue AdmissionCheck per flavor: {_names(per_flavor)}"
        problems.append((QueueReason.MULTIKUEUE_CHECK_PER_FLAVOR, text))
    named = {controllers.get(rule.name) for rule in queue.checks}
    if multikueue and PROVISIONING_CONTROLLER in named:
        text = "Cannot use MultiKueue together with a ProvisioningRequest AdmissionCheck"
        problems.append((QueueReason.MULTIKUEUE_WITH_PROVISIONING_REQUEST, text))
    return problems


def _topology_limits(
    queue: ClusterQueueInfo,
    flavors: Mapping[str, FlavorInfo],
    checks: Mapping[str, CheckInfo],
    features: Features,
) -> list[tuple[str, str]]:
    """VAL-05 to VAL-08: four independent rules, each lifted by its own gate (VAL-09)."""
    if not _topology_flavors(queue, flavors):
        return []
    controllers = {checks[rule.name].controller for rule in queue.checks if rule.name in checks}
    rules = (
        (features.topology_with_cohorts, bool(queue.cohort), "is not supported in a cohort"),
        (features.topology_with_preemption, queue.preempts, "is not supported with preemption"),
        (
            features.topology_with_multikueue,
            MULTIKUEUE_CONTROLLER in controllers,
            "is not supported with a MultiKueue admission check",
        ),
        (
            features.topology_with_provisioning_request,
            PROVISIONING_CONTROLLER in controllers,
            "is not supported with a ProvisioningRequest admission check",
        ),
    )
    return [
        (QueueReason.NOT_SUPPORTED_WITH_TAS, f"TAS {text}")
        for lifted, violated, text in rules
        if violated and not lifted
    ]


def _topology_flavors(queue: ClusterQueueInfo, flavors: Mapping[str, FlavorInfo]) -> list[str]:
    return [name for name in queue.flavors if name in flavors and flavors[name].topology]


def _switched_off_note(queue: ClusterQueueInfo, flavors: Mapping[str, FlavorInfo]) -> str:
    """TAS flavors that count as plain flavors while TopologyAwareScheduling is off."""
    named = _topology_flavors(queue, flavors)
    if not named:
        return ""
    return "; feature gate TopologyAwareScheduling is off, TAS flavors count as plain: " + _names(
        named
    )


def _cohort_problems(
    queue: ClusterQueueInfo, cohorts: Mapping[str, CohortInfo]
) -> list[tuple[str, str]]:
    """A Cohort of the queue is above itself, so nothing says whose quota it shares."""
    path = [queue.cohort]
    while (cohort := cohorts.get(path[-1])) is not None and cohort.parent:
        if cohort.parent in path:
            circle = " -> ".join([*path[path.index(cohort.parent) :], cohort.parent])
            return [(QueueReason.COHORT_CYCLE, f"is in a cycle of Cohorts: {circle}")]
        path.append(cohort.parent)
    return []


def cluster_queue_activity(
    queue: ClusterQueueInfo,
    flavors: Mapping[str, FlavorInfo],
    checks: Mapping[str, CheckInfo],
    features: Features,
    cohorts: Mapping[str, CohortInfo],
) -> Activity:
    """Whether a ClusterQueue admits Workloads.

    Args:
        queue: the ClusterQueue.
        flavors: all flavors, by name.
        checks: all AdmissionChecks, by name.
        features: state of feature gates.
        cohorts: all Cohorts, by name.
    """
    switched_off = ""
    if not features.topology_aware_scheduling:
        switched_off = _switched_off_note(queue, flavors)
        flavors = without_topologies(flavors)
    problems: list[tuple[str, str]] = []
    if queue.deleting:
        problems.append((QueueReason.TERMINATING, "is terminating"))
    if queue.stop_policy != "None":
        problems.append((QueueReason.STOPPED, "is stopped"))
    problems += _flavor_problems(queue, flavors)
    problems += _cohort_problems(queue, cohorts)
    problems += _topology_limits(queue, flavors, checks, features)
    problems += _check_problems(queue, checks)
    return Activity(
        tuple(problems),
        active_message=f"Can admit new workloads{switched_off}",
        inactive_message="Can't admit new workloads",
    )


def local_queue_activity(queue: LocalQueueInfo, cluster_queue: Activity | None) -> Activity:
    """Whether a LocalQueue admits Workloads; `cluster_queue` is None if it does not exist."""
    problems: list[tuple[str, str]] = []
    if queue.deleting:
        problems.append((QueueReason.TERMINATING, "is terminating"))
    if queue.stop_policy != "None":
        problems.append((QueueReason.STOPPED, "is stopped"))
    name = queue.cluster_queue
    if cluster_queue is None:
        problems.append((QueueReason.CLUSTER_QUEUE_MISSING, f"ClusterQueue {name} doesn't exist"))
    elif not cluster_queue.active:
        problems.append((QueueReason.CLUSTER_QUEUE_INACTIVE, f"ClusterQueue {name} is inactive"))
    return Activity(
        tuple(problems),
        active_message="Can submit new workloads to localQueue",
        inactive_message="Can't submit new workloads to localQueue",
    )
