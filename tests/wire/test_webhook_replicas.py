"""Replicas as processes on one port, under calls all the time: stopped, killed, rotated, alike."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api.resources import SECRETS
from rackgate.certificates.tls import client_context
from tests.support.apiserver import FakeApiServer
from tests.support.objects import RACK, flavor, job
from tests.support.waiting import until
from tests.unit.webhook.reviews import body
from tests.wire.webhook_world import (
    JSON,
    LIMIT_S,
    NAMESPACE,
    PATIENCE_S,
    SECRET,
    Callers,
    Replicas,
    register,
    registered,
    replicas,
    secret,
)

# More would take the processors from the replicas that start meanwhile.
CALLERS = 3


@pytest.mark.requirement("HOOK-14", "OPS-07", "OPS-08")
async def test_a_replica_stopped_under_calls_fails_none_and_a_killed_one_those_in_flight_at_most(
    tmp_path: Path,
) -> None:
    """Waiting connections would be reset by a plain close; kept ones cut in a request."""
    async with replicas(tmp_path, 3) as world:
        fresh, kept = Callers(world, kept=False), Callers(world, kept=True)
        async with fresh.calling(CALLERS), kept.calling(CALLERS):
            await world.all[0].stop()
            await fresh.more(5 * CALLERS)
            assert (fresh.failures, kept.failures) == ([], [])
            assert max(fresh.slowest_s, kept.slowest_s) < PATIENCE_S / 2
            world.all[1].signal(signal.SIGKILL)
            await world.all[1].process.wait()
            await fresh.more(10 * CALLERS)
        # A caller may have been in a call when it happened, and in no second one.
        assert len(fresh.failures) <= CALLERS, fresh.failures
        assert len(kept.failures) <= CALLERS, kept.failures


def changes(api: FakeApiServer) -> int:
    """How often the Secret has been changed."""
    return sum(full_name == "secrets" for _, _, full_name, _ in api._history)


@pytest.mark.requirement("HOOK-13", "HOOK-14")
@pytest.mark.field_note("W5")
async def test_three_replicas_rotate_by_two_writes_without_a_failed_call(tmp_path: Path) -> None:
    """A fourth one, of another configuration, starts it: each wants its own names."""
    async with replicas(tmp_path, 3) as world:
        before, begun = secret(world.api)["tls.crt"], changes(world.api)
        callers = Callers(world, kept=False)
        async with callers.calling(CALLERS):
            fourth = await world.start(dnsNames=["localhost", "new.name"])
            await fourth.ready()
            for replica in world.all:
                await replica.rotated(2)
            await callers.more(10 * CALLERS)
            for replica in world.all:
                assert await replica.missing() == ""
        assert secret(world.api)["tls.crt"] != before
        assert changes(world.api) - begun == 2, "published, and put to use"
        assert len(set(registered(world.api))) == 1
        assert callers.failures == []


def samples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Reviews of all kinds of answers, by path."""
    marks = {
        "labels": {names.PODSET_LABEL: "main", "b": "c"},
        "annotations": {names.WORKLOAD_ANNOTATION: "w", names.REQUIRED_TOPOLOGY: RACK},
    }
    yield "/mutate", body("batch/Job", job("a", 2, required=RACK))
    yield "/mutate", body("batch/Job", job("a", 2, queue=None))
    yield "/mutate", body("/Pod", {"metadata": marks, "spec": {}})
    template = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}}, "spec": {}}
    podsets = {"podSets": [{"count": 2, "template": template}]}
    yield "/mutate", body(f"{names.GROUP}/Workload", {"metadata": {}, "spec": podsets})
    wrong = job("a", 2, required=RACK, preferred=RACK)
    wrong["spec"]["template"]["metadata"] |= {"labels": marks["labels"] | {names.TAS_LABEL: "x"}}
    yield "/validate", body("batch/Job", wrong)
    yield "/validate", body("/Pod", {"metadata": marks, "spec": {}})
    bare = flavor("f", "p", "t")
    bare["spec"] |= {"nodeLabels": {}, "nodeTaints": [{}], "tolerations": [{"a": {1: 2}}]}
    yield "/validate", body(f"{names.GROUP}/ResourceFlavor", bare)
    yield "/mutate", {"kind": "nonsense"}


@pytest.mark.requirement("HOOK-14")
async def test_three_replicas_answer_alike_to_the_byte(tmp_path: Path) -> None:
    async with replicas(tmp_path, 0) as world:
        ports = []
        for _ in range(3):
            ports.append(world.port)
            await (await world.start()).ready()
            world.port = world.new_port()
        connector = aiohttp.TCPConnector(ssl=client_context(secret(world.api)["ca.crt"]))
        async with aiohttp.ClientSession(connector=connector, headers=JSON) as session:
            for path, review in samples():
                answers = set()
                for port in ports:
                    url = f"https://localhost:{port}{path}"
                    async with session.post(url, data=json.dumps(review).encode()) as answer:
                        answers.add((answer.status, await answer.read()))
                assert len(answers) == 1, review


TOKEN = "token-that-nobody-may-read-0123456789"


@pytest_asyncio.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Replicas]:
    """A world whose API server wants a token."""
    (tmp_path / "token").write_text(TOKEN)
    async with FakeApiServer() as api:
        api.tokens = {TOKEN}
        register(api)
        world = Replicas(api, tmp_path, connection={"tokenFile": str(tmp_path / "token")})
        yield world
        await world.kill()


def secrets_of(api: FakeApiServer) -> set[str]:
    """Every line of every private key in every state that the Secret has had, and the token."""
    found = {TOKEN, base64.b64encode(TOKEN.encode()).decode(), "PRIVATE KEY"}
    for _, _, full_name, item in api._history:
        if full_name != "secrets":
            continue
        for field in ("tls.key", "next.key"):
            encoded = item["data"].get(field, "")
            found |= {encoded[index : index + 40] for index in range(0, len(encoded) - 40, 40)}
            lines = base64.b64decode(encoded).decode().splitlines()
            found |= {line for line in lines if len(line) > 20 and "-----" not in line}
    return found


@pytest.mark.requirement("OPS-05")
async def test_nothing_secret_is_logged_from_first_issue_to_damage(watched: Replicas) -> None:
    """With debug logging, through issue, rotation, a damaged Secret, and an API server's error."""
    first = await watched.start()
    await first.ready()
    second = await watched.start(dnsNames=["localhost", "new.name"])
    await second.ready()
    await first.rotated(2)
    found = watched.api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    damaged = {**found["data"], "tls.crt": found["data"]["tls.key"]}
    watched.api.put(SECRETS, {**found, "data": damaged})
    await first.rotated(3)
    callers = Callers(watched, kept=False)
    async with callers.calling(1):
        await callers.more(3)
    secrets = secrets_of(watched.api)
    watched.api.tokens = {"another"}
    await watched.api.restart()
    await until(lambda: "401" in first.log.read_text(), LIMIT_S)
    for replica in watched.all:
        await replica.stop()
    assert len(secrets) > 10
    for replica in watched.all:
        text = replica.log.read_text()
        assert '"level":"debug"' in text
        assert [part for part in secrets if part in text] == []
