"""Ranks: the position of a pod in its PodSet, read from its labels. Pure.

Either all ranks of a PodSet are used or none: if one rank is missing or invalid, the order of the
others is not reliable. So a fault makes the whole PodSet use greedy filling (RNK-06).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate.api import names
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedPodSet, PodUid

_RAY_INDICES: Final = (names.RAY_REPLICA_INDEX_LABEL, names.RAY_HOST_INDEX_LABEL)


@dataclass(frozen=True, slots=True)
class RankSource:
    """Where the pods of one PodSet have their rank.

    Attributes:
        pod_index_label: label that holds the index within the PodSet, or within its subgroup.
        sub_group_label: label that holds the subgroup's index; None without subgroups.
        sub_group_count: subgroups of the PodSet; anything below 1 is a fault.
        implied: the job does not request ranks, so pods without the label are not a fault.
        offset: index of the first pod, unless the pods' own annotation says otherwise.
    """

    pod_index_label: str
    sub_group_label: str | None = None
    sub_group_count: int | None = None
    implied: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RankFault:
    """Why the ranks of a PodSet cannot be used."""

    message: str


def rank_source(podset: GatedPodSet, podsets: Sequence[GatedPodSet]) -> RankSource | None:
    """Find where the pods of `podset` have ranks; None if the PodSet has no order.

    A PodSet without a topologyRequest (its topology is implied by the flavor) may still belong
    to an Indexed Job: the completion index is used where pods have it. Ray labels its pods with
    indices in some versions only.
    """
    if not podset.requested:
        return RankSource(names.COMPLETION_INDEX_LABEL, implied=True)
    if podset.pod_index_label is None:
        return None
    return RankSource(
        podset.pod_index_label,
        podset.sub_group_index_label,
        podset.sub_group_count,
        implied=podset.pod_index_label in _RAY_INDICES,
        offset=_leader_offset(podset, podsets),
    )


def _leader_offset(podset: GatedPodSet, podsets: Sequence[GatedPodSet]) -> int:
    """Workers that share one numbering with their leader start after it.

    Completion indexes start at 0 in every Job, so a leader never shifts them.
    """
    if podset.group_name is None or podset.pod_index_label == names.COMPLETION_INDEX_LABEL:
        return 0
    others = [
        other
        for other in podsets
        if other.group_name == podset.group_name and other.name != podset.name
    ]
    leaders = others[0].count if len(others) == 1 else None
    if leaders is None or podset.count is None or leaders >= podset.count:
        return 0
    return leaders


def read_ranks(
    source: RankSource, pods: Sequence[GatedPod], count: int
) -> dict[PodUid, int] | RankFault | None:
    """Read the rank of every pod.

    Args:
        source: where ranks are found.
        pods: all pods of the PodSet that are neither ended nor terminating, gated or not.
        count: pods of the PodSet; ranks lie in `range(count)`.

    Returns:
        Rank per pod UID, all different; a fault if one is missing, duplicate or out of range; None
        if the order is only implied and no pod has a rank.
    """
    if source.implied and not any(source.pod_index_label in pod.indices for pod in pods):
        return None
    if source.implied and source.sub_group_label is None:
        source = _jobset_rank_source(source, pods)
    size = _sub_group_size(source, count)
    if isinstance(size, RankFault):
        return size
    ranks: dict[PodUid, int] = {}
    holders: dict[int, GatedPod] = {}
    for pod in pods:
        rank = _rank_of(source, pod, size, count)
        if isinstance(rank, RankFault):
            return rank
        if rank in holders:
            first, second = sorted((holders[rank].name, pod.name))
            return RankFault(f'pods "{first}" and "{second}" both have rank {rank}')
        holders[rank] = pod
        ranks[pod.uid] = rank
    return ranks


def _jobset_rank_source(source: RankSource, pods: Sequence[GatedPod]) -> RankSource:
    """Each Job of a JobSet numbers its pods from 0; its labels have its index and the Job count."""
    if not any(names.JOB_INDEX_LABEL in pod.indices for pod in pods):
        return source
    jobs = {pod.indices.get(names.JOB_REPLICAS_LABEL, 0) for pod in pods}
    count = jobs.pop() if len(jobs) == 1 else None
    return replace(source, sub_group_label=names.JOB_INDEX_LABEL, sub_group_count=count)


def _sub_group_size(source: RankSource, count: int) -> int | RankFault:
    """Pods per subgroup; the whole PodSet without subgroups."""
    if source.sub_group_label is None:
        return count
    groups = source.sub_group_count
    if groups is None or groups < 1:
        return RankFault(f'subgroups by label "{source.sub_group_label}" without a subGroupCount')
    if count % groups:
        return RankFault(f"subGroupCount {groups} does not divide {count} pods")
    return count // groups


def _rank_of(source: RankSource, pod: GatedPod, size: int, count: int) -> int | RankFault:
    index = _index_of(source.pod_index_label, pod)
    if isinstance(index, RankFault):
        return index
    if pod.index_offset is not None and pod.index_offset < 0:
        return RankFault(f'pod "{pod.name}": annotation "{names.POD_INDEX_OFFSET}" is not a number')
    offset = source.offset if pod.index_offset is None else pod.index_offset
    if not 0 <= index - offset < size:
        less = f" less its offset {offset}" if offset else ""
        return RankFault(
            f'pod "{pod.name}": index {index}{less} is not in the range 0 to {size - 1}'
        )
    index -= offset
    if source.sub_group_label is None:
        return index
    group = _index_of(source.sub_group_label, pod)
    if isinstance(group, RankFault):
        return group
    rank = group * size + index
    if rank >= count:
        return RankFault(f'pod "{pod.name}": rank {rank} is not below {count}')
    return rank


def _index_of(label: str, pod: GatedPod) -> int | RankFault:
    value = pod.indices.get(label)
    if value is None:
        return RankFault(f'pod "{pod.name}" has no number in label "{label}"')
    return value
