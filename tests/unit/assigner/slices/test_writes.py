from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.wire.core import Meta
from rackgate.wire.kueue import MergedSlice, Workload, WorkloadStatus
from rackgate_assigner.workload.status import status_body

PARENT = Workload(
    metadata=Meta(name="job", namespace="team", resource_version="7"),
    status=WorkloadStatus(folded_slices=(MergedSlice("u1", "a"), MergedSlice("u2", "b"))),
)


def status(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status_body(PARENT, [], None, **options))["status"]
    return found


@pytest.mark.requirement("SLC-19")
def test_settled_slices_outlive_every_write_of_an_admission_also_its_end() -> None:
    """An apply without them would take them out, and the next fold count them once more."""
    entries = [{"uid": "u1", "podSet": "a"}, {"uid": "u2", "podSet": "b"}]
    assert status()["foldedSlices"] == entries
    assert "foldedSlices" not in status(merged_slices=())
    assert status(merged_slices=[MergedSlice("u2", "b")])["foldedSlices"] == entries[1:]
