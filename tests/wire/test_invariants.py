"""`rackgate invariants` over real HTTP: what it reads, what it may not, and what it follows."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.runtime import clock
from rackgate_cli.errors import CommandError
from rackgate_cli.invariants import command as command_line
from rackgate_cli.invariants import run as running
from rackgate_cli.invariants.follow import ClusterFollower, FollowCallbacks
from rackgate_cli.invariants.probe import unreadable_collections
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.tracker import Change, Tracker
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.objects import mutating_configuration
from tests.support.sound_cluster import HOST, LATE, NAMESPACE, pod, queue_status, sound
from tests.support.sound_cluster import World as Story
from tests.support.waiting import until

ALWAYS = 10_000
LIMIT_S = 120.0  # for a process, on a slow machine


def fill(server: FakeApiServer, story: Story) -> None:
    server.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for source in SOURCES:
        for item in getattr(story, source.attribute):
            server.put(source.resource, item)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


def kubeconfig(server: FakeApiServer, folder: Path) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / f"kubeconfig-{server.port}"
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def command(*words: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process; what still runs in the end would spoil other tests."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "rackgate_cli", "invariants", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def ended(*words: object) -> tuple[int, str, str]:
    async with command(*words) as process:
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def checked(server: FakeApiServer, *words: str) -> int:
    """The command's check within this process, on a client of its own."""
    parser = argparse.ArgumentParser()
    command_line.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["invariants", "--settle", "0.1", *words])
    tracker = Tracker(arguments.settle, arguments.patience, trust_object_times=True)
    client = server.client()
    try:
        return await running.once(client, tracker, arguments)
    finally:
        await client.close()


def overbooked() -> Story:
    story = sound()
    story.place({("n1",): 1, ("n2",): 2})
    return story


def unqueued() -> Story:
    """A Job with a queue label that runs, and nothing of it is known to any queue."""
    story = sound()
    story.workloads.clear()
    for queue in (*story.local_queues, *story.cluster_queues):
        queue["status"] = queue_status(0, 0, 0)
    for pod_ in story.pods:
        pod_["metadata"].pop("labels", None)
        pod_["metadata"].pop("annotations", None)
    return story


def spelled(text: str) -> str:
    return " ".join(text.split())


Capture = pytest.CaptureFixture[str]


async def test_a_sound_cluster_is_read_once_and_passes(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, sound())
    assert await checked(server) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out == "checked 3 pods of 1 managed Job and 1 Workload on 4 nodes: no breach\n"
    assert {request.method for request in server.requests} == {"GET"}
    listed = [request.path for request in server.requests]
    assert len(listed) == len(set(listed)), "nothing was found, so nothing is read again"


async def test_a_breach_is_named_and_what_may_not_be_read_is_said(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, overbooked())
    server.faults.append(Fault.status(403, "Forbidden", path="/nodes", times=ALWAYS))
    assert await checked(server) == 1
    out = capsys.readouterr().out
    assert "over-domain team/job-train/main n1" in spelled(out)
    assert "2 live ungated pods (train-0, train-1), 1 assigned" in spelled(out)
    assert "A domain never has more live ungated pods" in out
    left_out = "not checked: level-split, slice-split, over-capacity, pods-over-quota, uncharged,"
    left_out += " queue-counts, local-queue-counts, evicted-still-runs, domain-gone"
    assert f"{left_out} (nodes cannot be listed)" in spelled(out)
    assert await checked(server, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["checked"]["pods"] == 3
    assert document["notChecked"]["over-capacity"] == "nodes cannot be listed"
    assert "over-domain" in [breach["rule"] for breach in document["breaches"]]


async def test_one_namespace_can_be_checked_with_the_rights_of_one_namespace(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, overbooked())
    for source in SOURCES:
        path = f"{source.resource.path()}"
        server.faults.append(Fault.status(403, "Forbidden", path=path, times=ALWAYS))
    assert await checked(server, "-n", NAMESPACE) == 1
    out = capsys.readouterr().out
    assert "over-domain" in out
    assert "over-quota" in out.partition("not checked")[2]


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize("words", [(), ("-n", NAMESPACE)])
async def test_a_job_in_a_namespace_that_is_not_managed_runs_as_it_likes(
    server: FakeApiServer, capsys: Capture, words: tuple[str, ...]
) -> None:
    fill(server, unqueued())
    assert await checked(server, *words) == 1
    assert "not-stopped" in capsys.readouterr().out
    managed = {"rackgate.dev/managed-jobs": "true"}
    server.put(kinds.MUTATING_CONFIGS, mutating_configuration(managed))
    assert await checked(server, *words) == 0
    assert "0 managed Jobs" in spelled(capsys.readouterr().out)
    server.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": managed}})
    assert await checked(server, *words) == 1


async def test_a_watch_leaves_alone_what_is_not_managed(server: FakeApiServer) -> None:
    story = unqueued()
    world = ClusterState(unmanaged=frozenset({NAMESPACE}))
    seen = ClusterState()
    for source in SOURCES:
        for item in getattr(story, source.attribute):
            row = source.row(json.dumps(item).encode())
            for one in (world, seen):
                one.put(source.attribute, getattr(row, "key", "") or row.name, row)
    now = clock.now().timestamp()
    assert "not-stopped" in {breach.rule for breach in seen.judge(now)}
    assert "not-stopped" not in {breach.rule for breach in world.judge(now)}


async def test_what_only_one_reading_shows_is_no_breach(
    server: FakeApiServer, capsys: Capture
) -> None:
    fill(server, overbooked())

    async def mend() -> None:
        await until(lambda: any("clusterqueues" in one.path for one in server.requests))
        server.put(kinds.WORKLOADS, sound().workload)

    code, _ = await asyncio.gather(checked(server, "--settle", "1s"), mend())
    assert code == 0, capsys.readouterr().out


async def test_a_cluster_without_the_crds_is_reported_from_a_sound_one(
    server: FakeApiServer,
) -> None:
    server.faults.append(Fault.status(404, "NotFound", path="/", times=ALWAYS))
    with pytest.raises(CommandError, match=r"nothing can be checked: .* no workloads\.kueue"):
        await checked(server)


async def test_a_cluster_that_does_not_answer_is_reported_from_one_with_breaches(
    tmp_path: Path,
) -> None:
    silent = FakeApiServer()
    silent.port = 1
    code, out, err = await ended("--kubeconfig", kubeconfig(silent, tmp_path))
    assert (code, out) == (2, "")
    assert "the cluster cannot be read" in err
    assert "no answer" in err


async def test_watching_ends_on_an_interrupt_with_a_summary(
    server: FakeApiServer, tmp_path: Path
) -> None:
    fill(server, sound())
    server.put(kinds.WORKLOADS, overbooked().workload)
    words = ("--watch", "--interval", "0.1", "--settle", "0.2", "--json")
    async with command("--kubeconfig", kubeconfig(server, tmp_path), *words) as process:
        assert process.stdout is not None
        told: list[dict[str, Any]] = []
        while "over-domain" not in [line.get("rule") for line in told]:
            told.append(json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S)))
        assert (told[0]["event"], told[0]["checked"]["pods"]) == ("watching", 3)
        assert told[0]["apiVersion"] == "invariants.rackgate.dev/v1"
        assert all(line["since"] <= line["at"] for line in told[1:])
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert (process.returncode, err) == (1, b"")
    last = json.loads(out.decode().splitlines()[-1]) if out else told[-1]
    assert last["event"] == "summary"
    assert last["breaches"] == last["standing"] >= 1
    assert last["complete"] is True


@dataclass
class Desk:
    """Somebody who watches."""

    server: FakeApiServer
    changes: list[Change] = field(default_factory=list)
    connection: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    synced: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, **more: Any) -> None:
        client = self.server.client()
        heard = FollowCallbacks(self.changes.extend, self.connection.append, self.synced.set)
        tracker = Tracker(min_duration_s=0.05, patience_s=0.3)
        following = ClusterFollower(
            client, ClusterState(), tracker, heard, interval_s=0.02, recovery_pause_s=3.0, **more
        )
        try:
            await following.run(self.stop)
        finally:
            await client.close()

    def rules(self, *, ended: bool = False) -> list[str]:
        return [one.breach.rule for one in self.changes if one.ended is ended]


@pytest.fixture
async def desk(server: FakeApiServer) -> AsyncIterator[Desk]:
    watching = Desk(server)
    fill(server, sound())
    task = asyncio.create_task(watching.watch())
    await until(watching.synced.is_set)
    yield watching
    watching.stop.set()
    await task


async def test_a_breach_is_reported_once_and_so_is_its_end(desk: Desk) -> None:
    surplus = pod("train", 3, "n2")
    desk.server.put(kinds.PODS, surplus)
    await until(lambda: sorted(desk.rules()) == ["over-domain", "over-granted"])
    surplus["status"]["phase"] = "Succeeded"
    desk.server.remove(kinds.PODS, "train-3", NAMESPACE)
    await until(lambda: sorted(desk.rules(ended=True)) == ["over-domain", "over-granted"])
    assert len(desk.changes) == 4


async def test_a_waiting_pod_is_called_forgotten_only_when_it_waits_for_long(desk: Desk) -> None:
    desk.server.put(kinds.PODS, pod("train", 2, None))
    story = overbooked()
    soon = {"manager": "rackgate-admission", "subresource": "status"}
    story.workload["metadata"]["managedFields"] = [{**soon, "time": "2999-01-01T00:00:00Z"}]
    story.place({("n1",): 2, ("n3",): 1})
    desk.server.put(kinds.WORKLOADS, story.workload)
    await until(lambda: desk.rules() == ["level-split"])
    desk.server.put(kinds.WORKLOADS, sound().workload)
    await until(lambda: desk.rules() == ["level-split", "not-released"])


async def test_who_took_a_gate_is_seen_between_two_versions(desk: Desk) -> None:
    gates = [{"name": names.TOPOLOGY_GATE}, {"name": "example.com/other"}]
    waiting = pod("train", 2, None)
    waiting["metadata"] |= {"name": "train-2b", "uid": "b"}
    waiting["spec"]["schedulingGates"] = gates
    desk.server.put(kinds.PODS, waiting)
    waiting["spec"] |= {"schedulingGates": [], "nodeSelector": {HOST: "n2"}}
    written = {"manager": "rackgate-ungater", "operation": "Update", "time": LATE}
    waiting["metadata"]["managedFields"] = [written]
    desk.server.put(kinds.PODS, waiting)
    await until(lambda: "foreign-gate-taken" in desk.rules())


async def test_a_lost_connection_is_reported_and_invents_nothing(desk: Desk) -> None:
    await desk.server.stop()
    await until(lambda: len(desk.connection) == 1)
    assert desk.connection[0]
    story = sound()
    story.place({("n1",): 1, ("n2",): 1, ("n3",): 1})
    story.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    for item in story.pods:
        desk.server.remove(kinds.PODS, item["metadata"]["name"], NAMESPACE)
    desk.server.put(kinds.WORKLOADS, story.workload)
    desk.server.compact()
    await desk.server.start()
    await until(lambda: desk.connection[1:] == [""])
    desk.server.put(kinds.PODS, pod("train", 1, "n1"))
    await until(lambda: "rank-order" in desk.rules(), 60)
    assert set(desk.rules()) == {"rank-order"}


async def test_what_may_be_listed_but_not_watched_is_found_before(server: FakeApiServer) -> None:
    fill(server, sound())
    server.faults.append(Fault.status(403, "Forbidden", path="/nodes", watch=True, times=ALWAYS))
    server.faults.append(Fault.status(403, "Forbidden", path="/topologies", times=ALWAYS))
    client = server.client()
    try:
        found = await unreadable_collections(client, None)
    finally:
        await client.close()
    assert found == {
        "nodes": "nodes cannot be watched",
        "topologies": "topologies cannot be listed",
    }


async def test_a_right_that_is_taken_away_is_reported_and_nothing_old_is_judged(desk: Desk) -> None:
    desk.server.faults.append(Fault.status(403, "Forbidden", path="/pods", times=ALWAYS))
    await until(lambda: desk.server.streams != [])
    for stream in list(desk.server.streams):
        stream.end()
    await until(lambda: len(desk.connection) == 1)
    assert desk.connection[0] == "pods cannot be listed"
    story = sound()
    story.place({("n1",): 1, ("n4",): 2})
    desk.server.put(kinds.WORKLOADS, story.workload)
    judged = len(desk.server.requests)
    await until(lambda: len(desk.server.requests) > judged + 20)
    assert desk.changes == []
    desk.server.put(kinds.WORKLOADS, sound().workload)
    desk.server.faults.clear()
    await until(lambda: desk.connection[1:] == [""])
