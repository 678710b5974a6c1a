"""Invariants of the machine's indexes: each is derived from another, so they must agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate_ungater.machine.rows import PodRow, PodUid, WorkloadKey
from rackgate_ungater.machine.state import Expectation, Group, PodSetState


class InvariantError(AssertionError):
    """The machine contradicts itself: a bug."""


def check(
    pods: Mapping[PodUid, PodRow],
    groups: Mapping[WorkloadKey, Group],
    expectations: Mapping[PodUid, Expectation],
) -> None:
    """Compare every index with what it is made from.

    Raises:
        InvariantError: they differ.
    """
    indexed: dict[PodUid, PodRow] = {}
    expected: dict[PodUid, tuple[WorkloadKey, str]] = {}
    for key, group in groups.items():
        _require(not group.empty, f"{key}: empty group kept")
        _require(group.row is None or group.row.key == key, f"{key}: holds another Workload")
        for name, podset in group.podsets.items():
            _check_podset(key, name, podset, expectations)
            indexed.update(podset.pods)
            expected.update(dict.fromkeys(podset.expected, (key, name)))
    _require(indexed == pods, "pods and their index by PodSet differ")
    found = {uid: (entry.workload, entry.podset) for uid, entry in expectations.items()}
    _require(found == expected, "expectations and their index by PodSet differ")
    _require(expectations.keys() <= pods.keys(), "an expectation of a pod that is gone")


def check_slices(
    groups: Mapping[WorkloadKey, Group],
    parents: Mapping[str, WorkloadKey],
    jobsets: Mapping[str, WorkloadKey],
) -> None:
    """Compare what is known of slices and of owners with the Workloads.

    Raises:
        InvariantError: they differ.
    """
    found = {uid: key for key, group in groups.items() for uid in group.slices}
    _require(found == parents, "slices and their index by UID differ")
    for key, group in groups.items():
        for uid, row in group.slices.items():
            _require(row.uid == uid and row.parent == key, f"{key}: slice of another Workload")
        folded = group.row.folded if group.row is not None else ()
        _require(not group.slices.keys() & set(folded), f"{key}: folded slice kept")
    for owner, key in jobsets.items():
        found_row = groups[key].row if key in groups else None
        fits = found_row is not None and found_row.owner_uid == owner
        _require(fits, f"{key}: JobSet of another Workload")


def _check_podset(
    key: WorkloadKey,
    name: str,
    podset: PodSetState,
    expectations: Mapping[PodUid, Expectation],
) -> None:
    where = f"{key}/{name}"
    _require(not podset.empty, f"{where}: empty PodSet kept")
    _require(podset.refused.keys() <= podset.pods.keys(), f"{where}: refusal of a pod elsewhere")
    _require(podset.ending.keys() <= podset.pods.keys(), f"{where}: deletion of a pod elsewhere")
    gated = sum(pod.gated for pod in podset.pods.values())
    _require(podset.gated == gated, f"{where}: {podset.gated} gated counted, {gated} there")
    for uid, pod in podset.pods.items():
        _require(pod.uid == uid, f"{where}: pod under the UID of another")
        _require(not pod.terminal, f"{where}: pod that has ended kept")
        _require((pod.workload_key, pod.podset) == (key, name), f"{where}: pod of another PodSet")
        expected = expectations.get(uid) if uid in podset.expected else None
        open_and_seen = expected is not None and not pod.gates & expected.gates
        _require(not open_and_seen, f"{where}: expectation of a pod seen ungated")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
