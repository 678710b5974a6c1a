"""Renders the Topology, the PodGroups and the pods' labels and annotations of a workflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rackgate_osmo.model.names import pod_group_names
from rackgate_osmo.model.rejections import RejectedError, Rejection, format_value, path_of
from rackgate_osmo.model.rules import rejections_of_pool, rejections_of_workflow
from rackgate_osmo.model.workflow import (
    POD_GROUP_ANNOTATION,
    QUEUE_LABEL,
    SUBGROUP_LABEL,
    Built,
    KaiVersion,
    Object,
    PodMembership,
    Pool,
    Profile,
    TaskGroup,
    Workflow,
)
from rackgate_osmo.render import profiles
from rackgate_osmo.render.node import Kind, Node
from rackgate_osmo.render.tree import shared, subgroup_tree_of

POD_GROUP_VERSION: Final = "scheduling.run.ai/v2alpha2"
# KAI reads its own Topology since 0.12, before that Kueue's. KAI[topology-v1]
TOPOLOGY_VERSIONS: Final = {
    KaiVersion.V0_10: "kueue.x-k8s.io/v1alpha1",
    KaiVersion.V0_12: "kai.scheduler/v1alpha1",
    KaiVersion.V0_13: "kai.scheduler/v1alpha1",
}


def topology_of(
    pool: Pool,
    *,
    kai: KaiVersion = KaiVersion.V0_13,
    profile: Profile = Profile.SEED,
    nodes: Sequence[Mapping[str, str]] | None = None,
) -> Object | None:
    """The pool's Topology, coarsest level first; None if there is no level to list.

    The object is immutable (KAI[topology-immutable]): to change its levels, delete it and create
    one with the same name. Running pods are not affected (KAI[topology-deleted]).

    Args:
        pool: checked again here.
        kai: decides the API version.
        profile: with `robust`, levels that no node carries are left out.
        nodes: labels of every node of the pool, for `robust`.
    """
    _check_rules(pool)
    return _topology(pool, kai, profiles.listed_levels(pool, profile, nodes))


def build_podgroups(
    pool: Pool,
    workflow: Workflow,
    names: Mapping[str, str] | None = None,
    *,
    namespace: str | None = None,
    profile: Profile = Profile.SEED,
    kai: KaiVersion = KaiVersion.V0_13,
    nodes: Sequence[Mapping[str, str]] | None = None,
) -> Built:
    """One PodGroup per task group, the labels and annotations of its pods, and the pool's Topology.

    The result does not depend on the order of tasks and requirements.

    Args:
        pool: where the workflow is submitted; checked again here, like the workflow.
        workflow: to be built.
        names: names of PodGroups by task group; `names.pod_group_names` gives the missing ones.
        namespace: of the PodGroups; None leaves it to the caller.
        profile: `robust` works around defects of KAI, see `profiles`.
        kai: version of the scheduler.
        nodes: labels of every node of the pool, for `robust`; see `profiles.listed_levels`.
    """
    _check_rules(pool, workflow)
    served = profiles.listed_levels(pool, profile, nodes)
    given = {**pod_group_names(workflow.name, [one.name for one in workflow.groups])}
    given.update(names or {})
    if found := list(_named_twice({one.name: given[one.name] for one in workflow.groups})):
        raise RejectedError(found)
    writer = _Writer(pool, frozenset(served), profile, kai)
    pods: dict[tuple[str, str], PodMembership] = {}
    groups = []
    for group in workflow.groups:
        root = subgroup_tree_of(group, workflow, pool, profile)
        metadata = {"name": given[group.name], "labels": {QUEUE_LABEL: pool.osmo_name}}
        if namespace is not None:
            metadata["namespace"] = namespace
        groups.append(
            {
                "apiVersion": POD_GROUP_VERSION,
                "kind": "PodGroup",
                "metadata": metadata,
                "spec": writer.spec(root),
            }
        )
        pods.update(_memberships(group, root, given[group.name]))
    return Built(_topology(pool, kai, served), tuple(groups), pods)


def _check_rules(pool: Pool, workflow: Workflow | None = None) -> None:
    found = list(rejections_of_pool(pool))
    if workflow is not None and not found:
        found = rejections_of_workflow(workflow, pool)
    if found:
        raise RejectedError(found)


def _named_twice(names: Mapping[str, str]) -> Iterator[Rejection]:
    """Whether two PodGroups have one name; a given name may also be another group's default."""
    owners: dict[str, str] = {}
    for group, name in names.items():
        owner = owners.setdefault(name, group)
        if owner != group:
            message = (
                f"{format_value(name)} is also the PodGroup of task group {format_value(owner)}: "
                "use a different name for each"
            )
            yield Rejection("submission", "duplicate-name", path_of("names", group), name, message)


def _topology(pool: Pool, kai: KaiVersion, served: Sequence[int]) -> Object | None:
    if not served:  # KAI[topology-no-level]
        return None
    # Coarsest first, unlike OSMO's example: KAI reads finest first as another hierarchy
    # (KAI[topology-finest-first]).
    levels = [{"nodeLabel": pool.topology_keys[level].label} for level in served]
    return {
        "apiVersion": TOPOLOGY_VERSIONS[kai],
        "kind": "Topology",
        "metadata": {"name": pool.topology_name},
        "spec": {"levels": levels},
    }


@dataclass(frozen=True, slots=True)
class _Writer:
    """Specs of PodGroups for one pool."""

    pool: Pool
    served: frozenset[int]
    profile: Profile
    kai: KaiVersion
    # By requested levels. Copied on use, because a shared object would be an alias in YAML.
    _constraints: dict[tuple[int | None, int | None], Object] = field(default_factory=dict)

    def spec(self, root: Node) -> Object:
        """Queue, shared constraint and subgroups; `minMember` on leaves, else on top."""
        found: Object = {"queue": self.pool.osmo_name}
        chain = shared(root)
        top = self._shared(chain)
        if top:
            found["topologyConstraint"] = top
        if (chain[-1] if chain else root).children:
            # Camel case: the API server drops the lower-case field, and all subgroups with it
            # (KAI[subgroups-lower-case]).
            # The top then needs no minMember: KAI[no-min-member-with-subgroups]
            found["subGroups"] = list(self._subgroups(root, None, bound=bool(top)))
        else:
            found["minMember"] = root.size
        return found

    def _shared(self, chain: Sequence[Node]) -> Object:
        """The finest shared required level, and the finest preferred one if that is finer.

        With a preference coarser than the required level all pods are pending
        (KAI[preferred-coarser]).
        """
        required = _finest(chain, Kind.REQUIRED)
        preferred = _finest([node for node in chain if not node.split_by_size], Kind.PREFERRED)
        if required is not None and preferred is not None and preferred < required:
            preferred = None
        return self._constraint(required, preferred)

    def _constraint(self, required: int | None, preferred: int | None) -> Object:
        """The constraint of a node; empty if it has none."""
        known = self._constraints.get((required, preferred))
        if known is not None:
            return known.copy()
        levels = profiles.adjust_levels(required, preferred, self.served, self.profile, self.kai)
        # KAI[constraint-without-level]
        found = {} if levels == (None, None) else {"topology": self.pool.topology_name}
        fields = ("requiredTopologyLevel", "preferredTopologyLevel")
        for name, level in zip(fields, levels, strict=True):
            if level is not None:
                # The label, because KAI does not know the short keys of users. KAI[unknown-level]
                found[name] = self.pool.topology_keys[level].label
        self._constraints[required, preferred] = found
        return found.copy()

    def _subgroups(self, node: Node, parent: str | None, *, bound: bool) -> Iterator[Object]:
        """Entries of all named nodes below, parents first."""
        for child in node.children:
            if not child.name:  # shared by all tasks: the top has its constraint
                yield from self._subgroups(child, None, bound=bound)
                continue
            entry: Object = {"name": child.name}
            if parent is not None:  # an empty parent is rejected. KAI[parent-empty]
                entry["parent"] = parent
            if not child.children:
                entry["minMember"] = child.size
            free = child.split_by_size or profiles.is_free(child, bound, self.profile)
            is_required = child.kind is Kind.REQUIRED
            levels = (child.level, None) if is_required else (None, child.level)
            constraint = {} if free else self._constraint(*levels)
            if constraint:
                entry["topologyConstraint"] = constraint
            yield entry
            if child.children:
                yield from self._subgroups(child, child.name, bound=bound or bool(constraint))


def _finest(chain: Sequence[Node], kind: Kind) -> int | None:
    return max((node.level for node in chain if node.kind is kind), default=None)


def _memberships(
    group: TaskGroup, root: Node, name: str
) -> Iterator[tuple[tuple[str, str], PodMembership]]:
    """Membership of each pod. If one has a subgroup all must (KAI[some-pods-without-label])."""
    annotations = {POD_GROUP_ANNOTATION: name}
    for leaf in root.leaves():
        labels = {SUBGROUP_LABEL: leaf.name} if leaf.name else {}
        marks = PodMembership(name, annotations, labels)
        for task in leaf.tasks:
            yield (group.name, task), marks
