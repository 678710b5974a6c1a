"""Which jobs are looked at when a namespace is selected: its own, and not all there are."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, ValuesView
from typing import cast

import pytest

from rackgate.jobframework.generic_job import JobLike
from rackgate.kube.client import Client
from rackgate_assigner.jobs.controller import JobController
from rackgate_assigner.jobs.executor import Stores
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter
from tests.unit.assigner_io.builders import job


class Scanned(UserDict[str, JobLike]):
    """A store that counts how often all of it is read."""

    scans = 0

    def values(self) -> ValuesView[JobLike]:
        self.scans += 1
        return super().values()


def controller(store: Scanned, selected: Callable[[str], bool] | None) -> JobController:
    return JobController(
        Stores({"Job": store}, {}, {}, {}, {}, {}),
        cast(Client, None),
        cast(WorkloadWriter, None),
        cast(Reporter, None),
        is_namespace_selected=selected,
    )


def of(namespace: str) -> JobLike:
    return job(meta={"namespace": namespace, "uid": namespace})


@pytest.mark.requirement("OPS-11")
def test_a_namespace_that_is_selected_looks_at_its_own_jobs_alone() -> None:
    store = Scanned({f"{name}/train": of(name) for name in ("a", "b")})
    jobs = controller(store, lambda _: True)
    for known in list(store.values()):
        jobs.on_job_upsert(None, known)
    before = store.scans
    assert jobs.on_namespace_change("a") == [store["a/train"]]
    assert jobs.on_namespace_change("c") == []
    jobs.on_job_delete(store.pop("a/train"))
    assert jobs.on_namespace_change("a") == []
    assert store.scans == before


def test_without_a_selector_no_namespace_is_remembered() -> None:
    jobs = controller(Scanned(), None)
    jobs.on_job_upsert(None, of("a"))
    assert jobs.is_followed(of("a"))
    assert jobs._jobs_by_namespace == {}  # no other sign of what it costs
