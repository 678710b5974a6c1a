"""`rackgate invariants` where the cluster, a right, a namespace or a clock is not what it seems."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate_cli.errors import CommandError
from rackgate_cli.invariants import probe as probing
from rackgate_cli.invariants import run as running
from rackgate_cli.invariants.follow import ClusterFollower, FollowCallbacks
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.tracker import Change, Tracker
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.sound_cluster import NAMESPACE, NOW, pod, sound
from tests.support.sound_slices import grant, merge_slices, piece, ray, raycluster
from tests.support.waiting import until
from tests.wire.test_invariants import (
    ALWAYS,
    Capture,
    checked,
    fill,
    overbooked,
    spelled,
)
from tests.wire.test_invariants_odd import parsed


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as fake:
        yield fake


# A namespace.


async def test_a_namespace_that_is_not_there_is_reported_from_an_empty_one(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, sound())
    server.put(kinds.NAMESPACES, {"metadata": {"name": "empty"}})
    assert await checked(server, "-n", "empty") == 0
    found = capsys.readouterr().out
    assert "checked 0 pods of 0 managed Jobs and 0 Workloads on 4 nodes: no breach" in found
    with pytest.raises(CommandError, match='there is no namespace "taem": nothing was checked'):
        await checked(server, "-n", "taem")


async def test_a_watch_of_a_namespace_that_is_not_there_is_rejected(server: FakeApiServer) -> None:
    client = server.client()
    try:
        with pytest.raises(CommandError, match='there is no namespace "taem"'):
            await running.watch(client, Tracker(0.1, 60.0), parsed("--watch", "-n", "taem"))
    finally:
        await client.close()


async def test_nothing_in_a_namespace_that_may_not_be_asked_for_is_warned_of(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, sound())
    server.faults += [
        Fault.status(403, "Forbidden", path=f"/namespaces/{name}", times=1)
        for name in ("taem", NAMESPACE)
    ]
    assert await checked(server, "-n", "taem", "--json") == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert (
        warning == "no objects were found, and the namespace cannot be read: check that it exists"
    )
    assert await checked(server, "-n", NAMESPACE, "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


# The end of a watch.


async def watched(server: FakeApiServer, seconds: float) -> int:
    words = ("--watch", "--for", f"{seconds}s", "--settle", "100ms", "--interval", "100ms")
    client = server.client()
    try:
        return await running.watch(
            client, Tracker(0.1, 60.0), parsed(*words, "--patience", "100ms", "--json")
        )
    finally:
        await client.close()


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "invariants.md").read_text()


def told(capsys: Capture) -> list[dict[str, Any]]:
    """The lines since the last call; every field and event in them is documented."""
    printed = capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    for line in lines:
        assert f"\n| `{line['event']}` |" in PAGE
        for field_ in line:
            assert f"`{field_}`" in PAGE or f"`.{field_}`" in PAGE, field_
    return lines


async def _all_followed(server: FakeApiServer) -> None:
    """Probes come first, with a limit of their own; the watches that stay ask for bookmarks."""

    def followed() -> bool:
        staying = sum("allowWatchBookmarks" in one.query for one in server.streams)
        return staying == len(SOURCES)

    await until(followed, 60)


@pytest.mark.requirement("OPS-12")
async def test_a_watch_that_cannot_read_the_cluster_at_its_end_is_no_sound_cluster(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, sound())

    async def go_away() -> None:
        await _all_followed(server)
        await server.stop()

    code, _ = await asyncio.gather(watched(server, 3.0), go_away())
    lines = told(capsys)
    assert [line["event"] for line in lines] == ["watching", "paused", "summary"]
    assert lines[1]["why"]
    assert (lines[-1]["breaches"], lines[-1]["complete"]) == (0, False)
    assert lines[-1]["notJudgedSeconds"] > 0
    assert code == 2


async def test_a_breach_that_was_seen_before_the_cluster_went_away_still_counts(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, overbooked())
    seen: list[dict[str, Any]] = []

    async def go_away() -> None:
        def broken() -> bool:
            seen.extend(told(capsys))
            return "breach" in [line["event"] for line in seen]

        await until(broken, 60)
        await server.stop()

    code, _ = await asyncio.gather(watched(server, 4.0), go_away())
    last = told(capsys)[-1]
    assert (code, last["complete"]) == (1, False)
    assert last["breaches"] >= 1


@dataclass
class Seat:
    """Somebody who watches, and looks at what the follower knows of itself."""

    server: FakeApiServer
    changes: list[Change] = field(default_factory=list)
    connection: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    synced: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.client = self.server.client()
        heard = FollowCallbacks(self.changes.extend, self.connection.append, self.synced.set)
        self.following = ClusterFollower(
            self.client,
            ClusterState(),
            Tracker(0.05, 0.3),
            heard,
            interval_s=0.02,
            recovery_pause_s=0.05,
        )

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch until the end of the block."""
        task = asyncio.create_task(self.following.run(self.stop))
        try:
            yield
        finally:
            self.stop.set()
            await task
            await self.client.close()


@pytest.fixture
async def seat(server: FakeApiServer) -> AsyncIterator[Seat]:
    watching = Seat(server)
    fill(server, sound())
    async with watching.watch():
        await until(watching.synced.is_set)
        yield watching


async def test_a_pause_that_ended_leaves_the_answer_whole_and_is_summed(seat: Seat) -> None:
    await until(lambda: not seat.following.disconnected)
    await seat.server.stop()
    await until(lambda: seat.following.disconnected)
    await seat.server.start()
    await until(lambda: not seat.following.disconnected, 60)
    assert seat.connection[0]
    assert seat.connection[1:] == [""]
    assert seat.following.unchecked_s > 0


async def test_an_interrupt_before_all_was_read_is_no_sound_cluster(server: FakeApiServer) -> None:
    fill(server, sound())
    server.faults.append(Fault.status(500, "Internal", path="/pods", times=ALWAYS))
    watching = Seat(server)
    async with watching.watch():
        await until(lambda: len(watching.connection) == 1)
    assert "500" in watching.connection[0]
    assert watching.following.disconnected
    assert not watching.synced.is_set()


async def test_a_server_that_fell_silent_is_noticed_at_the_end(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watches break no earlier than minutes after it went away."""
    monkeypatch.setattr(probing, "ANSWER_S", 0.2)
    await until(lambda: not seat.following.disconnected)
    seat.server.faults.append(Fault.slow(5.0, path="/", times=ALWAYS))
    seat.stop.set()
    await until(lambda: seat.following.disconnected)
    assert seat.connection == ["no answer within 0.2 s"]


async def test_a_list_that_is_rejected_after_a_break_is_reported(seat: Seat) -> None:
    """The version is too old and the list that must follow is not there: nothing is judged."""
    await until(lambda: not seat.following.disconnected)
    seat.server.faults.append(
        Fault.status(500, "Internal", path="/pods", watch=False, times=ALWAYS)
    )
    seat.server.compact()
    for stream in list(seat.server.streams):
        stream.end()
    await until(lambda: len(seat.connection) == 1)
    assert "500" in seat.connection[0]
    assert seat.following.disconnected
    seat.server.faults.clear()
    await until(lambda: seat.connection[1:] == [""], 60)


# A right.


@pytest.mark.requirement("OPS-12")
async def test_a_right_to_watch_that_is_lost_alone_is_reported_and_nothing_old_is_judged(
    seat: Seat,
) -> None:
    forbidden = Fault.status(403, "Forbidden", path="/pods", watch=True, times=ALWAYS)
    seat.server.faults.append(forbidden)
    for stream in list(seat.server.streams):
        stream.end()
    await until(lambda: len(seat.connection) == 1)
    assert seat.connection[0] == "pods cannot be watched"
    seat.server.put(kinds.PODS, pod("train", 3, "n2"))
    asked = len(seat.server.requests)
    await until(lambda: len(seat.server.requests) > asked + 10, 60)
    assert (seat.changes, seat.following.disconnected) == ([], True)
    seat.server.faults.clear()
    await until(lambda: seat.connection[1:] == [""], 60)
    await until(lambda: "over-granted" in [one.breach.rule for one in seat.changes], 60)


# A clock.


async def test_times_in_objects_are_judged_by_the_servers_clock(
    server: FakeApiServer, capsys: Capture
) -> None:
    story = sound()
    story.pod("train-2")["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:55Z"
    story.place({("n1",): 2, ("n3",): 1})
    story.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    story.pods.append(pod("train", 2, "n3"))
    story.pods[-1]["metadata"] |= {"name": "train-2b", "uid": "train-2b"}
    story.nodes[1]["status"]["conditions"] = []
    fill(server, story)
    assert await checked(server) == 0, "this machine's clock calls the deletion overdue"
    capsys.readouterr()
    date = {"Date": formatdate(NOW, usegmt=True)}
    server.faults.append(Fault.status(404, path="/version", headers=date, times=ALWAYS))
    assert await checked(server) == 1
    out = spelled(capsys.readouterr().out)
    assert "over-granted" in out
    assert "s ahead of the API server's, whose time is used instead" in out


async def test_a_watch_tells_times_by_the_servers_clock(seat: Seat) -> None:
    later = Seat(seat.server)
    later.following.clock_skew_s = time.time() - NOW
    async with later.watch():
        seat.server.put(kinds.PODS, pod("train", 3, "n2"))
        await until(lambda: later.changes != [], 60)
    assert 0 <= later.changes[0].at - NOW < 60


# Kinds that a cluster may lack.


def refuse(code: int, reason: str) -> list[Fault]:
    paths = ("/jobsets", "/rayclusters")
    return [Fault.status(code, reason, path=path, times=ALWAYS) for path in paths]


@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (403, "Forbidden")])
async def test_a_cluster_without_jobset_and_kuberay_lacks_no_rule(
    server: FakeApiServer, capsys: Capture, code: int, reason: str
) -> None:
    """The right to list what is not there is missing, too, and is asked for first."""
    fill(server, sound())
    server.faults += refuse(code, reason)
    assert await checked(server, "--json") == 0
    assert json.loads(capsys.readouterr().out)["notChecked"] == {}


async def test_jobsets_that_are_served_and_may_not_be_listed_are_reported(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, sound())
    server.faults += [Fault.body(b"{}", path="/apis/jobset.x-k8s.io/v1alpha2", times=1)]
    server.faults.insert(0, refuse(403, "Forbidden")[0])
    assert await checked(server, "--json") == 0
    left_out = json.loads(capsys.readouterr().out)["notChecked"]
    assert left_out["held-after-end"] == "jobsets cannot be listed"
    assert "over-granted" not in left_out


async def test_a_kind_that_comes_while_it_is_watched_is_followed(server: FakeApiServer) -> None:
    fill(server, sound())
    server.faults += refuse(404, "NotFound")
    watching = Seat(server)
    async with watching.watch():
        await until(lambda: not watching.following.disconnected)
        assert (watching.connection, watching.changes) == ([], [])
        server.faults.clear()
        server.put(kinds.RAY_CLUSTERS, raycluster())
        await until(lambda: "not-stopped" in [one.breach.rule for one in watching.changes], 60)
    assert watching.connection == []


async def test_a_parent_that_grows_without_a_slice_is_seen_between_two_versions(
    server: FakeApiServer,
) -> None:
    story = ray()
    fill(server, story)
    watching = Seat(server)
    async with watching.watch():
        await until(lambda: not watching.following.disconnected)
        server.put(kinds.WORKLOADS, piece(0, ""))
        merge_slices(story, piece(0, ""))
        server.put(kinds.WORKLOADS, story.workload)
        grant(story, 5)
        server.put(kinds.WORKLOADS, story.workload)
        await until(lambda: "grown-without-slice" in [o.breach.rule for o in watching.changes])
    grown = [one.breach for one in watching.changes if one.breach.rule == "grown-without-slice"]
    assert [one.found for one in grown] == ["grew by 1 pods, the slices merged with it have 0"]
