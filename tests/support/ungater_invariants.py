"""The invariants of the ungater's state machine: every index equals the state it is built from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rackgate_ungater.state_machine.gated_objects import GangPod, GatedPod, PodUid, WorkloadKey
from rackgate_ungater.state_machine.records import Expectation, PodSetState, WorkloadState
from rackgate_ungater.state_machine.state_machine import StateMachine


def check_invariants(machine: StateMachine) -> None:
    """Compare every index with the state that it is built from."""
    pods: dict[PodUid, GatedPod] = {}
    expected: dict[PodUid, tuple[WorkloadKey, str]] = {}
    slices: dict[str, WorkloadKey] = {}
    for key, workload_state in machine.workload_states.items():
        workload = workload_state.workload
        _require(not workload_state.is_empty, f"{key}: empty WorkloadState kept")
        _require(workload is None or workload.key == key, f"{key}: holds another Workload")
        for name, podset in workload_state.podsets.items():
            _check_podset(key, name, podset, machine.expectations)
            pods.update(podset.pods)
            expected.update(dict.fromkeys(podset.expected, (key, name)))
        _check_links(key, workload_state, machine)
        for uid, slice_ in workload_state.slices.items():
            _require(
                slice_.uid == uid and slice_.parent == key, f"{key}: slice of another Workload"
            )
            _require(workload is None or uid not in workload.merged, f"{key}: merged slice kept")
            slices[uid] = key
    _require(pods == machine.pods, "pods and their index by PodSet differ")
    found = {uid: (entry.workload, entry.podset) for uid, entry in machine.expectations.items()}
    _require(found == expected, "expectations and their index by PodSet differ")
    _require(
        machine.expectations.keys() <= machine.pods.keys(), "an expectation of a pod that is gone"
    )
    _require(slices == machine._parent_by_slice, "slices and their index by UID differ")
    for owner, key in machine._workload_by_parent.items():
        workload = machine.workload_states[key].workload if key in machine.workload_states else None
        fits = workload is not None and workload.owner_uid == owner
        _require(fits, f"{key}: parent of another Workload")


def _check_podset(
    key: WorkloadKey, name: str, podset: PodSetState, expectations: Mapping[PodUid, Expectation]
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
    in_gangs = [pod for pod in podset.pods.values() if isinstance(pod, GangPod)]
    _require(podset.in_gangs == len(in_gangs), f"{where}: {podset.in_gangs} pods of gangs counted")
    succeeded = sum(pod.succeeded for pod in in_gangs)
    _require(podset.succeeded == succeeded, f"{where}: {podset.succeeded} succeeded counted")
    for uid, pod in podset.pods.items():
        _require(pod.uid == uid, f"{where}: pod under the UID of another")
        kept = isinstance(pod, GangPod) and pod.succeeded
        _require(not pod.terminal or kept, f"{where}: pod that has ended kept")
        _require((pod.workload_key, pod.podset) == (key, name), f"{where}: pod of another PodSet")
        expected = expectations.get(uid) if uid in podset.expected else None
        open_and_seen = expected is not None and not pod.gates & expected.gates
        _require(not open_and_seen, f"{where}: expectation of a pod seen ungated")


def _check_links(key: WorkloadKey, workload_state: WorkloadState, machine: StateMachine) -> None:
    pods = [
        pod
        for podset in workload_state.podsets.values()
        for pod in podset.pods.values()
        if isinstance(pod, GangPod)
    ]
    counted = workload_state.gangs.pods if workload_state.gangs is not None else {}
    _require(counted == Counter(pod.link for pod in pods), f"{key}: links counted wrongly")
    known = {
        pod.link: machine._gang_workloads[pod.link_key]
        for pod in pods
        if pod.link_key in machine._gang_workloads
    }
    kept = workload_state.gangs.workloads if workload_state.gangs is not None else {}
    _require(kept == known, f"{key}: other Workloads of gangs than those that are known")
    users = {link for link, keys in machine._workloads_by_link.items() if key in keys}
    _require(users == {pod.link_key for pod in pods}, f"{key}: links and their index differ")


def _require(condition: bool, message: str) -> None:
    assert condition, message
