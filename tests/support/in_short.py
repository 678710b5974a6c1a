"""Objects of a cluster in a line or two, for messages of tests that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.support.objects import Object

# A condition's message and an Event's note are cut after so many characters.
WORDS = 200


def pods(found: Iterable[Object]) -> list[str]:
    """Each pod with its phase, node and gates."""
    return [pod(one) for one in found]


def pod(found: Object) -> str:
    """A pod with its phase, node and gates."""
    spec, status = _part(found, "spec"), _part(found, "status")
    host = spec.get("nodeName")
    words = [status.get("phase", "no phase"), f"on {host}" if host else "not bound"]
    if gates := [gate.get("name", "?") for gate in spec.get("schedulingGates") or ()]:
        words.append(f"gated by {' and '.join(gates)}")
    if "deletionTimestamp" in _part(found, "metadata"):
        words.append("being deleted")
    words += [
        f'{entry.get("reason", "")} "{_cut(entry.get("message", ""))}"'
        for entry in status.get("conditions") or ()
        if entry.get("type") == "PodScheduled" and entry.get("reason") == "Unschedulable"
    ]
    return f"{_name(found)}: {', '.join(words)}"


def workload(found: Object) -> str:
    """A Workload with its podsets, whether it is admitted, and its conditions."""
    spec, status = _part(found, "spec"), _part(found, "status")
    asked = [f"{one.get('name')} {one.get('count')}" for one in spec.get("podSets") or ()]
    admission = status.get("admission")
    words = [
        f"podsets {', '.join(asked)}",
        f"granted by {admission.get('clusterQueue')}" if admission else "nothing granted",
    ]
    if spec.get("active") is False:
        words.append("not active")
    if owners := _part(found, "metadata").get("ownerReferences"):
        words.append("of " + " and ".join(f"{it.get('kind')} {it.get('name')}" for it in owners))
    return f"{_name(found)}: {'; '.join(words)}{_conditions(status)}"


def job(found: Object) -> str:
    """A Job, JobSet or RayCluster: whether it is suspended, its counts and conditions."""
    spec, status = _part(found, "spec"), _part(found, "status")
    words = ["suspended" if spec.get("suspend") else "not suspended"]
    if "parallelism" in spec:
        words.append(f"parallelism {spec['parallelism']}")
    told = ("active", "ready", "succeeded", "failed", "state")
    words += [f"{field} {status[field]}" for field in told if status.get(field)]
    if "deletionTimestamp" in _part(found, "metadata"):
        words.append("being deleted")
    return f"{_name(found)}: {', '.join(words)}{_conditions(status)}"


def event(found: Object) -> str:
    """An Event with its time, reason, object and note."""
    about = _part(found, "regarding")
    note = _cut(found.get("note", ""))
    return f"{event_time(found)} {found.get('reason')} {about.get('name')}: {note}"


def event_time(found: Object) -> str:
    """When an Event was last seen, as the API server writes times; "" when nothing tells."""
    series = _part(found, "series").get("lastObservedTime")
    made = _part(found, "metadata").get("creationTimestamp")
    return str(
        series or found.get("deprecatedLastTimestamp") or found.get("eventTime") or made or ""
    )


def _conditions(status: Mapping[str, object]) -> str:
    entries = status.get("conditions")
    if not isinstance(entries, list):
        return ""
    return "".join(
        f"\n    {entry.get('type')}={entry.get('status')} {entry.get('reason', '')}: "
        f"{_cut(entry.get('message', ''))}"
        for entry in entries
    )


def _part(found: Object, field: str) -> Object:
    """A part of an object that may be left out, or null."""
    return found.get(field) or {}


def _name(found: Object) -> str:
    return str(_part(found, "metadata").get("name"))


def _cut(text: object) -> str:
    words = str(text)
    return words if len(words) <= WORDS else f"{words[:WORDS]}…"
