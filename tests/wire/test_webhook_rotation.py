"""Replicas of the webhook around one Secret: they agree, and nobody is ever refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from rackgate.api.resources import SECRETS
from rackgate.api.timestamps import rfc3339
from rackgate.certificates.certificates import read_bundle
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.manager import EXPIRY
from rackgate.certificates.tls import server_context
from rackgate.kube.client import Client
from rackgate.kube.errors import TransportError
from rackgate.runtime import clock
from rackgate_webhook.serving.self_call import call_self
from rackgate_webhook.serving.server import WebhookServer
from rackgate_webhook.settings import CertificateSettings
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.webhook_world import (
    MUTATING,
    NAMESPACE,
    SECRET,
    register,
    registered,
    secret,
)

pytestmark = pytest.mark.requirement("HOOK-13")

WRITES = ("POST", "PUT", "PATCH")


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


def keeper(client: Client, *names: str, **changes: Any) -> IssuedCertificateManager:
    settings = CertificateSettings(
        **{
            "dns_names": list(names or ("localhost",)),
            "settle": 0.3,
            "check_interval": 0.02,
            **changes,
        }
    )
    return IssuedCertificateManager(client, settings, server_context())


async def fine(_: bytes) -> str:
    return ""


def writes(api: FakeApiServer) -> int:
    return sum(request.method in WRITES for request in api.requests)


async def test_the_first_look_makes_the_secret_and_registers_its_authority(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replica = keeper(client)
    await replica.reconcile(fine)
    assert replica.loaded.is_set()
    assert replica.problem == ""
    assert set(registered(api)) == {secret(api)["ca.crt"]}
    assert len(registered(api)) == 4


@pytest.mark.field_note("W5")
async def test_later_looks_and_other_replicas_write_nothing(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    first = keeper(client)
    await first.reconcile(fine)
    count = writes(api)
    for replica in (first, keeper(client), keeper(client)):
        await replica.reconcile(fine)
    assert writes(api) == count


@pytest.mark.field_note("W5")
async def test_replicas_that_start_together_serve_one_certificate(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replicas = [keeper(client) for _ in range(4)]
    await asyncio.gather(*(replica.reconcile(fine) for replica in replicas))
    await asyncio.gather(*(replica.reconcile(fine) for replica in replicas))
    assert {replica.bundle for replica in replicas} == {secret(api)["ca.crt"]}
    assert set(registered(api)) == {secret(api)["ca.crt"]}
    assert all(replica.problem == "" for replica in replicas)


@pytest.mark.requirement("OPS-09")
async def test_the_expiry_metric_is_that_of_the_served_certificate(
    api: FakeApiServer, client: Client
) -> None:
    await keeper(client).reconcile(fine)
    (found,) = read_bundle(secret(api)["tls.crt"]).values()
    (metric,) = EXPIRY.collect()
    assert metric.samples[0].value == found.not_valid_after_utc.timestamp()


async def test_a_bundle_that_somebody_overwrote_is_put_back(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replica = keeper(client)
    await replica.reconcile(fine)
    register(api)
    await replica.reconcile(fine)
    assert set(registered(api)) == {secret(api)["ca.crt"]}


async def test_other_fields_of_a_prepared_secret_are_kept(
    api: FakeApiServer, client: Client
) -> None:
    metadata = {"name": SECRET, "namespace": NAMESPACE, "labels": {"team": "a"}}
    api.put(SECRETS, {"metadata": metadata, "type": "kubernetes.io/tls", "immutable": False})
    await keeper(client).reconcile(fine)
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    assert (found["type"], found["metadata"]["labels"]) == ("kubernetes.io/tls", {"team": "a"})
    assert "tls.crt" in found["data"]


@pytest.mark.parametrize("field", ["tls.crt", "tls.key", "ca.crt"])
async def test_a_broken_secret_is_fixed(api: FakeApiServer, client: Client, field: str) -> None:
    replica = keeper(client)
    await replica.reconcile(fine)
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    api.put(SECRETS, {**found, "data": {**found["data"], field: "eA=="}})
    await replica.reconcile(fine)
    assert await keeper_serves(replica) == ""


async def keeper_serves(replica: IssuedCertificateManager) -> str:
    server = WebhookServer("127.0.0.1", 0, replica.context)
    await server.start()
    try:
        return await call_self(server.private_port, "localhost", replica.bundle)
    finally:
        await server.stop()


@pytest.mark.field_note("W4")
async def test_readiness_waits_for_the_self_call_and_for_the_registrations(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replica = keeper(client)

    async def refused(_: bytes) -> str:
        return "refused"

    assert replica.problem.startswith("no certificate yet")
    await replica.reconcile(refused)
    assert replica.problem == "TLS call to itself: refused"
    api.faults.append(Fault.status(409, "Conflict", method="PATCH", times=1))
    register(api)
    await replica.reconcile(fine)
    assert replica.problem == f"CA bundle not yet in {MUTATING}"
    await replica.reconcile(fine)
    assert replica.problem == ""


async def test_registrations_that_do_not_exist_hold_nothing_up(
    api: FakeApiServer, client: Client
) -> None:
    replica = keeper(client)
    await replica.reconcile(fine)
    assert replica.problem == ""


async def test_a_replica_stays_ready_while_the_api_server_is_away(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replica = keeper(client)
    await replica.reconcile(fine)
    await api.stop()
    with pytest.raises(TransportError):
        await replica.reconcile(fine)
    assert replica.problem == ""
    assert await keeper_serves(replica) == ""


@pytest.mark.requirement("OPS-08")
async def test_a_replica_whose_certificate_cannot_be_renewed_is_ready_until_it_expires(
    api: FakeApiServer, client: Client
) -> None:
    """It may read the Secret, and write it no more."""
    register(api)
    replica = keeper(client)
    await replica.reconcile(fine)
    refused = Fault.status(403, "Forbidden", "no right", method="PUT", times=10**9)
    api.faults.append(refused)
    running = asyncio.create_task(replica.run(fine))
    try:
        for days, words in ((340, ""), (366, "the served certificate has expired: ")):
            clock.shift(days * 86400)
            api.faults.insert(0, dated())
            await until(partial(tried_again, refused, refused.times))
            # A time that was asked for just before the clock moved counts for one more try.
            await until(partial(troubled, replica, bool(words)))
            assert replica.problem.startswith(words)
    finally:
        clock.shift(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("trouble", ["refused", "unreachable by itself"])
async def test_what_goes_wrong_again_and_again_is_tried_ever_later_and_reported_once(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Every replica meets the same refusal, for days."""
    register(api)
    monkeypatch.setattr("rackgate.certificates.manager.RETRY_S", 0.02)
    every, told = 0.3, "no right"
    replica = keeper(client, check_interval=every)
    looks: list[float] = []

    async def look(_: web.Request, handle: Handler) -> web.StreamResponse:
        looks.append(clock.monotonic())
        return await handle()

    async def check(_: bytes) -> str:
        return "" if trouble == "refused" else told

    await replica.reconcile(check)
    api.faults.append(Fault(look, method="GET", path="/secrets/", times=10**9))
    if trouble == "refused":
        api.faults.append(Fault.status(403, "Forbidden", told, path="/mutating", times=10**9))
    with capture_logs() as logs:
        running = asyncio.create_task(replica.run(check, asyncio.Event()))
        await until(lambda: len(looks) >= 8)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    pauses = [later - before for before, later in itertools.pairwise(looks)]
    assert min(pauses[-2:]) > 0.9 * every
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert len(warnings) == (trouble == "refused")


def tried_again(fault: Fault, before: int) -> bool:
    return fault.times < before - 1


def troubled(replica: IssuedCertificateManager, expected: bool) -> bool:
    return bool(replica.problem) == expected


def dated() -> Fault:
    """The API server's clock goes with ours."""
    moment = rfc3339(clock.now())
    body = json.dumps({"metadata": {"creationTimestamp": moment}}).encode()
    return Fault.body(body, 201, method="POST", times=10**9)


@pytest.mark.requirement("OPS-07")
async def test_an_answer_that_is_no_json_ends_no_replica(
    api: FakeApiServer, client: Client
) -> None:
    """As a proxy between may give."""
    register(api)
    fault = Fault.body(b"<html>", method="GET", times=2)
    api.faults.append(fault)
    replica = keeper(client)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(replica.run(fine))
        await until(lambda: replica.problem == "")
        running.cancel()
    assert fault.times == 0


async def shows(server: WebhookServer, wanted: bytes) -> None:
    """Wait until new connections are shown that certificate."""
    address = ("127.0.0.1", server.private_port)
    async with asyncio.timeout(60):
        while True:
            shown = await asyncio.to_thread(ssl.get_server_certificate, address)
            if set(read_bundle(shown.encode())) == set(read_bundle(wanted)):
                return
            await asyncio.sleep(0.05)


@pytest.mark.field_note("W5")
async def test_callers_that_trust_the_registered_bundle_are_never_rejected(
    api: FakeApiServer, client: Client
) -> None:
    """Two replicas rotate under callers that take the bundle from the registration."""
    register(api)
    await keeper(client).reconcile(fine)
    before = secret(api)
    replicas = [keeper(client, "localhost", "new.name") for _ in range(2)]
    servers = [WebhookServer("127.0.0.1", 0, replica.context) for replica in replicas]
    failures: list[str] = []
    calls = 0

    async def call_for_ever(server: WebhookServer) -> None:
        nonlocal calls
        while True:
            failure = await call_self(server.private_port, "localhost", registered(api)[0])
            calls += 1
            if failure:
                failures.append(failure)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(replica.run(fine)) for replica in replicas]
        for replica, server in zip(replicas, servers, strict=True):
            await replica.loaded.wait()
            await server.start()
        tasks += [group.create_task(call_for_ever(server)) for server in servers]
        await until(lambda: secret(api)["tls.crt"] != before["tls.crt"])
        seen = calls
        await until(lambda: calls > seen + 10)
        for server in servers:
            await shows(server, secret(api)["tls.crt"])
        for task in tasks:
            task.cancel()
    for server in servers:
        await server.stop()
    assert failures == []
    assert set(read_bundle(before["ca.crt"])) < set(read_bundle(registered(api)[0]))
    assert "next.crt" not in secret(api)


async def test_no_private_key_of_an_authority_is_kept(api: FakeApiServer, client: Client) -> None:
    await keeper(client).reconcile(fine)
    assert set(secret(api)) == {"ca.crt", "tls.crt", "tls.key"}
    assert b"PRIVATE KEY" not in secret(api)["ca.crt"]
    assert json.dumps(api.get(SECRETS, SECRET, NAMESPACE)).count("tls.key") == 1
