"""Reviews of OSMO's kinds: what is read for them, and what happens when it cannot be read."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rackgate.api.resources import OSMO_POOLS, OSMO_WORKFLOWS
from rackgate.kube.client import Client
from rackgate_webhook.admission.osmo import POOL, WORKFLOW
from rackgate_webhook.admission.osmo_webhook import (
    PAGE_SIZE,
    WORKFLOW_THREADS,
    OsmoReviews,
    used_keys,
)
from rackgate_webhook.admission.review import AdmissionResponse, Review
from rackgate_webhook.serving.bodies import SMALL_BYTES, RequestRejectedError
from rackgate_webhook.serving.server import MAX_LARGE_ASYNC_REVIEWS, REJECTED_REQUESTS
from tests.support.apiserver import FakeApiServer
from tests.support.apiserver_faults import Fault
from tests.support.waiting import until
from tests.unit.webhook.reviews import body, review
from tests.unit.webhook.test_osmo import RACK, ZONE, pool, workflow
from tests.wire.webhook_server import calling, connections, count, request, serving, url
from tests.wire.webhook_world import JSON, REVIEW

PATH = "/validate-osmo"


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    made = api.client()
    yield made
    await made.close()


def reviews(client: Client, timeout_s: float = 5.0) -> OsmoReviews:
    made = OsmoReviews(timeout_s=timeout_s)
    made.connect(client)
    return made


@pytest.mark.requirement("OSM-06")
async def test_a_workflow_is_judged_by_its_pool_as_it_is_stored_now(
    api: FakeApiServer, client: Client
) -> None:
    asked = review(WORKFLOW, workflow({"key": "rack"}))
    judge = reviews(client)
    (missing,) = (await judge.decide(asked)).errors
    assert (missing.path, "my-pool" in missing.advice) == ("spec.pool", True)
    api.put(OSMO_POOLS, pool(ZONE))
    assert (await judge.decide(asked)).errors[0].path == "spec.resources.default.topology[0].key"
    api.put(OSMO_POOLS, pool(ZONE, RACK))
    assert (await judge.decide(asked)).allowed, "nothing is remembered"


@pytest.mark.requirement("OSM-21")
async def test_a_review_of_a_workflow_costs_one_read_and_writes_nothing(
    api: FakeApiServer, client: Client
) -> None:
    api.put(OSMO_POOLS, pool(RACK))
    await reviews(client).decide(review(WORKFLOW, workflow({"key": "rack"})))
    assert [(request.method, request.path) for request in api.requests] == [
        ("GET", OSMO_POOLS.path(name="my-pool"))
    ]


async def test_a_review_that_needs_nothing_reads_nothing(
    api: FakeApiServer, client: Client
) -> None:
    judge = reviews(client)
    assert (await judge.decide(review(POOL, pool(ZONE, RACK), pool(ZONE)))).allowed
    assert (await judge.decide(review("argoproj.io/Workflow", {"metadata": {}}))).allowed
    odd = workflow(pool="../secrets")
    assert not (await judge.decide(review(WORKFLOW, odd))).allowed
    assert api.requests == []


async def test_a_pool_that_cannot_be_read_is_a_failed_call_and_no_decision(
    api: FakeApiServer, client: Client
) -> None:
    asked = review(WORKFLOW, workflow())
    for fault in (Fault.slow(30.0, times=9), Fault.status(403, "Forbidden", "no role")):
        api.faults[:] = [fault]
        with pytest.raises(RequestRejectedError) as refused:
            await reviews(client, timeout_s=0.2).decide(asked)
        assert (refused.value.status, refused.value.reason) == (503, "unread")
        assert '"my-pool" cannot be read now, try again' in refused.value.message


@pytest.mark.requirement("OSM-08")
async def test_workflows_of_all_namespaces_that_use_a_given_up_key_are_reported(
    api: FakeApiServer, client: Client
) -> None:
    for namespace, name, key, of in (
        ("a", "one", "rack", "my-pool"),
        ("b", "two", "rack", "my-pool"),
        ("b", "three", "zone", "my-pool"),
        ("b", "four", "rack", "other"),
    ):
        stored = workflow({"key": key}, pool=of)
        stored["metadata"] = {"name": name, "namespace": namespace}
        api.put(OSMO_WORKFLOWS, stored)
    admission_response = await reviews(client).decide(review(POOL, pool(ZONE), pool(ZONE, RACK)))
    assert admission_response.allowed
    (warning,) = admission_response.warnings
    assert warning.startswith('"rack" is used by a/one, b/two; ')


async def test_pages_of_workflows_are_small_enough_for_the_largest(
    api: FakeApiServer, client: Client
) -> None:
    for number in range(PAGE_SIZE + 1):
        stored = workflow({"key": "rack"})
        stored["metadata"] = {"name": f"w{number}", "namespace": "a"}
        api.put(OSMO_WORKFLOWS, stored)
    admission_response = await reviews(client).decide(review(POOL, pool(ZONE), pool(ZONE, RACK)))
    assert "a/w0" in admission_response.warnings[0]
    assert f"and {PAGE_SIZE - 2} more" in admission_response.warnings[0], "all pages are read"
    assert len(api.requests) == 2
    assert PAGE_SIZE * 1.5 <= 24, "MiB of a webhook that may take 384"


class Held(list[Any]):
    """Task groups that nobody is done reading before they are let go."""

    begun = 0
    let_go = threading.Event()

    def __len__(self) -> int:
        if not self.let_go.is_set():
            Held.begun += 1
            waited = self.let_go.wait(30)
            self.let_go.set()
            assert waited, "nothing else was answered meanwhile"
        return super().__len__()


@pytest.mark.requirement("OSM-21")
async def test_other_reviews_are_answered_while_large_workflows_are_judged(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Held, "begun", 0)
    monkeypatch.setattr(Held, "let_go", threading.Event())
    api.put(OSMO_POOLS, pool(ZONE, RACK))
    large = workflow({"key": "rack"})
    large["spec"]["groups"] = Held(large["spec"]["groups"])
    judge = reviews(client)
    judging = [asyncio.create_task(judge.decide(review(WORKFLOW, large))) for _ in range(9)]
    async with serving() as server, calling() as session:
        try:
            await until(
                lambda: len(api.requests) == len(judging) and Held.begun == WORKFLOW_THREADS
            )
            for _ in range(20):
                async with session.post(url(server), data=REVIEW, headers=JSON) as answer:
                    assert answer.status == 200
            assert Held.begun == WORKFLOW_THREADS, "the others wait"
            assert not any(task.done() for task in judging)
        finally:
            Held.let_go.set()
        assert all(
            admission_response.allowed for admission_response in await asyncio.gather(*judging)
        )


@pytest.mark.requirement("OSM-21")
def test_of_a_page_of_large_workflows_one_at_a_time_is_held() -> None:
    tasks = [{"name": f"t{number}"} for number in range(5000)]
    large = workflow({"key": "rack"}, groups=[{"name": "g", "tasks": tasks}])
    large["metadata"] = {"name": "w", "namespace": "a"}
    page = json.dumps({"items": [large] * 40}).encode()
    tracemalloc.start()
    try:
        used = [keys for _, keys in used_keys(page, {"rack", "zone"})]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used == [{"rack"}] * 40
    assert peak < len(page)


async def test_users_that_cannot_be_read_do_not_keep_a_pool_from_being_saved(
    api: FakeApiServer, client: Client
) -> None:
    for fault in (Fault.slow(30.0, times=9), Fault.status(403, "Forbidden", "no role")):
        api.faults[:] = [fault]
        asked = review(POOL, pool(), pool(RACK))
        admission_response = await reviews(client, timeout_s=0.2).decide(asked)
        assert admission_response.allowed
        assert "could not be read in time" in admission_response.warnings[0]


async def test_the_server_answers_under_a_path_of_its_own_and_only_on_request(
    api: FakeApiServer, client: Client
) -> None:
    api.put(OSMO_POOLS, pool(ZONE))
    sent = json.dumps(body(WORKFLOW, workflow({"key": "rack"}))).encode()
    async with serving(async_routes={PATH: reviews(client).decide}) as server, calling() as session:
        async with session.post(url(server, PATH), data=sent, headers=JSON) as answer:
            response: dict[str, Any] = json.loads(await answer.read())["response"]
        assert not response["allowed"]
        assert response["status"]["message"].startswith("spec.resources.default.topology[0].key: ")
        async with session.post(url(server, PATH), data=b"{nonsense", headers=JSON) as answer:
            assert answer.status == 400
        async with session.get(url(server, PATH)) as answer:
            assert answer.status == 405
    async with (
        serving() as server,
        calling() as session,
        session.post(url(server, PATH), data=sent, headers=JSON) as answer,
    ):
        assert answer.status == 404


@pytest.mark.requirement("OSM-21")
async def test_large_reviews_that_wait_are_held_a_few_at_a_time() -> None:
    """Decoded they would take all memory; small ones are answered meanwhile."""
    begun, let_go = 0, asyncio.Event()

    async def decide(asked: Review) -> AdmissionResponse:
        nonlocal begun
        if "large" in asked.object["metadata"].get("annotations", {}):
            begun += 1
            await let_go.wait()
        return AdmissionResponse()

    small = workflow()
    large = {**small, "metadata": {"name": "w", "annotations": {"large": "x" * 2 * SMALL_BYTES}}}
    sent = json.dumps(body(WORKFLOW, large)).encode()
    async with (
        serving(async_routes={PATH: decide}) as server,
        calling() as session,
        connections(server, 2 * MAX_LARGE_ASYNC_REVIEWS) as opened,
    ):
        for _, writer in opened:
            writer.write(request(sent, "?timeout=30s").replace(b"/mutate", PATH.encode(), 1))
            await writer.drain()
        await until(lambda: begun >= MAX_LARGE_ASYNC_REVIEWS)
        for _ in range(20):
            data = json.dumps(body(WORKFLOW, small)).encode()
            async with session.post(url(server, PATH), data=data, headers=JSON) as answer:
                assert answer.status == 200
        assert begun == MAX_LARGE_ASYNC_REVIEWS
        let_go.set()
        for reader, _ in opened:
            assert b"200 OK" in await asyncio.wait_for(reader.readline(), 30)
    assert begun == 2 * MAX_LARGE_ASYNC_REVIEWS


async def test_a_caller_is_reported_in_time_that_nothing_could_be_read(
    api: FakeApiServer, client: Client
) -> None:
    api.faults.append(Fault.slow(30.0, times=9))
    sent = json.dumps(body(WORKFLOW, workflow())).encode()
    before = count(REJECTED_REQUESTS, reason="late")
    path = f"{PATH}?timeout=1s"
    async with (
        serving(async_routes={PATH: reviews(client, 30.0).decide}) as server,
        calling() as session,
        session.post(url(server, path), data=sent, headers=JSON) as answer,
    ):
        assert answer.status == 503
        assert "could not be read in time" in await answer.text()
    assert count(REJECTED_REQUESTS, reason="late") == before + 1
