"""Which events of a job may change what its gangs need."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.features import DEFAULTS
from rackgate.jobframework.generic_job import JobLike
from rackgate_assigner.gangs.index import GangIndex, JobKey
from rackgate_assigner.gangs.run_spec import NO_GANG
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


def test_a_look_at_a_job_that_is_not_managed_does_not_make_it_a_user() -> None:
    started = indexed(meta={"annotations": {names.WORKLOAD_ANNOTATION: "k"}})
    used: list[str] = []
    index = GangIndex(
        DEFAULTS,
        {"Job": {started.metadata.key: started}},
        {},
        {},
        is_job=lambda _job: False,
        set_hold=lambda _key, _message: None,
        on_change=lambda _key: None,
        on_use_change=used.append,
    )
    assert index.job_gang(started) == NO_GANG
    assert not used
