"""What the pods of each managed job take, in the words of the queue that they are charged to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rackgate_invariants.cluster import Cluster, Family, Group
from rackgate_invariants.nodes import Places
from rackgate_invariants.owners import claimed
from rackgate_invariants.rows.rows import WorkloadRow
from rackgate_invariants.running_pods import Flavors, Lives, lives_of, offered_by

Total = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Account:
    """One job.

    Attributes:
        local_queue: `namespace/name`, "" where none is known.
        cluster_queue: that it was admitted to, else the one that its LocalQueue leads to.
        granted: what its Workloads hold.
        staying: what pods take that are not being deleted.
        living: what all of its pods take that live.
        admitted: a Workload of it is admitted.
        bound_at: when the latest of the pods was bound.
    """

    local_queue: str
    cluster_queue: str
    granted: Total
    staying: Total
    living: Total
    admitted: bool
    bound_at: float


def lives(group: Group, places: Places) -> Lives:
    """What lives of a group; remembered until one of its pods changes."""
    if group.lives is None:
        group.lives = lives_of(group.pods.values(), group.job, group.replicated(), places)
    return group.lives


def all_lives(group: Group, groups: Mapping[str, Group], places: Places) -> list[Lives]:
    """Also the pods without a controller that name one of its Workloads."""
    found = [lives(group, places)] if group.pods else []
    for workload in group.workloads.values():
        left = groups.get(claimed(workload.namespace, workload.name))
        if left is not None and left.pods:
            found.append(lives(left, places))
    return found


@dataclass(frozen=True, slots=True)
class Terms:
    """What queues lead to and offer.

    Attributes:
        feeds: ClusterQueue of each LocalQueue.
        offered: flavors by ClusterQueue and resource, in its order.
    """

    feeds: Mapping[str, str]
    offered: Mapping[str, Mapping[str, tuple[str, ...]]]


def terms_of(cluster: Cluster) -> Terms:
    """The queues of a reading."""
    return Terms(
        {queue.key: queue.cluster_queue for queue in cluster.local_queues},
        {queue.key: offered_by(queue) for queue in cluster.cluster_queues},
    )


def accounts(terms: Terms, groups: Mapping[str, Group], places: Places) -> list[Account]:
    """Accounts of all jobs with pods that live; remembered while nothing of them changes."""
    found = []
    for group in groups.values():
        if not group.root or not (group.workloads or group.governed):
            continue
        if group.account is None or group.account[0] is not terms:
            group.account = (terms, _account(group, terms, groups, places))
        if group.account[1] is not None:
            found.append(group.account[1])
    return found


def _account(
    group: Group, terms: Terms, groups: Mapping[str, Group], places: Places
) -> Account | None:
    every = [one for one in all_lives(group, groups, places) if one.total]
    families = group.families() if every else []
    queues = _queues(group, families, terms.feeds) if every else None
    if queues is None:
        return None
    local, cluster_queue = queues
    flavors = Flavors(terms.offered.get(cluster_queue, {}))
    flavors.prefer(podset for family in families for podset in family.parent.podsets)
    staying, living, granted = Total(), Total(), Total()
    for one in every:
        stay = flavors.amounts(one.staying)
        staying.update(stay)
        living.update(stay)
        living.update(flavors.amounts(one.leaving))
    for family in families:
        for workload in (family.parent, *family.slices):
            if group.gave_up(workload):
                continue
            granted.update(granted_to(workload))
    return Account(
        local,
        cluster_queue,
        granted,
        staying,
        living,
        any(family.parent.holds and family.parent.admitted for family in families),
        max(one.bound_at for one in every),
    )


def _queues(
    group: Group, families: list[Family], feeds: Mapping[str, str]
) -> tuple[str, str] | None:
    """LocalQueue and ClusterQueue: of the Workload that holds quota, else of the job.

    Where both are gone but for a Workload that holds nothing, of that one.
    """
    holding = next((one.parent for one in families if one.parent.holds), None)
    if holding is not None:
        return holding.queue, holding.cluster_queue
    queue = group.job.queue if group.job is not None and group.governed else ""
    if not queue and group.job is None:
        queue = next((one.parent.queue for one in families), "")
    return (queue, feeds.get(queue, "")) if queue else None


def granted_to(workload: WorkloadRow) -> Total:
    """What a Workload holds, by flavor and resource."""
    found: Total = Counter()
    for podset in workload.podsets if workload.holds else ():
        for resource, flavor in podset.flavors.items():
            found[flavor, resource] += podset.held(resource)
    return found
