"""Why gangs of an admitted job do not run: which pods and gates, and the time left. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rackgate.api.names import GANG_GATE
from rackgate.gang.forms.expand import DEFAULT_TIMEOUT_S
from rackgate.gang.levels import Object
from rackgate.gang.link import link_of
from rackgate.gang.readiness import NOTHING, GangState, gangs_of, least_of
from rackgate.wire.core import Pod
from rackgate_assigner.explain.explanation import GangView, NotRunningPods
from rackgate_assigner.explain.running import reason_not_running
from rackgate_assigner.gangs.reactions import gang_pod, gone_of


def gang_views(
    workload: str,
    spec: Object | None,
    pods: Iterable[Pod],
    *,
    run: str,
    since_s: float | None,
    top: int,
    absent: str = "",
    done: Mapping[str, int] = NOTHING,
) -> list[GangView]:
    """The gangs of a job, in the order of their groups.

    Args:
        workload: name of the Workload of gangs.
        spec: canonical, of this run; None if it does not exist.
        pods: of the job; those that name the Workload of gangs count.
        run: id of the present admission; "" if there is none.
        since_s: seconds since that admission, None if unknown.
        top: names to list for each reason.
        absent: why there are no pods, if that is known.
        done: by PodSet, pods that are done and not created again.
    """
    linked = [pod for pod in pods if link_of(pod.metadata.annotations) == workload]
    if spec is None:
        gated = [pod for pod in linked if pod.has_gate(GANG_GATE)]
        if not gated:
            return []
        text = f'its Workload of gangs "{workload}" does not exist: create it, or delete the pods'
        names = tuple(sorted(pod.metadata.name for pod in gated)[:top])
        lacks = (NotRunningPods(why="gated", pods=len(gated), names=names),)
        return [GangView(gang="", workload=workload, state="Held", why=text, pods=lacks)]
    by_uid = {pod.metadata.uid: pod for pod in linked}
    present = [found.member for found in map(gang_pod, linked) if not found.lost]
    assigned = {member.uid for member in present if member.gated}
    gone = gone_of(done, present)
    found = gangs_of(spec, present, run=run, assigned=assigned, gone=gone)
    views = []
    for group in spec["gangGroups"]:
        least, name = least_of(group), str(group["name"])
        if not least:
            continue
        timeout_s = float(group.get("scheduleTimeoutSeconds") or DEFAULT_TIMEOUT_S)
        left_s = None if since_s is None or not run else timeout_s - since_s
        states = [state for state in found.states if state.key.group == name]
        if not states:
            why = absent or f"none of its {least} pods exists"
            views.append(_view(name, workload, least, why=why, left_s=left_s))
        views += [_state_view(one, workload, by_uid, left_s, top) for one in states]
    return views


def _view(
    gang: str, workload: str, least: int, *, why: str, left_s: float | None, state: str = "Held"
) -> GangView:
    left = None if left_s is None else max(0, round(left_s))
    return GangView(
        gang=gang, workload=workload, min_count=least, state=state, why=why, left_seconds=left
    )


def _state_view(
    state: GangState,
    workload: str,
    pods: dict[str, Pod],
    left_s: float | None,
    top: int,
) -> GangView:
    name, least = str(state.key), state.min_count
    gated = [member for member in state.members if member.gated]
    if state.bound >= least:
        view = _view(name, workload, least, why="", left_s=None, state="Running")
    elif state.waiting is not None:
        view = _view(name, workload, least, why=state.message, left_s=left_s)
    elif len(gated) == len(state.members):
        why = "all its pods exist, and the ungater has not released them: check that it runs"
        view = _view(name, workload, least, why=why, left_s=left_s, state="Complete")
    elif gated:
        why = f"{len(gated)} of its pods are not released yet"
        view = _view(name, workload, least, why=why, left_s=left_s, state="Releasing")
    else:
        why = f"{state.bound} of {least} pods have a node"
        view = _view(name, workload, least, why=why, left_s=left_s, state="Released")
    lacking = [
        pods[member.uid] for member in state.members if not (member.bound or member.succeeded)
    ]
    return msgspec.structs.replace(
        view,
        members=len(state.members),
        released=state.released,
        bound=state.bound,
        pods=() if view.state == "Running" else _lacking(lacking, top),
    )


def _lacking(pods: Sequence[Pod], top: int) -> tuple[NotRunningPods, ...]:
    by_reason: dict[str, list[str]] = {}
    for pod in pods:
        by_reason.setdefault(_lack(pod), []).append(pod.metadata.name)
    return tuple(
        NotRunningPods(why=why, pods=len(names), names=tuple(sorted(names)[:top]))
        for why, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _lack(pod: Pod) -> str:
    """Which gates a pod has, or why it has no node."""
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    if gates:
        return f"gated by {', '.join(sorted(gates))}"
    return reason_not_running(pod) or "has no node"
