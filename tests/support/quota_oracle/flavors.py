"""Choosing flavors for the pod sets of a head (sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.oracle.nodes import holds, tolerates
from tests.support.quota_oracle.amounts import in_order, written
from tests.support.quota_oracle.placing import topology_problem
from tests.support.quota_oracle.plan import (
    FIT,
    NO_CANDIDATES,
    NO_FIT,
    PREEMPT,
    RECLAIM,
    SEVERITY,
    Choice,
    Head,
    Plan,
    PodSetPlan,
)
from tests.support.quota_oracle.preemption import Question, keys
from tests.support.quota_oracle.tree import Fr, Json, State, potential
from tests.support.quota_oracle.victims import find_victims
from tests.support.quota_oracle.world import World, per_pod

# A kind and a level of borrowing.
Mode = tuple[int, int]
# Pod set name to resource to flavor.
Allowed = Mapping[str, Mapping[str, str]]


def choose_flavors(
    world: World, state: State, head: Head, podsets: list[PodSetPlan], allowed: Allowed | None
) -> Plan:
    """Flavors for every pod set up to the first unit without."""
    plan = Plan()
    for unit in _units(podsets):
        plan.podsets += unit
        walk = _Unit(world, state, head, unit, allowed=allowed, used=plan.usage)
        if not walk.choose():
            break
        plan.level = max(plan.level, walk.level)
    return plan


def podsets_of(head: Head, counts: list[int] | None) -> list[PodSetPlan]:
    """Pod sets with their total requests."""
    done = head.workload.get("reclaimable") or {}
    covers_pods = any("pods" in group["resources"] for group in head.queue.groups)
    found = []
    for at, given in enumerate(head.workload["podSets"]):
        count = given["count"] - done.get(given["name"], 0) if counts is None else counts[at]
        amounts = {resource: amount * count for resource, amount in per_pod(given).items()}
        if covers_pods:
            amounts["pods"] = count
        found.append(PodSetPlan(given, count, amounts))
    return found


def _units(podsets: list[PodSetPlan]) -> list[list[PodSetPlan]]:
    units: dict[object, list[PodSetPlan]] = {}
    for at, podset in enumerate(podsets):
        units.setdefault(podset.given.get("group") or at, []).append(podset)
    return list(units.values())


class _Unit:
    """One unit's walk through its resources."""

    def __init__(
        self,
        world: World,
        state: State,
        head: Head,
        podsets: list[PodSetPlan],
        *,
        allowed: Allowed | None,
        used: dict[Fr, int],
    ) -> None:
        self.world, self.state, self.head = world, state, head
        self.podsets, self.allowed, self.used = podsets, allowed, used
        self.amounts: dict[str, int] = {}
        for podset in podsets:
            for resource, amount in podset.amounts.items():
                self.amounts[resource] = self.amounts.get(resource, 0) + amount
        self.choices: dict[str, Choice] = {}
        self.attempts: dict[str, tuple[int, str]] = {}
        self.level = 0

    def choose(self) -> bool:
        texts: list[str] = []
        fits = True
        for resource in in_order(self.amounts):
            group = next(
                (group for group in self.head.queue.groups if resource in group["resources"]), None
            )
            if group is None:
                if self.amounts[resource] == 0:
                    continue
                texts, fits = [f"resource {resource} unavailable in ClusterQueue"], False
                break
            if resource in self.choices:
                continue
            found, added = self._search(group, resource)
            if not found:
                texts, fits = added, False
                break
            self.choices |= found
            texts += added
        for podset in self.podsets:
            podset.texts = list(texts)
            podset.attempts = dict(self.attempts)
            if fits:
                podset.choices = {
                    resource: Choice(choice.flavor, choice.mode, choice.tried)
                    for resource, choice in self.choices.items()
                    if resource in podset.amounts
                }
        return fits

    def _search(self, group: Json, first: str) -> tuple[dict[str, Choice], list[str]]:
        """The choices of the best flavor of a group, none if nothing fits, and the texts."""
        resources = [name for name in in_order(self.amounts) if name in group["resources"]]
        texts: list[str] = []
        best: Mode = (NO_FIT, 0)
        best_flavor, best_modes = "", dict[str, Mode]()
        flavors = [given["name"] for given in group["flavors"]]
        last = len(flavors) - 1
        looked_at: set[str] = set()
        for at, flavor in enumerate(flavors):
            if not self._may_use(flavor, first):
                texts.append(
                    f"skipping flavor {flavor} as it is not found in the nomination mapping "
                    f"for resource {first}"
                )
                continue
            looked_at.add(flavor)
            problem = self._problem(flavor, resources)
            if problem:
                texts.append(problem)
                self._attempt(flavor, NO_FIT, "NoMatchingFlavor")
                continue
            mode, modes, reason = (FIT, 0), {}, ""
            for resource in resources:
                modes[resource], text, why = self._check((flavor, resource))
                texts += [text] if text else []
                if self._preferred(mode, modes[resource]):
                    mode = modes[resource]
                reason = max(reason, why, key=SEVERITY.index)
            self._attempt(flavor, mode[0], reason)
            stops = not self._try_next(mode)
            if stops or self._preferred(mode, best):
                best, best_flavor, best_modes = mode, flavor, modes
            if stops:
                last = at
                break
        for flavor in flavors:
            if flavor in self.attempts and flavor not in looked_at:
                self.attempts[flavor] = (NO_FIT, "NoMatchingFlavor")
        if best[0] == NO_FIT:
            return {}, texts
        tried = -1 if last == len(flavors) - 1 else last
        self.level = max([self.level] + [level for _, level in best_modes.values()])
        found = {
            resource: Choice(best_flavor, FIT if kind == FIT else PREEMPT, tried)
            for resource, (kind, _) in best_modes.items()
        }
        return found, [] if best[0] == FIT else texts

    def _may_use(self, flavor: str, first: str) -> bool:
        if self.allowed is None:
            return True
        chosen = [self.allowed.get(podset.name, {}).get(first) for podset in self.podsets]
        return flavor in chosen

    def _attempt(self, flavor: str, kind: int, reason: str) -> None:
        before = self.attempts.get(flavor, (FIT, ""))
        self.attempts[flavor] = (
            min(before[0], kind),
            max(before[1], reason, key=SEVERITY.index),
        )

    def _problem(self, flavor: str, resources: list[str]) -> str:
        """Why the pods may not use a flavor, whatever its quota."""
        given = self.world.flavors[flavor]
        for podset in self.podsets:
            requests = any(resource in podset.amounts for resource in resources)
            text = (
                topology_problem(self.world, self.head.queue, podset.given, flavor, requests)
                or _taint(podset.given, given)
                or _affinity(podset.given, given)
            )
            if text:
                return text
        return ""

    def _check(self, fr: Fr) -> tuple[Mode, str, str]:
        """The mode of one resource in one flavor, a text and a reason; both may be empty."""
        flavor, resource = fr
        queue, state = self.head.queue, self.state
        used = self.used.get(fr, 0)
        amount = used + self.amounts[resource]
        most = potential(queue, fr)
        if amount > most:
            text = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered "
                f"podsets requests ({written(resource, used)}) + current podset request "
                f"({written(resource, self.amounts[resource])}) > maximum capacity "
                f"({written(resource, most)})"
            )
            return (NO_FIT, 0), text, "ExceedsMaxQuota"
        level, smaller = state.low(queue, fr, amount)
        available = state.available(queue, fr)
        if amount <= available:
            return (FIT, level), "", ""
        more = written(resource, amount - available)
        text = f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed"
        if not (
            queue.quota(fr).nominal >= amount
            or smaller
            or queue.preempts_to_borrow
            or (self.world.fair and queue.policy("reclaimWithinCohort") != "Never")
        ):
            return (NO_FIT, level), text, "WaitingForQuota"
        victims = find_victims(Question(self.world, state, self.head, {fr: amount}, {fr}))
        if not victims:
            return (NO_CANDIDATES, level), text, ""
        left = state.without(keys(victims))
        own = any(victim.held.queue is queue for victim in victims)
        return (PREEMPT if own else RECLAIM, left.low(queue, fr, amount)[0]), text, ""

    def _fungibility(self, name: str, default: str) -> str:
        return str((self.head.queue.rules.get("flavorFungibility") or {}).get(name) or default)

    def _try_next(self, mode: Mode) -> bool:
        kind, level = mode
        if kind in (NO_FIT, NO_CANDIDATES):
            return True
        next_flavor = "TryNextFlavor"
        if (
            kind in (PREEMPT, RECLAIM)
            and self._fungibility("whenCanPreempt", next_flavor) == next_flavor
        ):
            return True
        return level > 0 and self._fungibility("whenCanBorrow", "MayStopSearch") == next_flavor

    def _preferred(self, a: Mode, b: Mode) -> bool:
        if a[0] == NO_FIT:
            return False
        if b[0] == NO_FIT:
            return True
        if (a[0] == NO_CANDIDATES) != (b[0] == NO_CANDIDATES):
            return b[0] == NO_CANDIDATES
        default = "BorrowingOverPreemption"
        if self._fungibility("preference", default) == default:
            return (-a[0], a[1]) < (-b[0], b[1])
        return (a[1], -a[0]) < (b[1], -b[0])


def _taint(podset: Json, flavor: Json) -> str:
    tolerations = (podset.get("tolerations") or []) + (flavor.get("tolerations") or [])
    for taint in flavor.get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(
            tolerates(toleration, taint) for toleration in tolerations
        ):
            printed = f"{taint['key']} {taint.get('value') or ''} {taint['effect']} <nil>"
            return f"untolerated taint {{{printed}}} in flavor {flavor['name']}"
    return ""


def _affinity(podset: Json, flavor: Json) -> str:
    labels = flavor.get("nodeLabels") or {}
    text = f"flavor {flavor['name']} doesn't match node affinity"
    selector = podset.get("nodeSelector") or {}
    if any(key in labels and labels[key] != value for key, value in selector.items()):
        return text
    required = (podset.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return ""
    for term in required["nodeSelectorTerms"]:
        known = [given for given in term.get("matchExpressions") or [] if given["key"] in labels]
        if all(holds(expression, labels) for expression in known):
            return ""
    return text
