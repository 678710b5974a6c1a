"""Leases as a watch of all of them shows them: none that is gone is taken for held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rackgate.api.resources import LEASES
from rackgate.kube.errors import TransportError
from rackgate.kube.lease.record import decode_answer
from rackgate.kube.lease.watch import LeaseWatch
from tests.support.apiserver import FakeApiServer
from tests.support.waiting import until

SYSTEM = "rackgate-system"


def lease(name: str, holder: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": SYSTEM}
    return {"metadata": meta, "spec": {"holderIdentity": holder, **spec}}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(LEASES, lease("one", "a"))
        running.put(LEASES, lease("two", "b"))
        yield running


@pytest.fixture
async def watch(server: FakeApiServer) -> AsyncIterator[LeaseWatch]:
    client = server.client()
    following = LeaseWatch(client, SYSTEM, lambda: None, idle_s=60)
    task = asyncio.create_task(following.run())
    await until(lambda: server.streams)
    yield following
    task.cancel()
    await asyncio.wait((task,))
    await client.close()


def holder(watch: LeaseWatch, name: str) -> str | None:
    """Who has it; None where there is no such Lease."""
    seen = watch.get(name)
    return seen.lease.spec.holder_identity if seen and seen.lease else None


@pytest.mark.requirement("UNG-15")
async def test_a_lease_that_is_deleted_while_it_is_watched_is_gone(
    server: FakeApiServer, watch: LeaseWatch
) -> None:
    server.remove(LEASES, "one", SYSTEM)
    await until(lambda: holder(watch, "one") is None)
    assert holder(watch, "two") == "b"


@pytest.mark.requirement("UNG-15")
async def test_a_lease_that_cannot_be_read_any_more_is_not_taken_for_deleted(
    server: FakeApiServer, watch: LeaseWatch
) -> None:
    server.put(LEASES, lease("one", "a", leaseTransitions="many"))
    server.compact()
    server.streams[0].cut()
    server.put(LEASES, lease("two", "c"))
    await until(lambda: holder(watch, "two") == "c")
    assert holder(watch, "one") == "a"


@pytest.mark.parametrize("body", [b"<html>", b'{"metadata":{"name":"\xff"}}'])
def test_an_answer_that_is_no_lease_is_no_answer(body: bytes) -> None:
    with pytest.raises(TransportError) as garbage:
        decode_answer("PUT", body)
    assert garbage.value.reason == "Garbage"
