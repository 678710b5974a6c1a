"""Why a Workload with quota is not preempted for a pending one.

The answer names the first rule that forbids it, in the order in which preemption applies them. A
Workload that no rule forbids to preempt is left alone because its end would not be enough.

Inputs: a state in which nothing is released; it is the same when the call returns.
Complexity: a look at the path of each Workload to the root.
Source: conformance/quota, sections 8 and 10.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from rackgate_assigner.preemption.fair_sharing import below_common_cohort, is_fairer
from rackgate_assigner.preemption.targets import Preemptor
from rackgate_assigner.quota.queues import LOWER, LOWER_OR_NEWER, NEVER
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode


class NotPreemptedReason(StrEnum):
    """The rule that keeps a Workload."""

    STOPPING = "stopping"
    NO_SHARED_QUOTA = "noSharedQuota"
    NOT_NEEDED = "notNeeded"
    WITHIN_CLUSTER_QUEUE = "withinClusterQueue"
    RECLAIM_WITHIN_COHORT = "reclaimWithinCohort"
    PRIORITY = "priority"
    OLDER = "older"
    NOT_BORROWING = "notBorrowing"
    BORROW_WITHIN_COHORT = "borrowWithinCohort"
    FAIR_SHARING = "fairSharing"
    NOT_ENOUGH = "notEnough"


class Missing(StrEnum):
    """What a pending Workload lacks."""

    QUOTA = "it would not fit"
    DOMAIN = "the pods would not fit in a domain"
    # Its ClusterQueue may not preempt for a request above the nominal quota, which has to borrow.
    NOMINAL_QUOTA = "nothing is preempted"


class WhyNot(NamedTuple):
    """The rule, and a sentence without a full stop."""

    reason: NotPreemptedReason
    text: str


def why_not_preempted(
    state: QuotaState, preemptor: Preemptor, workload: RunningWorkload, missing: Missing
) -> WhyNot:
    """Why a Workload is not preempted.

    Args:
        state: with everything in use that is in use.
        preemptor: a pending Workload without preemption targets.
        workload: one of those that hold quota.
        missing: what the preemptor lacks.
    """
    if workload.evicted:
        return WhyNot(NotPreemptedReason.STOPPING, "it is being stopped already")
    node, other = state.tree.queues[preemptor.queue.name], state.node_of(workload)
    if node.root is not other.root:
        text = f'its ClusterQueue "{other.name}" shares no quota with "{node.name}"'
        return WhyNot(NotPreemptedReason.NO_SHARED_QUOTA, text)
    if not any(pair in workload.usage for pair in preemptor.needed):
        text = "it uses no flavor and resource that must be freed"
        return WhyNot(NotPreemptedReason.NOT_NEEDED, text)
    if node is other:
        found = _by_policy(preemptor, workload, within=True)
    else:
        found = _by_policy(preemptor, workload, within=False) or _in_cohort(
            state, preemptor, workload, node, other
        )
    if found is not None:
        return found
    if missing is Missing.NOMINAL_QUOTA:
        text = _no_borrowing(preemptor)
        return WhyNot(NotPreemptedReason.BORROW_WITHIN_COHORT, text)
    text = f"even without all Workloads that may be preempted, {missing.value}"
    return WhyNot(NotPreemptedReason.NOT_ENOUGH, text)


def _by_policy(preemptor: Preemptor, workload: RunningWorkload, *, within: bool) -> WhyNot | None:
    """What the policy of the ClusterQueue says about priority and age."""
    queue = preemptor.queue
    field = "withinClusterQueue" if within else "reclaimWithinCohort"
    policy = queue.within_cluster_queue if within else queue.reclaim_within_cohort
    if policy == NEVER:
        text = f'spec.preemption.{field} of ClusterQueue "{queue.name}" is Never'
        return WhyNot(NotPreemptedReason(field), text)
    mine, its = preemptor.priority, workload.priority
    if (policy == LOWER and its >= mine) or (policy == LOWER_OR_NEWER and its > mine):
        text = f"its priority {its} is not lower than {mine} (spec.preemption.{field}: {policy})"
        return WhyNot(NotPreemptedReason.PRIORITY, text)
    newer = workload.queue_timestamp > preemptor.queue_timestamp
    if policy == LOWER_OR_NEWER and its == mine and not newer:
        text = f"it has the same priority and is not newer (spec.preemption.{field}: {policy})"
        return WhyNot(NotPreemptedReason.OLDER, text)
    return None


def _in_cohort(
    state: QuotaState,
    preemptor: Preemptor,
    workload: RunningWorkload,
    node: QuotaNode,
    other: QuotaNode,
) -> WhyNot | None:
    """What keeps a Workload of another ClusterQueue that the policy allows to preempt."""
    _, highest = below_common_cohort(node, other)
    path = other.path[: other.path.index(highest) + 1]
    if state.fair_sharing is not None:
        path = path[:1]  # shares decide about the Cohorts above
    lender = next((one for one in path if one.within_nominal(preemptor.needed)), None)
    if lender is not None:
        kind = "ClusterQueue" if lender.is_queue else "Cohort"
        text = f'its {kind} "{lender.name}" borrows none of the quota that is missing'
        return WhyNot(NotPreemptedReason.NOT_BORROWING, text)
    if state.fair_sharing is not None:
        if is_fairer(state, preemptor, workload):
            return None
        text = f'ClusterQueue "{node.name}" would have the larger share'
        return WhyNot(NotPreemptedReason.FAIR_SHARING, text)
    if _is_within_own_quota(preemptor, node, highest):
        return None
    return _while_borrowing(preemptor, workload)


def _is_within_own_quota(preemptor: Preemptor, node: QuotaNode, highest: QuotaNode) -> bool:
    """Whether the request is within the quota of a node below the Cohort that both share."""
    rest = dict(preemptor.request)
    common = highest.parent
    for each in node.path:
        if each is common:
            return False
        if not any(each.borrows(pair, amount) for pair, amount in rest.items()):
            return True
        rest = {pair: max(0, amount - each.local_free(pair)) for pair, amount in rest.items()}
    return False


def _no_borrowing(preemptor: Preemptor) -> str:
    return (
        "the pending Workload has to borrow, and spec.preemption.borrowWithinCohort.policy of "
        f'ClusterQueue "{preemptor.queue.name}" is Never'
    )


def _while_borrowing(preemptor: Preemptor, workload: RunningWorkload) -> WhyNot | None:
    """What `borrowWithinCohort` says, as the preemptor would borrow itself."""
    queue = preemptor.queue
    policy, threshold = queue.borrow_within_cohort.policy, None
    if policy != NEVER:
        threshold = queue.borrow_within_cohort.max_priority_threshold
    name = "spec.preemption.borrowWithinCohort"
    if policy == NEVER:
        text = _no_borrowing(preemptor)
    elif workload.priority >= preemptor.priority:
        text = (
            f"the pending Workload has to borrow, and the priority {workload.priority} is not lower"
            f" than {preemptor.priority}"
        )
    elif threshold is not None and workload.priority > threshold:
        text = (
            f"the pending Workload has to borrow, and the priority {workload.priority} is above"
            f" {name}.maxPriorityThreshold {threshold}"
        )
    else:
        return None
    return WhyNot(NotPreemptedReason.BORROW_WITHIN_COHORT, text)
