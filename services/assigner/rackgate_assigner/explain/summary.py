"""The summary of an explanation in a sentence or two, and the list of remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import msgspec

from rackgate.api.names import EvictionReason, PendingReason
from rackgate_assigner.explain.causes import NEAR_RESOURCE
from rackgate_assigner.explain.explanation import (
    Explanation,
    FlavorView,
    QueuePosition,
    QuotaLine,
    Remedy,
    State,
    When,
)
from rackgate_assigner.explain.remedies import WHEN_ORDER
from rackgate_assigner.workload.info import WorkloadInfo

_STATE_TEXTS = {
    "finished": "It has finished. Its quota is released.",
    "inactive": "It is inactive. It is pending again when spec.active of the Workload is true.",
    "deleting": "It is being deleted.",
    "unreadable": "Its admission cannot be read, so it is not scheduled and holds no quota.",
    "evicted": "It was evicted. Its quota is released when its job has stopped.",
    "admitted": "It is admitted.",
}
_ENDING_TEXTS = {
    "evicted": "It was evicted",
    "deleting": "It is being deleted",
    "finished": "It has finished",
}


def summary_of(
    state: State, row: WorkloadInfo, found: Explanation | None = None, live_pods: int = 0
) -> str:
    """State in a sentence or two what the status of a Workload is, and why.

    Args:
        state: of the Workload.
        row: the Workload.
        found: the explanation of one that is pending or not submitted.
        live_pods: pods of its job that run or terminate.
    """
    if found is None and live_pods and state in ("evicted", "deleting", "finished"):
        at = f" at {row.evicted_at}" if state == "evicted" and row.evicted_at else ""
        return (
            f"{_ENDING_TEXTS[state]}{at}. {live_pods} pods of its job still run or terminate. "
            "Their quota is held until they are gone."
        )
    if found is None and state == "reserved":
        return _reserved_text(row)
    if found is None:
        more = _unready_text(row) if state == "admitted" else ""
        return _STATE_TEXTS.get(state, "") + more
    if row.requeue_at:
        return f"{found.message[:1].upper()}{found.message[1:]}."
    if found.queue is not None and found.queue.problems:
        return f"Its queue admits no Workloads: {'; '.join(found.queue.problems)}."
    if found.fits:
        if found.in_turn:
            return "It fits now, but the Workloads ahead of it come first."
        if state == "notSubmitted":
            return "It would be admitted at once."
        if row.pending_reason == PendingReason.WAITING_FOR_PODS_READY:
            return (
                "It fits, but nothing is admitted while pods of an admitted Workload are not ready"
                " (waitForPodsReady.blockAdmission)."
            )
        return "It fits now and should be admitted in the next cycle."
    problem = next((podset.problem for podset in row.podsets if podset.problem), None)
    if problem is not None:
        return f"Its template cannot be scheduled: {problem}."
    if row.parent and found.reason == PendingReason.ON_HOLD:
        return f"{found.message[:1].upper()}{found.message[1:]}."
    parts = [*_quota_reasons(found), *_topology_reasons(found)]
    if found.reason == PendingReason.WAITING_FOR_PREEMPTED:
        parts.append("Workloads with lower priority are preempted for it")
    parts += _not_preempted(found)
    return f"{'. '.join(parts)}." if parts else f"{found.message}."


def inactive_explanation(
    row: WorkloadInfo, again: Explanation, queue: QueuePosition
) -> Explanation:
    """What keeps a Workload inactive, and how to reactivate it.

    Args:
        row: the Workload.
        again: the explanation as if it were active.
        queue: its queues.
    """
    invalid = again.reason == EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
    changes: tuple[Remedy, ...] = ()
    summary = _STATE_TEXTS["inactive"]
    if invalid:
        why = "; ".join(_topology_reasons(again)) or again.message
        summary = f"It was deactivated: {why[:1].lower()}{why[1:]}. "
        summary += "Correct its job, and then reactivate the Workload."
        # No change of the job is enough without the reactivation.
        changes = tuple(msgspec.structs.replace(one, when="perhaps") for one in again.changes)
    elif row.evicted_reason == EvictionReason.DEACTIVATED_INVALID_TOPOLOGY:
        summary = "It was deactivated for its topology request, which is valid now. Reactivate it."
    reactivate = Remedy(
        kind="reactivate",
        value=row.key,
        when="now" if again.fits else "perhaps",
        text=f"reactivate it: kubectl patch workloads.kueue.x-k8s.io {row.name} "
        f'-n {row.namespace} --type=merge -p \'{{"spec":{{"active":true}}}}\'',
    )
    return Explanation(
        workload=row.key,
        state="inactive",
        summary=summary,
        priority=again.priority,
        queue=queue,
        flavors=again.flavors if invalid else (),
        changes=(*changes, reactivate),
    )


def _reserved_text(row: WorkloadInfo) -> str:
    """What a Workload with quota waits for."""
    if row.passed_checks:
        return "Quota is reserved for it, and its admission checks are Ready. It is placed next."
    waiting = [
        f"{state.name} ({state.state}{f': {state.message}' if state.message else ''})"
        for state in row.checks
        if state.state != "Ready"
    ]
    if not waiting:
        return "Quota is reserved for it. It is admitted next."
    return f"Quota is reserved for it. It waits for admission checks: {', '.join(waiting)}."


def _unready_text(row: WorkloadInfo) -> str:
    """Whether an admitted Workload is not ready yet, or not any more."""
    if row.not_ready_reason == "WaitForRecovery":
        return f" Since {row.not_ready_since} not all of its pods are ready."
    return " Not all of its pods are ready yet." if row.not_ready_reason else ""


def _quota_reasons(found: Explanation) -> Iterator[str]:
    """What quota is missing, unless some flavor has enough of everything."""
    for line in short_of_quota(found.quota):
        if line.problem:
            yield f"{line.problem[:1].upper()}{line.problem[1:]}"
        elif line.never:
            yield (
                f"It requests {line.requested} {line.resource}, more than the nominal quota of "
                f"{line.nominal} in flavor {line.flavor}"
            )
        else:
            yield (
                f"{line.missing} {line.resource} of the quota of flavor {line.flavor} are missing "
                f"({line.used} of {line.nominal} are in use)"
            )


def _not_preempted(found: Explanation) -> Iterator[str]:
    """Why nothing is preempted, if one rule keeps all Workloads that are listed."""
    texts = {one.text for one in found.not_preempted}
    if len(texts) == 1:
        (one, *others) = found.not_preempted
        names = "The Workloads that hold it are" if others else f"{one.workload} is"
        yield f"{names} not preempted: {one.text}"


def short_of_quota(lines: tuple[QuotaLine, ...]) -> list[QuotaLine]:
    """Lines of resources for which no usable flavor has enough."""
    found = []
    for resource in dict.fromkeys(line.resource for line in lines):
        own = [line for line in lines if line.resource == resource]
        if not any(line.missing == "0" and not line.problem for line in own):
            short = [line for line in own if line.missing != "0"]
            usable = [line for line in short if not line.problem]
            found += (usable or short)[:1]
    return found


def uncovered(lines: Sequence[QuotaLine]) -> list[QuotaLine]:
    """Lines of requested resources that no flavor covers: nothing else matters before that."""
    return [line for line in lines if not line.flavor]


def not_fitting_views(flavors: Sequence[FlavorView]) -> list[FlavorView]:
    """Flavors in whose topology it does not fit: those that were tried, else all."""
    views = [view for view in flavors if not view.fits]
    chosen = [view for view in views if view.chosen]
    usable = [view for view in views if not view.problem]
    return chosen or usable or views


def _topology_reasons(found: Explanation) -> Iterator[str]:
    if any(view.fits and not view.problem for view in found.flavors) or uncovered(found.quota):
        return
    for view in not_fitting_views(found.flavors)[:1]:
        if view.cause:
            yield view.cause
            continue
        if view.fitting is None:
            yield view.problem or view.message
            continue
        asked = next((level for level in view.levels if level.asked), None)
        best = asked.best[0] if asked is not None and asked.best else None
        units = f"{view.unit}s"
        if best is None:
            yield f"Topology {view.topology} has no nodes"
        elif view.asked.startswith("required"):
            level = _level_short_name(asked.level if asked else "")
            best_text = f"the best candidate, {'/'.join(best.domain)}, fits {view.fitting}"
            if asked is not None and asked.fragmented:
                wanted = str(view.wanted) if view.unit == "pod" else f"{view.wanted} {units}"
                total = f"{asked.pods} pods fit in total, but no single {level} fits {wanted}"
                yield f"{total}: {best_text}"
            else:
                yield f"{view.wanted} {units} do not fit in any single {level}: {best_text}"
        else:
            yield f"{view.fitting} of {view.wanted} {units} fit in all domains together"
        lacking = sum(one.nodes for one in view.excluded if one.rule == "missingLevel")
        if lacking:
            nodes = "1 node lacks" if lacking == 1 else f"{lacking} nodes lack"
            yield f"{nodes} level labels"


def _level_short_name(level: str) -> str:
    return level.rpartition("/")[2].removeprefix("topology-")


def changes_of(found: Explanation, covered: Sequence[str] = ()) -> tuple[Remedy, ...]:
    """Remedies: now, after others have ended, or necessary but possibly not enough.

    If both quota and topology are missing, a remedy for one of them is not reported as enough.

    Args:
        found: without its changes.
        covered: resources that flavors of the ClusterQueue have quota of.
    """
    if found.fits:
        return ()
    changes: list[Remedy] = []
    if found.queue is not None:
        changes += [
            Remedy(kind="queue", value="", when="perhaps", text=_queue_text(problem))
            for problem in found.queue.problems
        ]
    short = short_of_quota(found.quota)
    placed = any(view.fits and not view.problem for view in found.flavors)
    views = [] if placed or uncovered(short) else not_fitting_views(found.flavors)
    enough = len(short) == 1 and (not views or any(view.fits_when_empty for view in views))
    for line in short:
        changes += _quota_changes(line, enough=enough)
    for line in uncovered(short):
        changes += _uncovered_changes(line.resource, covered)
    for view in views:
        changes += (_limited_by_quota(change, short) for change in view.changes)
    return tuple(sorted(dict.fromkeys(changes), key=lambda change: WHEN_ORDER.index(change.when)))


def _queue_text(problem: str) -> str:
    if "(stopPolicy: " in problem:
        return f"{problem}. Ask its administrator to set spec.stopPolicy to None."
    return f"fix the queue: {problem}"


def _limited_by_quota(change: Remedy, short: Sequence[QuotaLine]) -> Remedy:
    """A change that makes pods fit, which helps only if their quota is free, too."""
    if not short or change.when == "perhaps":
        return change
    released_later = not any(line.never or line.problem for line in short)
    return msgspec.structs.replace(change, when="whenEmpty" if released_later else "perhaps")


def _quota_changes(line: QuotaLine, *, enough: bool) -> Iterator[Remedy]:
    if line.problem:
        return
    if not line.never and line.holders:
        names = ", ".join(holder.name for holder in line.holders)
        text = f"wait until {line.missing} {line.resource} of quota are released, held by {names}"
        when: When = "whenEmpty" if enough else "perhaps"
        yield Remedy(kind="quota", value=line.missing, when=when, text=text)
        return
    text = f"raise the quota of {line.resource} in flavor {line.flavor} to {line.requested}"
    if not line.never:
        text = f"free {line.missing} {line.resource} of quota in flavor {line.flavor}"
    yield Remedy(kind="quota", value=line.missing, when="perhaps", text=text)


def _uncovered_changes(resource: str, covered: Sequence[str]) -> Iterator[Remedy]:
    near = get_close_matches(resource, covered, n=1, cutoff=NEAR_RESOURCE)
    text = f"do not request {resource}, or ask the administrator of the ClusterQueue to cover it"
    if near:
        text = f"request {near[0]} instead of {resource}"
    yield Remedy(kind="resource", value=near[0] if near else "", when="perhaps", text=text)
