"""The webhook on real TLS connections: answers, certificates that change, a quiet end."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from rackgate.api.resources import SECRETS
from rackgate.certificates.certificates import IssuedPair, issue
from rackgate.certificates.tls import client_context, load_pair, server_context
from rackgate.runtime import clock
from rackgate.runtime.settings import ConnectionSettings, HealthSettings
from rackgate_webhook.service import WebhookService
from rackgate_webhook.serving.bodies import MAX_BODY_BYTES
from rackgate_webhook.serving.self_call import call_self
from rackgate_webhook.serving.server import WebhookServer
from rackgate_webhook.settings import CertificateSettings, ServingSettings, WebhookSettings
from tests.support.apiserver import FakeApiServer
from tests.support.objects import RACK, job
from tests.support.waiting import until
from tests.unit.webhook.reviews import body, patch_of
from tests.wire.webhook_world import NAMESPACE, SECRET, register

REVIEW = json.dumps(body("batch/Job", job("train", 2, required=RACK))).encode()


def pair() -> IssuedPair:
    return issue(
        ["localhost", "127.0.0.1"],
        validity=timedelta(days=1),
        now=clock.now(),
        owner="rackgate-webhook",
    )


@asynccontextmanager
async def serving(made: IssuedPair, port: int = 0) -> AsyncIterator[tuple[WebhookServer, Any]]:
    context = server_context()
    load_pair(context, made.certificate, made.key)
    server = WebhookServer("127.0.0.1", port, context)
    await server.start()
    try:
        yield server, context
    finally:
        await server.stop()


@asynccontextmanager
async def calling(bundle: bytes) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=client_context(bundle), limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def post(
    session: aiohttp.ClientSession, port: int, sent: bytes, path: str = "/mutate"
) -> Any:
    url = f"https://localhost:{port}{path}"
    headers = {"Content-Type": "application/json"}
    async with session.post(url, data=io.BytesIO(sent), headers=headers) as answer:
        return answer.status, await answer.read(), dict(answer.headers)


@pytest.mark.requirement("HOOK-01")
async def test_reviews_are_answered_over_tls() -> None:
    made = pair()
    async with serving(made) as (server, _), calling(made.authority) as session:
        status, answer, headers = await post(session, server.port, REVIEW)
        assert status == 200
        assert headers["Content-Type"].startswith("application/json")
        assert patch_of(answer)[0]["path"] == "/spec/suspend"
        status, answer, _ = await post(session, server.port, REVIEW, "/validate")
        assert json.loads(answer)["response"] == {"uid": "uid-1", "allowed": True}


@pytest.mark.requirement("HOOK-01")
async def test_what_is_no_review_gets_400_and_the_connection_lives_on() -> None:
    made = pair()
    async with serving(made) as (server, _), calling(made.authority) as session:
        status, answer, _ = await post(session, server.port, b"{nonsense")
        assert (status, answer[:23]) == (400, b"not an AdmissionReview:")
        assert (await post(session, server.port, REVIEW))[0] == 200


@pytest.mark.requirement("HOOK-01")
async def test_a_body_beyond_the_limit_is_rejected() -> None:
    made = pair()
    async with serving(made) as (server, _), calling(made.authority) as session:
        status, _, _ = await post(session, server.port, b" " * (MAX_BODY_BYTES + 1))
        assert status == 413
        async with calling(made.authority) as another:
            assert (await post(another, server.port, REVIEW))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/mutate", 405), ("POST", "/", 404)]
)
async def test_there_is_nothing_else(method: str, path: str, status: int) -> None:
    made = pair()
    async with serving(made) as (server, _), calling(made.authority) as session:
        url = f"https://localhost:{server.port}{path}"
        async with session.request(method, url) as answer:
            assert answer.status == status


@pytest.mark.requirement("HOOK-13")
@pytest.mark.field_note("W5")
async def test_a_new_certificate_serves_new_connections_and_leaves_open_ones_alone() -> None:
    old, new = pair(), pair()
    async with serving(old) as (server, context), calling(old.authority) as session:
        assert (await post(session, server.port, REVIEW))[0] == 200
        load_pair(context, new.certificate, new.key)
        assert (await post(session, server.port, REVIEW))[0] == 200
        async with calling(new.authority) as fresh:
            assert (await post(fresh, server.port, REVIEW))[0] == 200
        async with calling(old.authority) as late:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await post(late, server.port, REVIEW)
        async with calling(old.authority + new.authority) as both:
            assert (await post(both, server.port, REVIEW))[0] == 200


@pytest.mark.requirement("HOOK-14")
async def test_two_replicas_share_a_port_and_each_calls_itself() -> None:
    one, other = pair(), pair()
    async with serving(one) as (first, _), serving(other, first.port) as (second, _):
        assert first.port == second.port
        assert await call_self(first.private_port, "localhost", one.authority) == ""
        assert await call_self(second.private_port, "127.0.0.1", other.authority) == ""
        async with calling(one.authority + other.authority) as session:
            assert (await post(session, first.port, REVIEW))[0] == 200


@pytest.mark.field_note("W4")
async def test_a_self_call_fails_with_another_authority_name_or_port() -> None:
    made = pair()
    async with serving(made) as (server, _):
        port = server.private_port
        assert "certificate verify failed" in await call_self(port, "localhost", pair().authority)
        assert "certificate verify failed" in await call_self(port, "other", made.authority)
        assert await call_self(port, "localhost", b"") != ""
    assert await call_self(port, "localhost", made.authority) != ""


async def test_a_draining_server_answers_and_closes_each_connection() -> None:
    made = pair()
    async with serving(made) as (server, _), calling(made.authority) as session:
        assert "Connection" not in (await post(session, server.port, REVIEW))[2]
        server.drain()
        status, _, headers = await post(session, server.port, REVIEW)
        assert (status, headers["Connection"]) == (200, "close")


async def test_an_unencrypted_or_old_protocol_is_rejected() -> None:
    made = pair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=made.authority.decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    async with serving(made) as (server, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
        )
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /mutate HTTP/1.1\r\n\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(16)
        writer.close()


def settings(server: FakeApiServer, **certificates: Any) -> WebhookSettings:
    return WebhookSettings(
        connection=ConnectionSettings(server=server.url),
        health=HealthSettings(host="127.0.0.1", port=0),
        serving=ServingSettings(host="127.0.0.1", port=0, drain_delay=0.2),
        certificates=CertificateSettings(
            dns_names=["localhost"], ip_addresses=["127.0.0.1"], check_interval=0.05, **certificates
        ),
        identity="replica",
    )


@pytest.mark.requirement("OPS-08")
@pytest.mark.field_note("W4")
async def test_a_replica_is_ready_last_and_unready_first() -> None:
    async with FakeApiServer() as api:
        service, stop = WebhookService(settings(api)), asyncio.Event()
        assert service.missing() == ["starting"]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(service.run(stop))
            await until(lambda: not service.missing())
            server = service._server  # the port is the kernel's choice
            bundle = service._certificate_manager.bundle if service._certificate_manager else b""
            async with calling(bundle) as session:
                assert (await post(session, server.port, REVIEW))[0] == 200
                stop.set()
                await until(lambda: service.missing() == ["draining"])
                assert (await post(session, server.port, REVIEW))[0] == 200
            await asyncio.wait_for(running, 30)
        assert await call_self(server.private_port, "localhost", bundle) != ""


@pytest.mark.requirement("OPS-08")
@pytest.mark.field_note("W4")
async def test_a_replica_is_ready_only_when_its_own_tls_call_is_answered() -> None:
    """It listens and has a certificate, and whoever trusts what is registered cannot call it."""
    made, other = pair(), pair()
    async with FakeApiServer() as api:
        fields = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authority}
        data = {name: base64.b64encode(value).decode() for name, value in fields.items()}
        api.put(SECRETS, {"metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": data})
        register(api, caBundle=base64.b64encode(other.authority).decode())
        provided = settings(api, source="provided", write_bundle=False)
        service, stop = WebhookService(provided), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(service.run(stop))
            await until(lambda: "certificate verify failed" in service.missing()[0])
            register(api, caBundle=base64.b64encode(made.authority).decode())
            await until(lambda: service.missing() == [])
            stop.set()
            await asyncio.wait_for(running, 30)


@pytest.mark.requirement("OPS-08")
async def test_a_replica_that_never_got_a_certificate_stops_at_once() -> None:
    async with FakeApiServer() as api:
        api.tokens = {"another"}
        service, stop = WebhookService(settings(api)), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(service.run(stop))
            await until(lambda: "no certificate yet" in service.missing()[0])
            stop.set()
            await asyncio.wait_for(running, 30)
