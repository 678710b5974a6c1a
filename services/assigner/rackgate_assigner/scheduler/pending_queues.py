"""Pending Workloads by ClusterQueue, kept from one scheduling cycle to the next.

A plan ends when nothing more can be admitted or preempted. So the next plan need only decide about
what changed since: this module keeps what is *due*, and the answers that still hold.

- Workloads of one ClusterQueue with the same shape are in one *bucket*, in the cycle order. They
  get the same answer, so the answer for the first one holds for all.
- A bucket is active, or *parked*: inadmissible in the present state, in some cases by quota alone,
  whatever domains are free. One that joins a parked bucket gets its answer at once. One that comes
  before the Workload that was decided about is decided about again: it may preempt others that are
  newer than itself.
- Where usage orders the LocalQueues of a ClusterQueue (`local_queue_order`), no bucket mixes them.
  The head is the first of the bucket with the smallest *rank*, then in the cycle order. Ranks grow
  in a plan and may be any others in the next one, so the head is chosen when a line is asked for
  it, and stays until then. If another one is the head at the next plan, its root is due.
- The *root* of a ClusterQueue is the top Cohort above it. Usage of one root cannot affect quota of
  another one, so roots are due one by one. Roots meet only in domains of a flavor's topology.
- A head may *hold room*: it waits for Workloads that are preempted for it. Then it is the *holder*
  of its ClusterQueue, and the next one is the head. Others must not take the room of a holder, so
  it is decided about together with every root that shares a flavor with it. If it goes without
  being admitted, what was inadmissible because of it is decided about again.
- A head that no longer fits after others is parked until other heads stay: those of StrictFIFO
  queues and holders, which take room in each cycle.
- An answer is reported for each Workload once, and again when it changes.

A caller may stop asking a `Line` for heads at any time. What is parked stays parked, the root stays
due, and the next plan goes on with the rest. Roots come in the order in which they became due, so
between two wakes every Workload is decided about. A wake starts its root from the first one again,
as in Kueue: freed room belongs to the Workload that is first in order.

Complexity: O(log n) for each Workload put, dropped, or taken from a line, amortized. Waking a root
costs its parked buckets, not their Workloads; waking a flavor costs its ClusterQueues, and the
buckets that wait for domains. A plan costs the active buckets of ClusterQueues
with an order by usage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, ItemsView, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import count, islice
from typing import Final, Generic, TypeAlias, TypeVar

from rackgate.api.names import PendingReason
from rackgate_assigner.scheduler.eligibility import Eligible, shape_of
from rackgate_assigner.scheduler.quota_cycle import HeadRequeue
from rackgate_assigner.workload.decisions import Deactivate, Requeue
from rackgate_assigner.workload.info import WorkloadInfo

# Unique for each Workload, whose key comes last; the smallest is first.
OrderKey: TypeAlias = tuple[int, str, str]
Order: TypeAlias = Callable[[WorkloadInfo], OrderKey]
Rank: TypeAlias = Callable[[WorkloadInfo], float]

K = TypeVar("K", str, int)

# What is reported for the members of an active bucket: that they wait for those ahead.
_BEHIND: Final = Requeue("", PendingReason.PENDING_EVALUATION, "")


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """How many eligible Workloads of one ClusterQueue are pending, by Kueue's `status`."""

    active: int = 0
    inadmissible: int = 0


class PendingQueues:
    """All pending Workloads of the process; no clock and no client.

    Attributes:
        ineligible: Workloads that no ClusterQueue may admit now, by key.
    """

    def __init__(
        self,
        order: Order,
        root_of: Callable[[str], Hashable],
        flavors_of: Callable[[str], Collection[str]],
        is_by_usage: Callable[[str], bool] = lambda _name: False,
    ) -> None:
        """Start empty; see `reset`."""
        self.reset(order, root_of, flavors_of, is_by_usage)

    def reset(
        self,
        order: Order,
        root_of: Callable[[str], Hashable],
        flavors_of: Callable[[str], Collection[str]],
        is_by_usage: Callable[[str], bool] = lambda _name: False,
    ) -> None:
        """Forget everything: priority classes, ClusterQueues, Cohorts or flavors have changed.

        Args:
            order: the place of a Workload in the cycle order; unique.
            root_of: the root of a ClusterQueue.
            flavors_of: flavors with a topology that a ClusterQueue has.
            is_by_usage: whether the rank of a Workload in a ClusterQueue comes before `order`.
        """
        self._order, self._root_of, self._flavors_of = order, root_of, flavors_of
        self._is_by_usage = is_by_usage
        self._by_usage: list[_Queue] = []
        self.ineligible: dict[str, WorkloadInfo] = {}
        self._places: dict[str, _Place] = {}
        self._queues: dict[str, _Queue] = {}
        self._roots: dict[Hashable, _Root] = {}
        # Dicts keep the order in which entries were added; only their keys matter.
        self._roots_by_flavor: dict[str, dict[_Root, None]] = {}
        self._due: dict[_Root, None] = {}
        self._holding: dict[_Queue, None] = {}
        # Their heads held room, and were parked: what waits behind that room is woken by `done`.
        self._released: dict[_Queue, None] = {}
        # Parked because they no longer fitted after others, with the heads that stayed then.
        self._after_others: dict[_Bucket, frozenset[str]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places) + len(self.ineligible)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self.ineligible

    def info(self, key: str) -> WorkloadInfo | None:
        """A pending Workload."""
        place = self._places.get(key)
        return place.eligible.info if place is not None else self.ineligible.get(key)

    def counts(self, cluster_queue: str) -> PendingCounts:
        """How many eligible Workloads a ClusterQueue has; O(1)."""
        queue = self._queues.get(cluster_queue)
        return PendingCounts(queue.active, queue.inadmissible) if queue else PendingCounts()

    # What the watches say.

    def put(self, info: WorkloadInfo, result: Eligible | Requeue | Deactivate) -> Requeue | None:
        """A pending Workload is new, or may get another answer than before.

        Args:
            info: the Workload.
            result: of the check whether a ClusterQueue may admit it.

        Returns:
            The answer of its parked bucket, which holds for it, too; the caller reports it.
        """
        key = info.key
        self.drop(key)
        if not isinstance(result, Eligible):
            self.ineligible[key] = info
            return None
        queue = self._queue(result.queue.name)
        bucket = self._enter(queue, result, self._order(info))
        requeue = bucket.requeue
        if requeue is None:
            self._due.setdefault(queue.root)
            return None
        return replace(requeue, workload=key)

    def refresh(self, info: WorkloadInfo) -> None:
        """Fields of a Workload that decide nothing have changed, such as its conditions.

        For a change of its queue, order or shape, use `put`.
        """
        place = self._places.get(info.key)
        if place is not None:
            place.eligible = replace(place.eligible, info=info)
        elif info.key in self.ineligible:
            self.ineligible[info.key] = info

    def drop(self, key: str) -> None:
        """A Workload is no longer pending, known or not."""
        self.ineligible.pop(key, None)
        place = self._places.get(key)
        if place is None:
            return
        queue = place.bucket.queue
        was_head, held_room = queue.first() == key, queue.holder == key
        self._leave(key)
        if held_room:
            self._wake_around(queue)
        elif was_head:
            self._due.setdefault(queue.root)

    def set_aside(self, eligible: Eligible, requeue: Requeue) -> None:
        """A Workload that a line returned is not admitted: it is parked alone."""
        key = eligible.info.key
        self.drop(key)
        queue = self._queue(eligible.queue.name)
        self._park_alone(queue, eligible, self._order(eligible.info), requeue)

    # What may change the answers.

    def wake_queue(self, cluster_queue: str) -> None:
        """Quota of a ClusterQueue was released, or Workloads in it may be preempted now."""
        queue = self._queues.get(cluster_queue)
        root = queue.root if queue else self._roots.get(self._root_of(cluster_queue))
        if root is not None:
            self._wake(root)

    def wake_flavor(self, flavor: str) -> None:
        """Capacity in the topology of a flavor was released, or its nodes changed."""
        for root in self._roots_by_flavor.get(flavor, ()):
            self._wake_by_domains(root)

    def wake_all(self) -> None:
        """Anything may have changed."""
        for root in self._roots.values():
            self._wake(root)

    def touch(self, key: str) -> None:
        """Decide about one eligible Workload again, with all of its shape."""
        place = self._places.get(key)
        if place is not None:
            queue = place.bucket.queue
            self._activate(place.bucket)
            self._due.setdefault(queue.root)

    # One plan.

    def due(self, rank: Rank = lambda _info: 0.0) -> dict[str, Line]:
        """Lines of all ClusterQueues that are to be decided about together, by name.

        These are the active ones of due roots, and those with a holder whose room the due roots
        could take. They come in the order in which their roots became due.

        Args:
            rank: for ClusterQueues with an order by usage; the smallest comes first. Equal for
                Workloads of one bucket; it may grow until the lines are done.
        """
        self._rank = rank
        for queue in self._by_usage:
            queue.turns = [
                (rank(self._info(order)), order, one) for one, order in queue.heads.items()
            ]
            heapify(queue.turns)
            before = queue.chosen
            if self._choose(queue) not in (before, -1):
                self._due.setdefault(queue.root)
        roots = dict(self._due)
        flavors = {flavor for root in roots for flavor in root.flavors}
        holding = {queue.root: None for queue in self._holding if queue.root not in roots}
        while found := [root for root in holding if not flavors.isdisjoint(root.flavors)]:
            for root in found:
                del holding[root]
                roots[root] = None
                flavors.update(root.flavors)
        return {
            queue.name: Line(self, queue)
            for root in roots
            for queue in sorted(root.queues, key=lambda queue: queue.name)
            if queue.heads or queue.holder
        }

    @property
    def is_due(self) -> bool:
        """Whether anything is to be decided."""
        return bool(self._due)

    def done(self, cluster_queues: Iterable[str]) -> None:
        """Nothing more can be admitted from these lines; roots without others are due no longer.

        Nor are roots of which nothing is left to decide.

        If a holder gave up its room, others are due now that may take it. So are those that no
        longer fitted after others, if other heads stay now.
        """
        finished = set(cluster_queues)
        roots = {self._queues[name].root: None for name in finished if name in self._queues}
        for root in roots:
            if all(queue.name in finished or not queue.heads for queue in root.queues):
                self._due.pop(root, None)
        for root in list(self._due):
            if not any(queue.heads or queue.holder for queue in root.queues):
                del self._due[root]
        released, self._released = self._released, {}
        for queue in released:
            self._wake_around(queue)
        for bucket, stayed in list(self._after_others.items()):
            if self._staying_around(bucket.queue) != stayed:
                self._due.setdefault(bucket.queue.root)
                self._activate(bucket)

    # For the lines.

    def _head(self, queue: _Queue) -> Eligible | None:
        key = queue.first()
        return None if key is None else self._places[key].eligible

    def _next_head(self, queue: _Queue) -> Eligible | None:
        if queue.by_usage:
            self._choose(queue)
        return self._head(queue)

    def _choose(self, queue: _Queue) -> int:
        """Choose the bucket of the head by the present ranks; returns its number, or -1."""
        queue.chosen = -1
        while queue.turns and queue.chosen < 0:
            _, _, number = turn = queue.turns[0]
            order = queue.heads.order_of(number)
            if order is None:
                heappop(queue.turns)
            elif (now := (self._rank(self._info(order)), order, number)) != turn:
                heapreplace(queue.turns, now)
            else:
                queue.chosen = number
        return queue.chosen

    def _info(self, order: OrderKey) -> WorkloadInfo:
        return self._places[order[2]].eligible.info

    def _take_head(self, queue: _Queue) -> Eligible:
        eligible = self._head(queue)
        if eligible is None:
            raise LookupError(f"no active Workload in ClusterQueue {queue.name}")
        self._leave(eligible.info.key)
        return eligible

    def _known(self, queue: _Queue) -> HeadRequeue | None:
        key = queue.first()
        return None if key is None else self._places[key].bucket.known

    def _park_head(
        self,
        queue: _Queue,
        requeue: Requeue,
        *,
        same_shape: bool,
        by_quota: bool,
        after_others: bool,
        known: HeadRequeue | None,
    ) -> list[Eligible]:
        key = queue.first()
        if key is None:
            raise LookupError(f"no active Workload in ClusterQueue {queue.name}")
        place = self._places[key]
        if not same_shape:
            self._leave(key)
            bucket = self._park_alone(queue, place.eligible, place.order, requeue)
            if after_others:
                self._after_others[bucket] = self._staying_around(queue)
            return [place.eligible]
        bucket = place.bucket
        answer = replace(requeue, workload="")
        reported = sorted(bucket.unreported) if bucket.reported == answer else list(bucket.members)
        self._park(bucket, answer, place.order, by_quota=by_quota)
        bucket.reported, bucket.unreported = answer, set()
        bucket.known = known
        return [self._places[each].eligible for each in reported]

    def _behind(self, queue: _Queue, most: int) -> list[Eligible]:
        start = 0 if queue.holder else 1
        end = start + most
        # The first ones are in the buckets whose first members come first.
        firsts = islice(queue.heads.in_order(), end)
        buckets = [self._places[order[2]].bucket for order, _ in firsts]
        found = merge(*(bucket.members.in_order() for bucket in buckets))
        return [self._places[key].eligible for _, key in islice(found, start, end)]

    def _is_near_holder(self, queue: _Queue) -> bool:
        return any(
            other.root is queue.root or not set(queue.flavors).isdisjoint(other.flavors)
            for other in self._holding
            if other is not queue
        )

    def _left(self, queue: _Queue, answered: Collection[str]) -> list[Eligible]:
        found: list[str] = []
        for bucket in queue.with_unreported.values():
            found += sorted(bucket.unreported) if bucket.reported == _BEHIND else bucket.members
            bucket.reported, bucket.unreported = _BEHIND, set()
        queue.with_unreported.clear()
        head = queue.first()
        # Those with their own answers: once it no longer holds, this is reported for them.
        for key in answered if head is None else (head, *answered):
            self._mark_unreported(self._places[key].bucket, key)
        return [self._places[each].eligible for each in found]

    def _staying_around(self, queue: _Queue) -> frozenset[str]:
        """Heads that take room in each cycle, of what shares quota or a flavor with a queue."""
        roots = {queue.root: None}
        for flavor in queue.root.flavors:
            roots.update(self._roots_by_flavor[flavor])
        found = set()
        for other in (each for root in roots for each in root.queues):
            head = self._head(other)
            if head is not None and head.queue.is_strict:
                found.add(head.info.key)
            if other.holder:
                found.add(other.holder)
        return frozenset(found)

    def _holder(self, queue: _Queue) -> Eligible | None:
        return self._places[queue.holder].eligible if queue.holder else None

    def _hold(self, queue: _Queue) -> None:
        """The head is the holder from now on."""
        key = queue.first()
        if key is None or queue.holder:
            raise LookupError(f"ClusterQueue {queue.name} has no head, or has a holder")
        place = self._places[key]
        self._leave(key)
        bucket = _Bucket(next(self._numbers), queue, place.bucket.shape, alone=True)
        bucket.members.set(key, place.order)
        self._places[key] = _Place(bucket, place.order, place.eligible)
        queue.active, queue.holder = queue.active + 1, key
        self._holding[queue] = None

    def _take_holder(self, queue: _Queue) -> Eligible:
        """The holder is admitted: it uses the room now."""
        eligible = self._places[queue.holder].eligible
        self._leave(eligible.info.key)
        return eligible

    def _park_holder(self, queue: _Queue, requeue: Requeue) -> Eligible:
        """The holder gives up its room."""
        place = self._places[queue.holder]
        self._leave(queue.holder)
        self._park_alone(queue, place.eligible, place.order, requeue)
        self._released[queue] = None
        return place.eligible

    # Places.

    def _queue(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            top = self._root_of(name)
            root = self._roots.get(top)
            if root is None:
                root = self._roots[top] = _Root()
            queue = self._queues[name] = _Queue(name, root, self._is_by_usage(name))
            if queue.by_usage:
                self._by_usage.append(queue)
            root.queues.append(queue)
            for flavor in self._flavors_of(name):
                root.flavors[flavor] = None
                queue.flavors.append(flavor)
                self._roots_by_flavor.setdefault(flavor, {})[root] = None
        return queue

    def _enter(self, queue: _Queue, eligible: Eligible, order: OrderKey) -> _Bucket:
        """Add a Workload to the bucket of its shape."""
        info = eligible.info
        shape = shape_of(info, by_usage=queue.by_usage)
        bucket = queue.by_shape.get(shape)
        if bucket is None:
            bucket = queue.by_shape[shape] = _Bucket(next(self._numbers), queue, shape)
        elif bucket.requeue is not None and order < bucket.decided_about:
            self._activate(bucket)
        bucket.members.set(info.key, order)
        self._places[info.key] = _Place(bucket, order, eligible)
        if bucket.requeue is None:
            queue.active += 1
            queue.update(bucket)
            self._mark_unreported(bucket, info.key)
        else:
            queue.inadmissible += 1
        return bucket

    def _leave(self, key: str) -> None:
        place = self._places.pop(key)
        bucket, queue = place.bucket, place.bucket.queue
        if queue.holder == key:
            queue.holder = ""
            self._holding.pop(queue, None)
        self._after_others.pop(bucket, None)
        bucket.members.discard(key)
        bucket.unreported.discard(key)
        if bucket.requeue is None:
            queue.active -= 1
            queue.update(bucket)
        else:
            queue.inadmissible -= 1
        if not bucket.members:
            queue.parked.pop(bucket.number, None)
            queue.root.by_domains.pop(bucket.number, None)
            queue.with_unreported.pop(bucket.number, None)
            if not bucket.alone:
                del queue.by_shape[bucket.shape]

    def _park_alone(
        self, queue: _Queue, eligible: Eligible, order: OrderKey, requeue: Requeue
    ) -> _Bucket:
        info = eligible.info
        shape = shape_of(info, by_usage=queue.by_usage)
        bucket = _Bucket(next(self._numbers), queue, shape, alone=True)
        bucket.members.set(info.key, order)
        self._places[info.key] = _Place(bucket, order, eligible)
        queue.active += 1
        self._park(bucket, replace(requeue, workload=""), order)
        return bucket

    def _park(
        self, bucket: _Bucket, requeue: Requeue, decided_about: OrderKey, *, by_quota: bool = False
    ) -> None:
        queue, size = bucket.queue, len(bucket.members)
        bucket.requeue, bucket.decided_about = requeue, decided_about
        queue.active, queue.inadmissible = queue.active - size, queue.inadmissible + size
        queue.parked[bucket.number] = bucket
        if not by_quota:
            queue.root.by_domains[bucket.number] = bucket
        queue.with_unreported.pop(bucket.number, None)
        queue.update(bucket)

    def _activate(self, bucket: _Bucket) -> None:
        """Parked Workloads are to be decided about again."""
        if bucket.requeue is None:
            return
        queue = bucket.queue
        if bucket.alone:
            (key,) = bucket.members
            place = self._places[key]
            self._leave(key)
            joined = self._enter(queue, place.eligible, place.order)
            self._activate(joined)
            self._mark_unreported(joined, key)  # it had an answer of its own
            return
        size = len(bucket.members)
        bucket.requeue = None
        queue.active, queue.inadmissible = queue.active + size, queue.inadmissible - size
        del queue.parked[bucket.number]
        queue.root.by_domains.pop(bucket.number, None)
        queue.with_unreported[bucket.number] = bucket
        queue.update(bucket)

    def _mark_unreported(self, bucket: _Bucket, key: str) -> None:
        bucket.unreported.add(key)
        bucket.queue.with_unreported[bucket.number] = bucket

    def _wake(self, root: _Root) -> None:
        for queue in root.queues:
            for bucket in list(queue.parked.values()):
                self._activate(bucket)
        self._due.setdefault(root)

    def _wake_by_domains(self, root: _Root) -> None:
        """Activate what does not wait for quota alone; the root is due if there is anything."""
        for bucket in list(root.by_domains.values()):
            self._activate(bucket)
        if any(queue.active for queue in root.queues):
            self._due.setdefault(root)

    def _wake_around(self, queue: _Queue) -> None:
        """The head of a queue gave up the room that it held."""
        self._wake(queue.root)
        for flavor in queue.flavors:
            self.wake_flavor(flavor)


class Line:
    """The active Workloads of one ClusterQueue in their order, for one plan."""

    __slots__ = ("_pending", "_queue")

    def __init__(self, pending: PendingQueues, queue: _Queue) -> None:
        self._pending, self._queue = pending, queue

    def head(self) -> Eligible | None:
        """The first one; None when all are admitted or parked.

        With an order by usage it is chosen here, and is the first one for the other methods.
        """
        return self._pending._next_head(self._queue)

    def pop(self) -> Eligible:
        """Remove the first one: it is admitted.

        If its admission is not carried out, the caller puts it again, or sets it aside.
        """
        return self._pending._take_head(self._queue)

    def known(self) -> HeadRequeue | None:
        """The last result for the shape of the first one, if it says how long it holds."""
        return self._pending._known(self._queue)

    def park(
        self,
        requeue: Requeue,
        *,
        same_shape: bool = False,
        by_quota: bool = False,
        after_others: bool = False,
        known: HeadRequeue | None = None,
    ) -> list[Eligible]:
        """The first one is inadmissible.

        Args:
            requeue: its answer.
            same_shape: the answer holds for all of its shape.
            by_quota: with `same_shape`: it holds whatever domains are free.
            after_others: without `same_shape`: it holds as long as the same heads stay.
            known: with `same_shape`: the result, if it says how long it holds.

        Returns:
            Those whose answer is to be reported: it is new, or another one than before.
        """
        return self._pending._park_head(
            self._queue,
            requeue,
            same_shape=same_shape,
            by_quota=by_quota,
            after_others=after_others,
            known=known,
        )

    def holder(self) -> Eligible | None:
        """The one that waits for Workloads that are preempted for it."""
        return self._pending._holder(self._queue)

    def hold_room(self) -> None:
        """The first one is the holder from now on; there must be no other one."""
        self._pending._hold(self._queue)

    def pop_holder(self) -> Eligible:
        """Remove the holder: it is admitted."""
        return self._pending._take_holder(self._queue)

    def park_holder(self, requeue: Requeue) -> Eligible:
        """The holder is inadmissible; returns it, to report its answer."""
        return self._pending._park_holder(self._queue, requeue)

    def behind(self, most: int) -> list[Eligible]:
        """The next active ones behind the holder; without a holder, behind the first one."""
        return self._pending._behind(self._queue, most)

    def take(self, key: str) -> None:
        """Remove an active one that need not be the first: it is admitted. See `pop`."""
        self._pending._leave(key)

    def is_near_holder(self) -> bool:
        """Whether another ClusterQueue has a holder, with which it shares quota or a flavor."""
        return self._pending._is_near_holder(self._queue)

    def left(self, answered: Collection[str] = ()) -> list[Eligible]:
        """Those of which is to be reported that they wait for others; for a finished line.

        With them is the first one, if it stays: it gets its own answer instead.

        Args:
            answered: keys of active ones that get their own answers, too.
        """
        return self._pending._left(self._queue, answered)


class _Ordered(Generic[K]):
    """Items by their order.

    Entries of items that are gone, or have another order now, stay in the heap until they are the
    first, or until they are more than half.
    """

    __slots__ = ("_entries", "_orders")

    def __init__(self) -> None:
        self._orders: dict[K, OrderKey] = {}
        self._entries: list[tuple[OrderKey, K]] = []

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[K]:
        return iter(self._orders)

    def items(self) -> ItemsView[K, OrderKey]:
        """All items with their orders, as they were added."""
        return self._orders.items()

    def order_of(self, item: K) -> OrderKey | None:
        """The order of an item, if it is there."""
        return self._orders.get(item)

    def set(self, item: K, order: OrderKey) -> None:
        """Add an item, or change its order."""
        if self._orders.get(item) != order:
            self._orders[item] = order
            heappush(self._entries, (order, item))
            self._forget_old_entries()

    def discard(self, item: K) -> None:
        """Remove an item, if it is there."""
        if self._orders.pop(item, None) is not None:
            self._forget_old_entries()

    def first(self) -> tuple[OrderKey, K] | None:
        """The first item and its order."""
        while self._entries:
            order, item = self._entries[0]
            if self._orders.get(item) == order:
                return self._entries[0]
            heappop(self._entries)
        return None

    def in_order(self) -> Iterator[tuple[OrderKey, K]]:
        """All items with their orders, for as long as nothing changes; O(log n) for each."""
        entries, last = self._entries, None
        open_ends = [(entries[0], 0)] if entries else []
        while open_ends:
            entry, index = heappop(open_ends)
            if entry != last and self._orders.get(entry[1]) == entry[0]:
                yield entry
            last = entry
            for child in range(2 * index + 1, min(2 * index + 3, len(entries))):
                heappush(open_ends, (entries[child], child))

    def _forget_old_entries(self) -> None:
        if len(self._entries) > 2 * len(self._orders) + 8:
            self._entries = [(order, item) for item, order in self._orders.items()]
            heapify(self._entries)


@dataclass(slots=True, eq=False)
class _Root:
    """ClusterQueues that may share quota.

    Attributes:
        by_domains: parked buckets that do not wait for quota alone, by number.
    """

    queues: list[_Queue] = field(default_factory=list)
    flavors: dict[str, None] = field(default_factory=dict)
    by_domains: dict[int, _Bucket] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Queue:
    """Pending Workloads of one ClusterQueue.

    Attributes:
        by_usage: the rank of a Workload comes before its order.
        by_shape: buckets, but for those that are parked alone.
        parked: by number.
        with_unreported: active buckets with `unreported` members, by number.
        heads: active buckets by their first member.
        turns: with an order by usage: those of this plan by their rank, some may be outdated.
        chosen: with an order by usage: number of the bucket that the head is in, or was in; or -1.
        active: number of Workloads; the same for `inadmissible`.
        holder: key of the Workload that holds room, in a bucket of its own; else "".
    """

    name: str
    root: _Root
    by_usage: bool = False
    flavors: list[str] = field(default_factory=list)
    by_shape: dict[Hashable, _Bucket] = field(default_factory=dict)
    parked: dict[int, _Bucket] = field(default_factory=dict)
    with_unreported: dict[int, _Bucket] = field(default_factory=dict)
    heads: _Ordered[int] = field(default_factory=_Ordered)
    turns: list[tuple[float, OrderKey, int]] = field(default_factory=list)
    chosen: int = -1
    active: int = 0
    inadmissible: int = 0
    holder: str = ""

    def first(self) -> str | None:
        """The key of the first active Workload; with an order by usage, in the chosen bucket."""
        if self.by_usage:
            order = self.heads.order_of(self.chosen)
            return None if order is None else order[2]
        found = self.heads.first()
        return None if found is None else found[0][2]

    def update(self, bucket: _Bucket) -> None:
        """The first member of a bucket may have changed, or whether it is active."""
        found = bucket.members.first() if bucket.requeue is None else None
        if found is None:
            self.heads.discard(bucket.number)
        else:
            self.heads.set(bucket.number, found[0])


@dataclass(slots=True, eq=False)
class _Bucket:
    """Workloads of one ClusterQueue and shape.

    Attributes:
        alone: of one Workload that was parked without the others of its shape.
        requeue: the answer that parked it, without a key; None while it is active.
        decided_about: the order of the Workload that got this answer.
        reported: the last one reported for all members, but for those in `unreported`.
        known: the last result for the whole shape, if it says how long it holds.
    """

    number: int
    queue: _Queue
    shape: Hashable
    alone: bool = False
    members: _Ordered[str] = field(default_factory=_Ordered)
    requeue: Requeue | None = None
    decided_about: OrderKey = (0, "", "")
    reported: Requeue | None = None
    known: HeadRequeue | None = None
    unreported: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Place:
    """Where one eligible Workload is."""

    bucket: _Bucket
    order: OrderKey
    eligible: Eligible
