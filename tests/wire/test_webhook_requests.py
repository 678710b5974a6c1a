"""Requests as no API server sends them: too large, of another type, or nonsense."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rackgate_webhook.serving.bodies import MAX_BODY_BYTES
from rackgate_webhook.serving.server import CONNECTIONS
from tests.support.objects import RACK, job
from tests.unit.webhook.reviews import body, patch_of
from tests.wire.webhook_server import (
    answer_of,
    calling,
    connected,
    count,
    request,
    serves,
    serving,
    url,
)
from tests.wire.webhook_world import JSON, REVIEW

pytestmark = [pytest.mark.requirement("HOOK-01"), pytest.mark.steady_clock]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_the_limit_is_rejected_in_words(announced: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**16 + 2):
            yield b" " * 2**16

    async with serving() as server, calling() as session:
        given: Any = io.BytesIO(b" " * (MAX_BODY_BYTES + 1)) if announced else chunks()
        async with session.post(url(server), data=given, headers=JSON) as answer:
            assert answer.status == 413
            assert f"{MAX_BODY_BYTES} bytes at most" in await answer.text()
        assert await serves(server)


async def test_a_huge_body_is_rejected_before_it_is_sent() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(request(b"", length=2**40))
        assert (await answer_of(reader))[0] == 413


@pytest.mark.parametrize(
    ("given", "headers", "status", "words"),
    [
        (b"", JSON, 400, "not an AdmissionReview"),
        (b"\x00\xff", JSON, 400, "not an AdmissionReview"),
        (b'{"apiVersion":"admission.k8s.io/v9"}', JSON, 400, 'found "admission.k8s.io/v9"'),
        (b'{"request":' + b"[" * 10**6, JSON, 400, "nested too deeply"),
        (REVIEW, {"Content-Type": "text/plain"}, 415, 'found "text/plain"'),
        (REVIEW, {"Content-Type": "application/yaml"}, 415, "expected Content-Type"),
        (b"\x1f\x8b", {**JSON, "Content-Encoding": "gzip"}, 400, "not an AdmissionReview"),
    ],
)
async def test_what_is_no_review_is_answered_in_words(
    given: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    async with serving() as server, calling() as session:
        async with session.post(url(server), data=given, headers=headers) as answer:
            assert answer.status == status
            assert words in await answer.text()
        assert await serves(server)


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x00\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 2**17, b"\r\n\r\n\r\n"]
)
async def test_what_is_no_http_ends_its_connection_only(sent: bytes) -> None:
    async with serving() as server:
        async with connected(server) as (reader, writer):
            writer.write(sent)
            writer.write_eof() if writer.can_write_eof() else None
            if sent.strip():
                await asyncio.wait_for(reader.read(), 30)
        assert await serves(server)


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize(
    "sent",
    [b"POST /mutate HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 2**17],
    ids=["no host", "version", "long"],
)
async def test_what_anybody_may_send_is_no_error_of_ours(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the log wakes a person."""
    before = count(CONNECTIONS.closed, reason="garbage")
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(sent)
        await asyncio.wait_for(reader.read(), 30)
    assert [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING] == []
    assert count(CONNECTIONS.closed, reason="garbage") == before + 1


def large_job(size: int) -> dict[str, Any]:
    """A governed Job of about so many bytes."""
    found = job("train", 2, required=RACK)
    env = [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(size // 70)]
    found["spec"]["template"]["spec"]["containers"][0]["env"] = env
    return found


@pytest.mark.requirement("HOOK-14")
@pytest.mark.parametrize("path", ["/mutate", "/validate"])
async def test_objects_as_large_as_the_store_takes_are_answered_in_time(path: str) -> None:
    """1.5 MiB, twice in an update; the patch holds our fields alone."""
    found = large_job(3 * 2**19)
    sent = json.dumps(body("batch/Job", found, {**found, "metadata": {"name": "x"}})).encode()
    assert 3 * 2**20 < len(sent) < MAX_BODY_BYTES
    async with serving() as server, calling() as session:
        begun = time.process_time()  # all of the work is this process's
        async with session.post(url(server, path), data=io.BytesIO(sent), headers=JSON) as answer:
            text = await answer.read()
            assert answer.status == 200
        assert time.process_time() - begun < 4
        assert len(json.dumps(patch_of(text))) < 2000
