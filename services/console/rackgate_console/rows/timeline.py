"""What happened to a Workload, from its conditions and Events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rackgate.api.timestamps import parse_rfc3339
from rackgate.wire.core import Meta, OwnerReference, View
from rackgate.wire.kueue import Workload

MOST_ENTRIES: Final = 500


class EventSeries(View, frozen=True):
    """Repeated Events that are one object."""

    count: int = 0
    last_observed_time: str | None = None


class ObservedEvent(View, frozen=True):
    """An Event of the API events.k8s.io."""

    metadata: Meta = Meta()
    reason: str = ""
    note: str = ""
    type: str = ""
    event_time: str | None = None
    deprecated_first_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None
    series: EventSeries | None = None
    regarding: OwnerReference = OwnerReference()

    @property
    def time(self) -> str:
        """When it was seen last."""
        last = self.series.last_observed_time if self.series is not None else None
        found = (last, self.deprecated_last_timestamp, self.event_time)
        return next((one for one in found if one), self.metadata.creation_timestamp or "")


def timeline(workload: Workload, events: Iterable[ObservedEvent]) -> list[dict[str, Any]]:
    """Entries in the order of their times; the last ones if there are too many.

    Args:
        workload: its conditions show the last change of each state.
        events: of the Workload and its job; they show every change, and are deleted after an hour.
    """
    found = [_entry(workload.metadata.creation_timestamp or "", "Created", "", "Workload")]
    for condition in workload.status.conditions:
        event = condition.type if condition.status == "True" else f"not {condition.type}"
        found.append(
            _entry(condition.last_transition_time or "", event, condition.message, "condition")
        )
    for one in events:
        entry = _entry(one.time, one.reason, one.note, one.regarding.kind)
        entry["warning"] = one.type == "Warning"
        if one.series is not None and one.series.count > 1:
            entry["count"] = one.series.count
        found.append(entry)
    return sorted(found, key=_moment)[-MOST_ENTRIES:]


def _entry(time: str, event: str, text: str, source: str) -> dict[str, Any]:
    return {"time": time, "event": event, "text": text, "from": source}


def _moment(entry: dict[str, Any]) -> float:
    try:
        return parse_rfc3339(entry["time"]).timestamp()
    except (ValueError, OverflowError):
        return 0.0
