"""Shares, and whom a head evicts with fair sharing (sections 9 and 10)."""

from __future__ import annotations

from tests.support.quota_oracle.plan import Victim
from tests.support.quota_oracle.preemption import Question, is_evicted, keys, order_of, put_back
from tests.support.quota_oracle.tree import Fr, Held, Node, State, frs, potential, sub

# Whether the weight is 0 and something is borrowed, and the number to compare.
Share = tuple[bool, float]
NONE: Share = (False, -1.0)


def over(state: State, node: Node) -> dict[Fr, int]:
    """What a node borrows."""
    if node.parent is None:
        return {}
    borrowed = {fr: state.usage(node, fr) - sub(node, fr) for fr in frs(node)}
    return {fr: amount for fr, amount in borrowed.items() if amount > 0}


def share(state: State, node: Node) -> Share:
    if node.parent is None:
        return False, 0.0
    sums: dict[str, int] = {}
    for (_, resource), amount in over(state, node).items():
        sums[resource] = sums.get(resource, 0) + amount
    ratio = 0.0
    for resource, amount in sums.items():
        lendable = sum(potential(node.parent, fr) for fr in frs(node.root) if fr[1] == resource)
        if lendable > 0:
            ratio = max(ratio, amount * 1000.0 / lendable)
    if ratio == 0:
        return False, 0.0
    return (True, ratio) if node.weight == 0 else (False, ratio / node.weight)


def find_fair(question: Question) -> list[Victim]:
    return _Search(question).run()


class _Search:
    def __init__(self, question: Question) -> None:
        self.question, self.own = question, question.head.queue
        self.incoming = Held("what the head requests", self.own, question.request)
        self.victims: list[Victim] = []

    def run(self) -> list[Victim]:
        ordered = self._candidates()
        done, retry = self._first(ordered)
        if not done:
            done = len(self.question.world.strategies) > 1 and self._second(retry)
        return put_back(self.question.state, self.victims, self.question.fits) if done else []

    def _candidates(self) -> list[Held]:
        question, state = self.question, self.question.state
        found = question.qualified(self.own, self.own.policy("withinClusterQueue"))
        for queue in self.own.root.queues:
            if queue is not self.own and any(state.borrows(queue, fr) for fr in question.need):
                found += question.qualified(queue, self.own.policy("reclaimWithinCohort"))
        return sorted(
            found,
            key=lambda held: (not is_evicted(held), held.queue is self.own, order_of(held)),
        )

    @property
    def _left(self) -> State:
        """Without the victims."""
        return self.question.state.without(keys(self.victims))

    @property
    def _now(self) -> State:
        """Without the victims, with what the head requests."""
        return self._left.plus(self.incoming)

    def _evict(self, held: Held, reason: str) -> bool:
        """Add a victim: whether the head fits now."""
        self.victims.append(Victim(held, reason))
        return self.question.fits(self._left)

    def _first(self, ordered: list[Held]) -> tuple[bool, list[Held]]:
        """Evict by the first strategy: whether the head fits, and who may be tried again."""
        question = self.question
        within = not any(self._now.borrows(self.own, fr) for fr in question.need)
        rule = question.world.strategies[0]
        retry: list[Held] = []
        tournament = _Tournament(self.own, ordered)
        while (queue := tournament.next(self._now)) is not None:
            if queue is self.own:
                if self._evict(tournament.pop(queue), "InClusterQueue"):
                    return True, retry
            elif within:
                if self._evict(tournament.pop(queue), "InCohortReclamation"):
                    return True, retry
            else:
                while tournament.left(queue):
                    held = tournament.pop(queue)
                    if not self._fair(held, rule):
                        retry.append(held)
                        continue
                    if self._evict(held, "InCohortFairSharing"):
                        return True, retry
                    break
        return False, sorted(retry, key=ordered.index)

    def _second(self, retry: list[Held]) -> bool:
        tournament = _Tournament(self.own, retry)
        while (queue := tournament.next(self._now)) is not None:
            held = tournament.pop(queue)
            tournament.drop(queue)
            if self._fair(held, "LessThanInitialShare") and self._evict(
                held, "InCohortFairSharing"
            ):
                return True
        return False

    def _fair(self, held: Held, rule: str) -> bool:
        """Whether evicting someone of another queue makes things fairer."""
        mine, other = self.own.path, held.queue.path
        common = next(node for node in mine if node in other)
        new = share(self._now, mine[mine.index(common) - 1])
        target = other[other.index(common) - 1]
        if rule == "LessThanOrEqualToFinalShare":
            return new <= share(self._now.without({held.key}), target)
        return new < share(self._now, target)


class _Tournament:
    """Which queue is to give up somebody next."""

    def __init__(self, own: Node, ordered: list[Held]) -> None:
        self.own, self.ordered = own, list(ordered)
        self.dropped: set[Node] = set()

    def left(self, queue: Node) -> list[Held]:
        return [held for held in self.ordered if held.queue is queue]

    def pop(self, queue: Node) -> Held:
        held = self.left(queue)[0]
        self.ordered.remove(held)
        return held

    def drop(self, node: Node) -> None:
        self.dropped.add(node)

    def next(self, state: State) -> Node | None:
        root = self.own.root
        if root is self.own:
            return root if root not in self.dropped and self.left(root) else None
        while root not in self.dropped:
            found = self._at(state, root)
            if found is not None:
                return found
        return None

    def _at(self, state: State, cohort: Node) -> Node | None:
        """The queue at or below a cohort, or None if a cohort was dropped on the way."""
        for child in cohort.children:
            if child.spec is not None and not self.left(child):
                self.dropped.add(child)
            if not over(state, child) and self.own not in child.queues:
                self.dropped.add(child)
        queues = [
            child
            for child in cohort.children
            if child.spec is not None and child not in self.dropped
        ]
        cohorts = [child for child in cohort.cohorts if child not in self.dropped]
        if not queues and not cohorts:
            self.dropped.add(cohort)
            return None
        queue = max(
            queues,
            key=lambda node: (share(state, node), -self.ordered.index(self.left(node)[0])),
            default=None,
        )
        best = max((share(state, node) for node in queues), default=NONE)
        if cohorts:
            winner = max(cohorts, key=lambda node: share(state, node))
            if share(state, winner) >= best:
                return self._at(state, winner)
        return queue
