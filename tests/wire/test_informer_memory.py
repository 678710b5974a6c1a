"""What an informer keeps of what it reads: rows, never objects or pages."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api import names
from rackgate.api.resources import PODS
from rackgate.kube.informer import Informer
from rackgate.wire.core import Pod
from rackgate_ungater.state_machine.gated_objects import GatedPod, decode_pod
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

PODS_LISTED = 10_000
PAGE = 500
RAW_BYTES = 4_000
# Measured: some 1,020 bytes a row on CPython 3.11. A raw object would be four times as much.
ROW_BYTES = 1_600

_PAD = "x" * (RAW_BYTES - 900)


def raw_pod(number: int, version: int = 1) -> str:
    """JSON of a gated pod of some 4 kB, as the API server would list it."""
    workload = f"train-{number // 100}"
    return (
        f'{{"metadata":{{"name":"{workload}-{number % 100}-x7k2p","namespace":"team",'
        f'"uid":"{number:08}-1111-4222-8333-444455556666","resourceVersion":"{version}",'
        f'"labels":{{"{names.PODSET_LABEL}":"main","{names.TAS_LABEL}":"true",'
        f'"{names.COMPLETION_INDEX_LABEL}":"{number % 100}"}},'
        f'"annotations":{{"{names.WORKLOAD_ANNOTATION}":"{workload}"}},'
        f'"ownerReferences":[{{"kind":"Job","name":"j","uid":"{workload}-job","controller":true}}],'
        f'"managedFields":[{{"manager":"{_PAD}"}}]}},'
        f'"spec":{{"containers":[{{"name":"main","image":"registry.example/train:1"}}],'
        f'"schedulingGates":[{{"name":"{names.TOPOLOGY_GATE}"}}],'
        f'"nodeSelector":{{"disk":"ssd"}}}},"status":{{"phase":"Pending"}}}}'
    )


class Pages:
    """A collection that exists only while a page of it is sent."""

    def __init__(self) -> None:
        self.largest = 0
        self.served = 0

    async def answer(self, request: web.Request, handle: Callable[[], Any]) -> web.StreamResponse:
        if "watch" in request.query:
            return web.Response(status=410)
        start = int(request.query.get("continue", "0"))
        end = min(start + int(request.query["limit"]), PODS_LISTED)
        token = str(end) if end < PODS_LISTED else ""
        items = ",".join(raw_pod(number) for number in range(start, end))
        meta = f'{{"resourceVersion":"7","continue":"{token}"}}'
        body = f'{{"metadata":{meta},"items":[{items}]}}'.encode()
        self.largest, self.served = max(self.largest, len(body)), self.served + 1
        return web.Response(body=body)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@pytest.mark.requirement("OPS-07")
async def test_lists_cost_a_row_for_each_pod_and_a_few_pages_for_the_moment(
    server: FakeApiServer,
) -> None:
    """Also the second list after a 410, which meets a full store."""
    pages = Pages()
    server.faults.append(Fault(pages.answer, times=10**6))
    client = server.client(request_timeout_s=20)
    informer: Informer[GatedPod] = Informer(
        client,
        PODS,
        decode_pod,
        on_upsert=lambda _, row: None,
        on_delete=lambda row: None,
        key_of=lambda row: row.key,
        version_of=lambda row: row.resource_version,
        uid_of=lambda row: row.uid,
    )
    gc.collect()
    tracemalloc.start()
    task = asyncio.create_task(informer.run())
    try:
        before = tracemalloc.get_traced_memory()[0]
        await until(informer.synced.is_set, within_s=120)
        lists = pages.served
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.reset_peak()
        await until(lambda: pages.served >= 2 * lists + 2, within_s=120)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        task.cancel()
        await asyncio.wait((task,))
        await client.close()
    assert len(informer.store) == PODS_LISTED
    assert lists == PODS_LISTED // PAGE
    assert held / PODS_LISTED < ROW_BYTES
    # The page, what was received of the next one, and the same twice in the fake server.
    assert peak - held < 8 * pages.largest < PODS_LISTED * RAW_BYTES / 2


async def test_what_a_decoder_gets_of_a_page_is_the_object_alone(server: FakeApiServer) -> None:
    """A part of it that a row keeps would else keep the page alive."""
    for number in range(50):
        server.put(PODS, {"metadata": {"name": f"p{number}", "namespace": "ns"}, "spec": {}})
    given: list[bytes | msgspec.Raw] = []

    def decode(raw: bytes | msgspec.Raw) -> Pod:
        given.append(raw)
        return msgspec.json.decode(raw, type=Pod)

    client = server.client()
    informer: Informer[Pod] = Informer(
        client, PODS, decode, on_upsert=lambda _, pod: None, on_delete=lambda pod: None
    )
    task = asyncio.create_task(informer.run())
    await until(informer.synced.is_set)
    task.cancel()
    await asyncio.wait((task,))
    await client.close()
    assert len(given) == 50
    assert all(type(raw) is bytes and len(raw) < 500 for raw in given)
