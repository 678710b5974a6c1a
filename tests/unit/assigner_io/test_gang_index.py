"""Which events of a job may change what its gangs need."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import DEFAULTS
from rackgate.jobframework.generic_job import JobLike
from rackgate_assigner.gangs.index import GangIndex, JobKey
from tests.unit.assigner_io.builders import job


def changed_by(before: JobLike, after: JobLike) -> list[JobKey]:
    """The jobs to reconcile after an event, by their keys."""
    changed: list[JobKey] = []
    store = {before.metadata.key: before}
    index = GangIndex(
        DEFAULTS,
        {"Job": store},
        {},
        {},
        is_job=lambda _job: True,
        set_hold=lambda _key, _message: None,
        on_change=changed.append,
    )
    index.on_job_upsert(before)
    assert changed, "a job that is new is looked at"
    changed.clear()
    store[after.metadata.key] = after
    index.on_job_upsert(after)
    return changed


def indexed(generation: int = 1, *, meta: Any = None, suspend: bool = False, **of: Any) -> JobLike:
    meta = {"generation": generation, **(meta or {})}
    return job(completionMode="Indexed", suspend=suspend, meta=meta, **of)


def test_the_pods_of_a_running_job_change_nothing() -> None:
    assert changed_by(indexed(), indexed(ready=2)) == []


@pytest.mark.requirement("GNG-21")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (indexed(), indexed(2, count=2)),
        (indexed(), indexed(meta={"annotations": {"a": "b"}})),
        (indexed(), indexed(finished="Failed")),
        (indexed(), indexed(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        (indexed(suspend=True, active=1), indexed(suspend=True)),
    ],
    ids=["spec", "annotations", "end", "deletion", "pods-of-a-suspended-job"],
)
def test_what_may_change_the_gangs_of_a_job(before: JobLike, after: JobLike) -> None:
    assert changed_by(before, after) == [JobKey("Job", before.metadata.key)]
