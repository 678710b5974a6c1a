"""How the `robust` profile differs, because of observed behavior of KAI.

The `seed` profile follows OSMO's design. With it, some behavior of KAI keeps a workflow pending
forever although there is free capacity. The `robust` profile avoids this as far as the objects
allow: each public function here is one difference, and there are no others. Their costs are in
`docs/reference/osmo.md`.

Two problems remain, and `check` reports them: label values with dots (KAI[dotted-label-values]),
and nodes that carry only some of the pool's labels while others carry all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rackgate_osmo.model.task_resources import Requests, is_overcounted
from rackgate_osmo.model.workflow import KaiVersion, Pool, Profile
from rackgate_osmo.render.node import Kind, Node


def name_prefixes(siblings: Sequence[Node], profile: Profile) -> list[str]:
    """Prefixes of the names of siblings; in `robust` they sort siblings in a better order.

    KAI places siblings in the byte order of their names, each in the fullest domain that fits, and
    does not backtrack (case sibling-order). Far fewer workflows fail if siblings that are difficult
    to place come first, and larger ones before smaller ones. The order: nodes that require a
    domain, nodes below which one is required, other requests, fillers; within these by GPUs, then
    by tasks, most first.
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
    """Levels that the Topology lists; in `robust` those whose label any node carries.

    KAI ignores nodes that lack the label of any level of the Topology, even of a level that no
    group uses (KAI[required-other-label-missing, preferred-unlabelled-room]). So with a label that
    no node carries, every constrained workflow is pending. Without that level only workflows that
    require it are pending, until nodes carry the label and the Topology lists it. A label that some
    nodes carry stays in the list: without it, tasks that require it could never run. None or an
    empty list of nodes means that labels are not known.
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
    """The required and the preferred level of one constraint.

    - A required level above the Topology's finest also prefers the finest. Otherwise KAI finds no
      domain if all candidate nodes are in one domain of a finer level. The finest level works on
      all versions. The required level itself, which would pack less, works from 0.13 on only
      (KAI[preferred-equals-required, preferred-finer-than-required]).
    - On 0.10 a constraint with only a preferred level has the same defect, so it prefers the finest
      level. KAI tries a preferred level and then each coarser one, so the requested level comes
      later.
    - A preference for a level that the Topology does not list is left out, because KAI would not
      schedule the group (KAI[unknown-level]). A required level stays: the group must not run
      without it.
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
    """Whether a node has no constraint: in `robust`, tasks that request none.

    OSMO's design gives them a preference, but with any constraint KAI uses only labelled nodes
    (KAI[preferred-unlabelled-room]). Tasks below another constraint keep the preference, because
    omitting it has no effect there.
    """
    return profile is Profile.ROBUST and not bound_above and _has_no_requirement(node)


def is_split_by_size(pods: Sequence[Requests], *, bound: bool) -> bool:
    """Whether the preference of these pods moves to subgroups of one pod size each.

    If all pods of a subgroup use GPUs, or none does, KAI counts each as large as the largest, even
    for a preference: a group that fits stays pending. Subgroups of one size are counted correctly.
    Then only pods of the same size are kept together. Required constraints and everything below
    them do not change, because there KAI counts by the largest in any case.

    Args:
        pods: requests of each pod; empty in the `seed` profile, which never splits.
        bound: whether the subgroup or a parent requires a domain.
    """
    return not bound and is_overcounted(pods)


def _has_no_requirement(node: Node) -> bool:
    return node.kind is Kind.FILLER and all(map(_has_no_requirement, node.children))
