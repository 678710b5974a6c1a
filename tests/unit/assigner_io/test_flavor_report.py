"""Gauges and Warnings about nodes that flavors leave out or share: seldom, and once per change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rackgate.api.resources import Resource
from rackgate.runtime.metrics import render
from rackgate.wire.core import Meta, Node
from rackgate.wire.kueue import ResourceFlavor
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.queues.flavor_controller import PORTION, FlavorController
from tests.unit.assigner.builders import RACK, cache_with, flavor, node


class Notes:
    """Takes the place of the recorder's queue: what would be written."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, str]] = []

    def configuration(self, resource: Resource, meta: Meta, reason: str, note: str) -> None:
        self.written.append((meta.name, reason, note))


class World:
    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.notes = Notes()
        flavors: dict[str, ResourceFlavor] = {name: flavor(name) for name in ("tas", "narrow")}
        self.report = FlavorController(cache, flavors, self.notes, min_interval_s=0)  # type: ignore[arg-type]  # the part of Reporter that is used

    async def round(self, change: Callable[[], object] = lambda: None) -> None:
        """Change something and wait for the pass after it."""
        before = self.report.rounds
        change()
        self.report.mark()
        while self.report.rounds == before:
            await asyncio.sleep(0)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.report.run())
    try:
        await world.round()
        yield world
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def bare(name: str) -> Node:
    found = node(name)
    found.metadata.labels.pop(RACK)
    return found


@pytest.mark.requirement("TAS-04", "TAS-33")
@pytest.mark.field_note("C18")
async def test_what_is_left_out_or_shared_is_reported_once_per_change() -> None:
    cache = cache_with([node("good", labels={"team": "x"}), bare("bare")])
    cache.set_flavor(flavor("narrow", node_labels={"team": "x"}))
    async with running(World(cache)) as world:
        told = [(name, reason) for name, reason, _ in world.notes.written]
        assert told == [
            ("narrow", "FlavorsShareNodes"),
            ("tas", "NodesWithoutLevels"),
            ("tas", "FlavorsShareNodes"),
        ]
        assert 'bare: no label "rack"' in world.notes.written[1][2]
        text = render().decode()
        assert 'rackgate_flavor_skipped_nodes{flavor="tas",reason="missingLevel"} 1.0' in text
        assert 'rackgate_flavor_overlap_nodes{flavor="tas",other="narrow"} 1.0' in text
        await world.round()
        assert len(world.notes.written) == 3
        await world.round(lambda: cache.set_node(node("bare")))
        assert 'reason="missingLevel"' not in render().decode()
        assert len(world.notes.written) == 3
        await world.round(lambda: cache.set_node(bare("bare")))
        assert world.notes.written[3][:2] == ("tas", "NodesWithoutLevels")
    assert "rackgate_flavor_skipped_nodes{" not in render().decode()


async def test_heartbeats_and_allocatable_start_no_pass() -> None:
    async with running(World(cache_with([node("a")]))) as world:
        rounds = world.report.rounds
        world.report.on_node_upsert(node("a"), node("a", cpu="9"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.report.rounds == rounds
        world.report.on_node_upsert(node("a"), node("a", ready=False))
        while world.report.rounds == rounds:
            await asyncio.sleep(0)


async def test_a_large_cluster_is_looked_at_in_portions() -> None:
    nodes = [node(f"n{number}") for number in range(3 * PORTION)]
    async with running(World(cache_with(nodes))) as world:
        turns = 0
        before = world.report.rounds
        world.report.mark()
        while world.report.rounds == before:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 3
