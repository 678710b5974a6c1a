"""`rackgate invariants` where the way to the cluster, or the command line, is odd."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rackgate.kube.errors import TransportError
from rackgate_cli.errors import UsageError
from rackgate_cli.invariants import command as command_line
from rackgate_cli.invariants import run as running
from rackgate_cli.invariants.probe import unreadable_collections
from rackgate_invariants.rules.catalog import RULES
from rackgate_invariants.tracker import Tracker
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.sound_cluster import sound
from tests.wire.test_invariants import ALWAYS, Capture, checked, command, fill, kubeconfig


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as fake:
        yield fake


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command_line.add_parser(parser.add_subparsers())
    return parser.parse_args(["invariants", *words])


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata": {"resourceVersion": "9"}}',
        b'{"metadata": {"resourceVersion": "9"}, "items": null}',
    ],
)
async def test_a_list_without_items_is_an_empty_one(
    server: FakeApiServer, body: bytes, capsys: Capture
) -> None:
    server.faults.append(Fault.body(body, path="/", times=ALWAYS))
    assert await checked(server) == 0
    assert "checked 0 pods" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in</html>",
        b'{"items": 5, "metadata": 6}',
        b'{"items": []}',
        b'{"kind": "Status", "code": 401, "metadata": {}}',
    ],
)
async def test_an_answer_that_is_no_list_is_reported_from_a_cluster(
    server: FakeApiServer, body: bytes
) -> None:
    server.faults.append(Fault.body(body, path="/", times=ALWAYS))
    with pytest.raises(TransportError):
        await checked(server)
    client = server.client()
    try:
        with pytest.raises(ExceptionGroup) as refused:
            await unreadable_collections(client, None)
    finally:
        await client.close()
    assert refused.group_contains(TransportError)
    assert not refused.group_contains(ValueError)


@pytest.mark.parametrize("words", [(), ("--watch",)])
async def test_an_interrupt_ends_it_while_no_one_answers(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    mute = FakeApiServer()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        mute.port = listener.getsockname()[1]
        async with command("--kubeconfig", kubeconfig(mute, tmp_path), *words) as process:
            accepting = asyncio.get_running_loop().sock_accept(listener)
            connection, _ = await asyncio.wait_for(accepting, 120)
            process.send_signal(signal.SIGINT)
            # Far less than three requests may take, which are 90 s.
            out, err = await asyncio.wait_for(process.communicate(), 60)
    connection.close()
    assert (process.returncode, out, err) == (2, b"", b"rackgate: interrupted\n")


async def test_a_reader_that_goes_away_is_no_breach(server: FakeApiServer, tmp_path: Path) -> None:
    fill(server, sound())
    # Its last words come when that is over: the reader has to be gone by then.
    words = ("--watch", "--for", "4s", "--settle", "1s")
    async with command("--kubeconfig", kubeconfig(server, tmp_path), *words) as process:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 120)
        process.stdout._transport.close()  # type: ignore[attr-defined]  # as `head -1` does
        assert await asyncio.wait_for(process.wait(), 120) == 2


async def test_a_watch_too_short_for_a_rule_says_so(server: FakeApiServer, capsys: Capture) -> None:
    fill(server, sound())
    arguments = parsed("--watch", "--for", "1s", "--settle", "100ms", "--json")
    client = server.client()
    try:
        assert await running.watch(client, Tracker(0.1, 60.0), arguments) == 0
    finally:
        await client.close()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    left_out = json.loads(lines[0])["notChecked"]
    assert set(left_out) == {rule.id for rule in RULES.values() if rule.patient}
    assert left_out["not-released"] == "--for 1s ends before --patience 60s"


def test_a_watch_too_short_for_any_rule_is_rejected() -> None:
    arguments = parsed("--watch", "--for", "2s")
    with pytest.raises(UsageError, match=r"--for 2s must be longer than --settle 3s"):
        command_line.run(arguments)
