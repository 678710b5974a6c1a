"""The plan of a head, with fewer pods if it must be (section 11)."""

from __future__ import annotations

from tests.support.quota_oracle.flavors import Allowed, choose_flavors, podsets_of
from tests.support.quota_oracle.placing import NOBODY, asks, hold, place_plan, to_place
from tests.support.quota_oracle.plan import FIT, PREEMPT, Head, Plan
from tests.support.quota_oracle.preemption import Question, keys
from tests.support.quota_oracle.tree import State
from tests.support.quota_oracle.victims import find_victims
from tests.support.quota_oracle.world import World


def plan_head(world: World, state: State, head: Head, allowed: Allowed | None = None) -> Plan:
    """The plan with its victims, and with the nodes that it holds."""
    plan = _plan(world, state, head, allowed)
    wanted = any(asks(podset.given) for podset in plan.podsets) or world.all_topology(head.queue)
    if plan.mode == PREEMPT and wanted:
        left = state.without(keys(plan.victims))
        hold(world, left if plan.victims else NOBODY, to_place(world, head, plan))
    return plan


def _plan(world: World, state: State, head: Head, allowed: Allowed | None) -> Plan:
    full = _plan_with(world, state, head, allowed, None)
    if full.mode == FIT or full.victims:
        return full
    podsets = head.workload["podSets"]
    if not any(podset.get("minCount") is not None for podset in podsets):
        return full
    counts = [podset["count"] for podset in podsets]
    most = [podset["count"] - podset.get("minCount", podset["count"]) for podset in podsets]
    total = sum(most)
    low, high = 0, total + 1
    good: tuple[int, Plan] | None = None
    while low < high:
        middle = (low + high) // 2
        fewer = [
            count - d * middle // total if total else count
            for count, d in zip(counts, most, strict=True)
        ]
        plan = _plan_with(world, state, head, allowed, fewer)
        if plan.mode == FIT or plan.victims:
            good, high = (middle, plan), middle
        else:
            low = middle + 1
    return good[1] if good is not None and good[0] == low else full


def _plan_with(
    world: World, state: State, head: Head, allowed: Allowed | None, counts: list[int] | None
) -> Plan:
    plan = choose_flavors(world, state, head, podsets_of(head, counts), allowed)
    place_plan(world, state, head, plan)
    if plan.mode == PREEMPT:
        request = {fr: amount for fr, amount in plan.usage.items() if amount}
        podsets = tuple(to_place(world, head, plan))
        plan.victims = find_victims(Question(world, state, head, request, plan.need, podsets))
    return plan
