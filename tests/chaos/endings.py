"""Whether jobs have ended."""

from __future__ import annotations

from tests.support.objects import Object

# A Job's condition, and a JobSet's.
COMPLETE = ("Complete", "Completed")


def finished(found: Object) -> bool:
    """Whether a Job or JobSet is complete."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(c["type"] in COMPLETE and c["status"] == "True" for c in conditions)
