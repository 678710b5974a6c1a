"""Reviews of jobs without a queue label: what is read, and what happens when it cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.resources import LOCAL_QUEUES
from rackgate.kube.client import Client
from rackgate_webhook.admission.unlabelled_webhook import UnlabelledJobReviews
from rackgate_webhook.serving.bodies import RequestRejectedError
from tests.support.apiserver import FakeApiServer
from tests.support.apiserver_faults import Fault
from tests.support.objects import job, local_queue
from tests.unit.webhook.reviews import review

JOB = "batch/Job"


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    made = api.client()
    yield made
    await made.close()


def reviews(client: Client, *, default_queues: bool = True, **more: Any) -> UnlabelledJobReviews:
    made = UnlabelledJobReviews(
        default_queues=default_queues, **{"manage_all": True, "timeout_s": 5.0, **more}
    )
    made.connect(client)
    return made


def asked(namespace: str = "team") -> Any:
    found = job("train", 2, queue=None)
    found["metadata"]["namespace"] = namespace
    return review(JOB, found)


async def test_the_queue_is_read_for_each_review(api: FakeApiServer, client: Client) -> None:
    judge = reviews(client)
    (waits,) = (await judge.decide(asked())).operations
    assert waits["path"] == "/spec/suspend"
    queue = local_queue("default", "cq")
    queue["metadata"]["namespace"] = "team"
    api.put(LOCAL_QUEUES, queue)
    written = (await judge.decide(asked())).operations
    assert {names.QUEUE_LABEL: "default"} in [op.get("value") for op in written]
    (other,) = (await judge.decide(asked("other"))).operations
    assert other["path"] == "/spec/suspend"
    paths = [LOCAL_QUEUES.path(space, "default") for space in ("team", "team", "other")]
    assert [(request.method, request.path) for request in api.requests] == [
        ("GET", path) for path in paths
    ]


async def test_nothing_is_read_where_nothing_depends_on_it(
    api: FakeApiServer, client: Client
) -> None:
    labelled = job("train", 2)
    assert (await reviews(client).decide(review(JOB, labelled))).operations == []
    off = reviews(client, default_queues=False)
    assert [op["path"] for op in (await off.decide(asked())).operations] == ["/spec/suspend"]
    odd = await reviews(client).decide(asked("../secrets"))
    assert [op["path"] for op in odd.operations] == ["/spec/suspend"]
    assert api.requests == []


async def test_a_queue_that_cannot_be_read_is_a_failed_call_and_no_decision(
    api: FakeApiServer, client: Client
) -> None:
    for fault in (Fault.slow(30.0, times=9), Fault.status(403, "Forbidden", "no role")):
        api.faults[:] = [fault]
        with pytest.raises(RequestRejectedError) as refused:
            await reviews(client, timeout_s=0.2).decide(asked())
        assert (refused.value.status, refused.value.reason) == (503, "unread")
        assert (
            'LocalQueue "default" of namespace "team" cannot be read now' in refused.value.message
        )
