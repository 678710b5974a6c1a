"""Invariants of the machine's indexes: each is derived from another, so they must agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate_ungater.rows import PodRow, PodUid, WorkloadKey
from rackgate_ungater.state import Expectation, Group, PodSetState


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
        _require(group.row is not None or bool(group.podsets), f"{key}: empty group kept")
        _require(group.row is None or group.row.key == key, f"{key}: holds another Workload")
        for name, podset in group.podsets.items():
            _check_podset(key, name, podset)
            indexed.update(podset.pods)
            expected.update(dict.fromkeys(podset.expected, (key, name)))
    _require(indexed == pods, "pods and their index by PodSet differ")
    found = {uid: (entry.workload, entry.podset) for uid, entry in expectations.items()}
    _require(found == expected, "expectations and their index by PodSet differ")
    _require(expectations.keys() <= pods.keys(), "an expectation of a pod that is gone")


def _check_podset(key: WorkloadKey, name: str, podset: PodSetState) -> None:
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
        open_and_seen = uid in podset.expected and not pod.gated
        _require(not open_and_seen, f"{where}: expectation of a pod seen ungated")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
