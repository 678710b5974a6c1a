"""Health over HTTP, and a whole process that is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aiohttp
import pytest

from rackgate.runtime.serving.health import HealthServer

SERVICE = """
import sys
from typing import Literal
from rackgate.runtime.serving.health import HealthServer
from rackgate.runtime.service import run_service
from rackgate.runtime.settings import BaseServiceSettings

class Settings(BaseServiceSettings):
    kind: Literal["ExampleConfiguration"] = "ExampleConfiguration"

async def main(settings, stop):
    async with HealthServer(settings.health.port, list, host="127.0.0.1"):
        print("ready", flush=True)
        await stop.wait()

sys.exit(run_service("example", main, settings=Settings, description="An example."))
"""


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVICE,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.requirement("OPS-08")
async def test_readiness_names_what_is_missing_one_per_line() -> None:
    missing = ["pods: not listed yet", "certificate: none"]
    server = HealthServer(0, lambda: missing)
    async with server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        async with http.get("/readyz") as answer:
            assert answer.status == 503
            assert await answer.text() == "pods: not listed yet\ncertificate: none\n"
        async with http.get("/healthz") as answer:
            assert answer.status == 200
        missing.clear()
        async with http.get("/readyz") as answer:
            assert answer.status == 200
        async with http.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert "rackgate_leader" in await answer.text()


@pytest.mark.requirement("OPS-08")
async def test_sigterm_is_a_clean_stop() -> None:
    process = await start("--set", "health.port=0")
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines] == ["service_started", "service_stopped"]
    assert lines[0]["service"] == "example"
    assert lines[0]["identity"].count("_") >= 2
