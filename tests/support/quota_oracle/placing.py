"""Pods on the nodes of topology flavors (section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.support.oracle import expected
from tests.support.oracle.amounts import fit, subtract
from tests.support.oracle.nodes import HOST, Hierarchy
from tests.support.quota_oracle.plan import FIT, NO_FIT, PREEMPT, Head, Plan, PodSetPlan
from tests.support.quota_oracle.tree import Held, Json, Node, Placed, State
from tests.support.quota_oracle.world import World, listed, per_pod, placed_at

# A pod set without a place, and why.
Failure = tuple[PodSetPlan, str]
# An empty cluster: nothing of the running workloads is held.
NOBODY = State(())
ANYWHERE = Node("nodes alone")


def asks(podset: Json) -> bool:
    request = podset.get("topologyRequest") or {}
    return any(request.get(key) for key in ("required", "preferred", "unconstrained", "slices"))


def topology_problem(world: World, queue: Node, podset: Json, flavor: str, requests: bool) -> str:
    """Why a flavor does not suit what a pod set asks of the topology."""
    topology = world.topology_of(flavor)
    if asks(podset):
        if topology is None:
            text = f'Flavor "{flavor}" does not support TopologyAwareScheduling'
            return text if requests else ""
        request = podset["topologyRequest"]
        levels = [request.get("required"), request.get("preferred")]
        levels += [entry["topology"] for entry in request.get("slices") or []]
        if any(level and level not in topology["levels"] for level in levels):
            return f'Flavor "{flavor}" does not contain the requested level'
        return ""
    if topology is not None and not world.all_topology(queue):
        return f'Flavor "{flavor}" supports only TopologyAwareScheduling'
    return ""


def to_place(world: World, head: Head, plan: Plan) -> list[PodSetPlan]:
    """The asking and implied pod sets with at least one pod."""
    implied = world.all_topology(head.queue)
    return [
        podset for podset in plan.podsets if podset.count > 0 and (implied or asks(podset.given))
    ]


def place_plan(world: World, state: State, head: Head, plan: Plan) -> None:
    """Find nodes for a plan with flavors; the plan's modes change with what is found."""
    podsets = to_place(world, head, plan)
    if not podsets or plan.mode == NO_FIT or not _flavors_known(world, podsets):
        return
    if plan.mode == FIT:
        failed = hold(world, state, podsets)
        if failed is None:
            return
        podset, text = failed
        podset.texts.append(text)
        for choice in podset.choices.values():
            choice.mode = PREEMPT
    failed = hold(world, NOBODY, podsets)
    if failed is not None:
        podset, _ = failed
        plan.not_placed = True
        for choice in podset.choices.values():
            choice.mode = NO_FIT
        podset.attempts[podset.topology_flavor] = (NO_FIT, "TopologyPlacementFailed")
        return
    for podset in podsets:
        for choice in podset.choices.values():
            choice.mode = PREEMPT


def _flavors_known(world: World, podsets: list[PodSetPlan]) -> bool:
    """Whether each pod set has one topology flavor; otherwise the plan has an error."""
    for podset in podsets:
        flavors = sorted(
            {choice.flavor for choice in podset.choices.values()}
            & {name for name in world.flavors if world.topology_of(name)}
        )
        if len(flavors) == 1:
            podset.topology_flavor = flavors[0]
        elif not flavors:
            podset.error = "no TAS flavor assigned"
        else:
            podset.error = f"more than one TAS flavor assigned: {', '.join(flavors)}"
        if podset.error:
            return False
    return True


def hold(world: World, state: State, podsets: Sequence[PodSetPlan]) -> Failure | None:
    """Write the assignments into the pod sets, or say which one found no place, and why."""
    found, failed = assignments(world, state, podsets)
    for podset in podsets:
        podset.topology = None if failed is not None else found[podset.name]
    return failed


def fits_nodes(world: World, state: State, podsets: Sequence[PodSetPlan]) -> bool:
    return assignments(world, state, podsets)[1] is None


def assignments(
    world: World, state: State, podsets: Sequence[PodSetPlan]
) -> tuple[Json, Failure | None]:
    """Pod set name to its assignment, and the first failure, at which the walk ends."""
    found: Json = {}
    for flavor in sorted({podset.topology_flavor for podset in podsets}):
        members = [podset for podset in podsets if podset.topology_flavor == flavor]
        asked = [{**podset.given, "count": podset.count} for podset in members]
        answers = expected({**_cluster(world, state, flavor), "podSets": asked})
        for podset in members:
            answer = answers[podset.name]
            if "failure" in answer:
                return found, (podset, answer["failure"])
            found[podset.name] = answer["assignment"]
            # Flavors may share hosts.
            placed = tuple(placed_at(flavor, answer["assignment"], per_pod(podset.given)))
            state = state.plus(Held(podset.name, ANYWHERE, {}, placed))
    return found, None


def _cluster(world: World, state: State, flavor: str) -> Json:
    topology = world.topology_of(flavor)
    assert topology is not None
    given = world.flavors[flavor]
    return {
        "levels": topology["levels"],
        "flavor": {
            "topology": topology["name"],
            "nodeLabels": given.get("nodeLabels") or {},
            "tolerations": given.get("tolerations") or [],
        },
        "nodes": listed(world.scenario, "nodes"),
        "pods": listed(world.scenario, "pods"),
        "usage": [
            {
                "values": list(placed.values),
                "requests": {
                    name: f"{amount}m" if name == "cpu" else str(amount)
                    for name, amount in placed.requests.items()
                },
                "count": placed.count,
            }
            for held in state.held
            for placed in held.placed
            if placed.flavor == flavor or topology["levels"][-1] == HOST
        ],
    }


def still_room(world: World, state: State, wanted: Iterable[Placed]) -> bool:
    """Whether every domain still holds its pods, on the resources that they request.

    The 1 of `pods` that each pod takes is not among them: one answer of the data shows it. That the
    pods of all pod sets are added up is how the text reads; no answer depends on it.
    """
    hierarchies: dict[str, Hierarchy] = {}
    for placed in wanted:
        if placed.flavor not in hierarchies:
            hierarchies[placed.flavor] = Hierarchy(_cluster(world, state, placed.flavor))
        leaf = hierarchies[placed.flavor].leaf(placed.values)
        if leaf is None or fit(dict(placed.requests), leaf.free)[0] < placed.count:
            return False
        subtract(leaf.free, dict(placed.requests), placed.count)
    return True
