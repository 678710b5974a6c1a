"""Jobs of namespaces that `managedJobsNamespaceSelector` does not select are left alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from aiohttp import web

from rackgate.api import resources as kinds
from rackgate_assigner.assigner import Assigner
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import (
    NAMESPACE,
    World,
    assigner,
    eventually,
    furnish,
    settings,
    tasks_of,
)

pytestmark = pytest.mark.requirement("OPS-11")


def replica(world: World) -> AbstractAsyncContextManager[Assigner]:
    selector = {"matchLabels": {"managed": "true"}}
    return assigner(world, configured=settings(managedJobsNamespaceSelector=selector))


def label(world: World, value: str) -> None:
    labels = {"managed": value}
    world.change(kinds.NAMESPACES, NAMESPACE, lambda space: space["metadata"].update(labels=labels))


async def heard(found: Assigner, value: str) -> None:
    """The assigner knows the namespace with this label."""
    store = found.watches.namespaces.store
    await eventually(lambda: store[NAMESPACE].metadata.labels.get("managed") == value)


async def test_a_job_counts_from_the_moment_its_namespace_is_selected() -> None:
    async with World() as world:
        furnish(world)
        # As its user started it: nobody suspends the Jobs of such a namespace.
        world.submit("free", 2, queue="plain", spec={"suspend": False})
        world.submit("waits", 2, queue="plain")
        async with replica(world) as found:
            await eventually(lambda: found.scheduler.cycles > 0)
            world.change(
                kinds.JOBS, "free", lambda job: job["metadata"].update(annotations={"a": "b"})
            )
            jobs = found.watches.kinds["Job"].store
            await eventually(lambda: "a" in jobs[f"{NAMESPACE}/free"].metadata.annotations)
            assert world.workloads() == []
            assert world.runs("free")
            assert not world.runs("waits")
            label(world, "true")
            # One is stopped and queued, as anywhere; both are admitted.
            await eventually(lambda: world.admitted("free") and world.runs("free"))
            await eventually(lambda: world.runs("waits"))
            assert world.broken_rules == ["free runs without an admission"]


async def test_what_was_admitted_runs_to_its_end_where_nothing_new_is_managed() -> None:
    async with World() as world, replica(world) as found:
        furnish(world)
        label(world, "true")
        world.submit("first", 2, queue="plain")
        await eventually(world.started("first"))
        label(world, "no")
        await heard(found, "no")
        world.submit("second", 2, queue="plain")
        jobs = found.watches.kinds["Job"].store
        await eventually(lambda: f"{NAMESPACE}/second" in jobs)
        await eventually(lambda: len(found.jobs.queue) == 0)
        assert world.runs("first")
        world.complete("first")
        await eventually(world.shows("first", "Finished", "True", "Succeeded"))
        assert [own["metadata"]["ownerReferences"][0]["name"] for own in world.workloads()] == [
            "first"
        ]
        assert not world.runs("second")
        assert world.broken_rules == []


async def test_a_job_whose_workload_is_deleted_is_let_go_where_nothing_is_managed() -> None:
    async with World() as world, replica(world) as found:
        furnish(world)
        label(world, "true")
        world.submit("train", 2, queue="plain")
        await eventually(world.started("train"))
        label(world, "no")
        await heard(found, "no")
        world.delete(kinds.WORKLOADS, world.workload("train")["metadata"]["name"])
        await eventually(lambda: not world.workloads())
        assert not world.runs("train")
        await eventually(lambda: found.cache.totals.used().get("plain", {}) == {})
        world.change(kinds.JOBS, "train", lambda job: job["spec"].update(suspend=False))
        jobs = found.watches.kinds["Job"].store
        await eventually(lambda: not jobs[f"{NAMESPACE}/train"].spec.suspend)
        # Two more cycles on what is known now.
        for _ in range(2):
            seen = found.scheduler.cycles
            found.scheduler.request_cycle()
            await eventually(functools.partial(_more_cycles, found, seen))
        assert world.runs("train")
        assert world.workloads() == []


@pytest.mark.parametrize("late", ["/workloads", "/jobs", "/namespaces"])
async def test_after_a_restart_what_was_admitted_counts_in_whatever_order_it_is_listed(
    late: str,
) -> None:
    """A job of a namespace that is not selected any more, and one that never was managed."""
    async with World() as world:
        furnish(world)
        async with replica(world) as found:
            label(world, "true")
            world.submit("first", 2, queue="plain")
            await eventually(world.started("first"))
            label(world, "no")
            await heard(found, "no")
        world.submit("second", 2, queue="plain", spec={"suspend": False})
        asked: set[str] = set()

        async def after_the_others(
            _: web.Request, handle: Callable[[], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            # A list that is held up: everything else is known by then.
            store = {"/jobs": running.watches.workloads, "/workloads": running.watches.kinds["Job"]}
            await eventually(lambda: store.get(late, running.watches.workloads).store)
            asked.add(late)
            return await handle()

        fault = Fault(after_the_others, method="GET", path=late, watch=False)
        world.faults.append(fault)
        client = world.client()
        selector = {"matchLabels": {"managed": "true"}}
        running = Assigner(settings(managedJobsNamespaceSelector=selector), client)
        async with tasks_of(client, running.follow()):
            await asyncio.wait_for(running.synced(), 60)
            assert asked == {late}
            for name, managed in (("first", True), ("second", False)):
                assert (
                    running.cache.live_pods.is_managed(world.job(name)["metadata"]["uid"])
                    is managed
                )


def _more_cycles(found: Assigner, seen: int) -> bool:
    return found.scheduler.cycles > seen
