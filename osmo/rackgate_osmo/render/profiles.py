"""What the `robust` profile does otherwise, because of what the real KAI does.

The `seed` profile follows OSMO's design. With it, some behavior of KAI keeps a workflow pending
forever although there is free capacity. The `robust` profile avoids this where objects can: each
public function here is one difference, and there are no others. Their costs are in
`docs/reference/osmo.md`.

Nothing here helps against label values with dots (KAI[dotted-label-values]), or against nodes that
carry some of the pool's labels only while others carry all: `check` reports those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rackgate_osmo.model.task_resources import Requests, is_overcounted
from rackgate_osmo.model.workflow import KaiVersion, Pool, Profile
from rackgate_osmo.render.node import Kind, Node


def name_prefixes(siblings: Sequence[Node], profile: Profile) -> list[str]:
    """What the names of siblings begin with: in `robust` their place in a better order.

    KAI places siblings in the byte order of their names, each into the fullest domain that fits,
    and never goes back (case sibling-order). With what is hard to place first, and larger before
    smaller, far fewer workflows fail. The order: nodes that require a domain, nodes below which
    one is required, other requests, fillers; within these GPUs, then tasks, most first.
    """
    if profile is Profile.SEED or not siblings:
        return [""] * len(siblings)
    order = sorted(range(len(siblings)), key=lambda index: _weight(siblings[index]))
    digits = len(str(len(siblings) - 1))
    found = [""] * len(siblings)
    for rank, index in enumerate(order):
        found[index] = f"{rank:0{digits}}-"
    return found


def _weight(node: Node) -> tuple[int, int, int, str, int]:
    if node.kind is Kind.REQUIRED:
        strength = 0
    elif node.requires:
        strength = 1
    else:
        strength = 2 if node.kind is Kind.PREFERRED else 3
    return strength, -node.gpus_milli, -node.size, node.group, node.part


def listed_levels(
    pool: Pool, profile: Profile, nodes: Sequence[Mapping[str, str]] | None
) -> tuple[int, ...]:
    """Levels that the Topology lists: in `robust` those whose label any node carries.

    For KAI only nodes that carry the label of every level of the Topology exist, also for a level
    that no group uses (KAI[required-other-label-missing, preferred-unlabelled-room]). A label that
    no node carries therefore keeps every constrained workflow waiting; without it only those wait
    that require this very level, and they go on once nodes carry it and the Topology lists it. A
    label that only some nodes carry stays: without it, whoever asks for it could never run. None
    and an empty list of nodes say nothing about labels.
    """
    everything = tuple(range(len(pool.topology_keys)))
    if profile is Profile.SEED or not nodes:
        return everything
    carried = set().union(*nodes)
    return tuple(level for level in everything if pool.topology_keys[level].label in carried)


def adjust_levels(
    required: int | None,
    preferred: int | None,
    served: Collection[int],
    profile: Profile,
    kai: KaiVersion,
) -> tuple[int | None, int | None]:
    """The two levels of one constraint, required and preferred.

    - A required level above the Topology's finest also prefers the finest. Without it KAI finds no
      domain when all candidate nodes lie in one domain of a finer level. The finest works on all
      versions; the same level, which would pack less, from 0.13 on only
      (KAI[preferred-equals-required, preferred-finer-than-required]).
    - On 0.10 a preferred level alone has the same defect: it prefers the finest too. KAI tries a
      preferred level first and then each coarser one, so what was asked for comes next.
    - A preference for a level that the Topology does not list is left out: KAI would not schedule
      at all (KAI[unknown-level]). A required one stays, since it must not run without.
    """
    if profile is Profile.SEED:
        return required, preferred
    if preferred not in served:
        preferred = None
    finest = max(served, default=None)
    if finest is None:
        return required, preferred
    if required is not None:
        if required in served and required < finest:
            preferred = finest
    elif preferred is not None and kai is KaiVersion.V0_10:
        preferred = finest
    return required, preferred


def is_free(node: Node, bound_above: bool, profile: Profile) -> bool:
    """Whether a node carries no constraint: in `robust` tasks that asked for nothing.

    OSMO's design gives them a mere preference, but with any constraint KAI uses labelled nodes
    only (KAI[preferred-unlabelled-room]). Below a constraint that holds for them too nothing would
    be gained, so there they keep the preference.
    """
    return profile is Profile.ROBUST and not bound_above and _has_no_requirement(node)


def is_split_by_size(pods: Sequence[Requests], *, bound: bool) -> bool:
    """Whether a mere preference of these pods is left to parts of one size each.

    Where all pods of a part use GPUs, or none does, KAI counts each as large as the largest, also
    for a preference: a group that fits stays pending. Parts of one size are counted right. Their
    pods are then kept together size by size, not all of them. What is required stays as it is, and
    so does all below it: there KAI counts by the largest whatever is written below.

    Args:
        pods: what each asks for; empty in the `seed` profile, which never does this.
        bound: whether the part or one above it requires a domain.
    """
    return not bound and is_overcounted(pods)


def _has_no_requirement(node: Node) -> bool:
    return node.kind is Kind.FILLER and all(map(_has_no_requirement, node.children))
