"""Invariants of the machine's indexes: each is derived from another, so they must agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate_ungater.state_machine.gated_objects import GatedPod, PodUid, WorkloadKey
from rackgate_ungater.state_machine.records import Expectation, PodSetState, WorkloadState


class InvariantError(AssertionError):
    """The machine contradicts itself: a bug."""


def check_pods(
    pods: Mapping[PodUid, GatedPod],
    workload_states: Mapping[WorkloadKey, WorkloadState],
    expectations: Mapping[PodUid, Expectation],
) -> None:
    """Compare every index with what it is made from.

    Raises:
        InvariantError: they differ.
    """
    indexed: dict[PodUid, GatedPod] = {}
    expected: dict[PodUid, tuple[WorkloadKey, str]] = {}
    for key, workload_state in workload_states.items():
        _require(not workload_state.is_empty, f"{key}: empty WorkloadState kept")
        _require(
            workload_state.workload is None or workload_state.workload.key == key,
            f"{key}: holds another Workload",
        )
        for name, podset in workload_state.podsets.items():
            _check_podset(key, name, podset, expectations)
            indexed.update(podset.pods)
            expected.update(dict.fromkeys(podset.expected, (key, name)))
    _require(indexed == pods, "pods and their index by PodSet differ")
    found = {uid: (entry.workload, entry.podset) for uid, entry in expectations.items()}
    _require(found == expected, "expectations and their index by PodSet differ")
    _require(expectations.keys() <= pods.keys(), "an expectation of a pod that is gone")


def check_slices(
    workload_states: Mapping[WorkloadKey, WorkloadState],
    parent_by_slice: Mapping[str, WorkloadKey],
    workload_by_jobset: Mapping[str, WorkloadKey],
) -> None:
    """Compare what is known of slices and of owners with the Workloads.

    Raises:
        InvariantError: they differ.
    """
    found = {
        uid: key for key, workload_state in workload_states.items() for uid in workload_state.slices
    }
    _require(found == parent_by_slice, "slices and their index by UID differ")
    for key, workload_state in workload_states.items():
        for uid, workload in workload_state.slices.items():
            _require(
                workload.uid == uid and workload.parent == key, f"{key}: slice of another Workload"
            )
        merged = workload_state.workload.merged if workload_state.workload is not None else ()
        _require(not workload_state.slices.keys() & set(merged), f"{key}: merged slice kept")
    for owner, key in workload_by_jobset.items():
        found_workload = workload_states[key].workload if key in workload_states else None
        fits = found_workload is not None and found_workload.owner_uid == owner
        _require(fits, f"{key}: JobSet of another Workload")


def _check_podset(
    key: WorkloadKey,
    name: str,
    podset: PodSetState,
    expectations: Mapping[PodUid, Expectation],
) -> None:
    where = f"{key}/{name}"
    _require(not podset.is_empty, f"{where}: empty PodSet kept")
    _require(podset.rejected.keys() <= podset.pods.keys(), f"{where}: rejection of a pod elsewhere")
    _require(
        podset.deletion_seen_at.keys() <= podset.pods.keys(),
        f"{where}: deletion of a pod elsewhere",
    )
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
