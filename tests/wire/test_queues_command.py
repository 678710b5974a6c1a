"""`rackgate get` against a fake cluster over real HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate_cli.__main__ import build_parser
from rackgate_cli.errors import CommandError
from rackgate_cli.get import command
from rackgate_cli.get import kinds as shown_kinds
from rackgate_cli.get.output import print_changes, print_report
from rackgate_cli.get.watching import call_on_changes
from rackgate_cli.queues.model import QueueReport, WorkloadReport
from tests.support.apiserver import Object, Request, Stream
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish


class Cluster(World):
    """A world with the visibility API, once `positions` is set; some lists may be forbidden.

    Attributes:
        positions: by name of the LocalQueue, the names of the Workloads in it.
        forbidden: plurals that may not be listed in all namespaces.
        lacking: plurals that may not be listed at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[str, list[str]] | None = None
        self.forbidden: set[str] = set()
        self.lacking: set[str] = set()

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.sub == "pendingworkloads":
            if self.positions is None:
                raise RejectedRequest(404, "NotFound", "404 page not found")
            start = int(seen.query["offset"])
            found = self.positions.get(target.name, [])[start : start + int(seen.query["limit"])]
            items = [
                {
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "positionInClusterQueue": start + at + 10,
                    "positionInLocalQueue": start + at,
                }
                for at, name in enumerate(found)
            ]
            return 200, {"items": items}
        if target.plural == "selfsubjectaccessreviews":
            asked = json.loads(seen.body or b"{}")["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": asked["resource"] not in self.lacking}}
        if target.plural in self.lacking and not target.name:
            raise RejectedRequest(403, "Forbidden", f"{target.plural} is forbidden")
        if target.plural in self.forbidden and not target.name and not target.namespace:
            raise RejectedRequest(403, "Forbidden", f"{target.plural} is forbidden")
        return super()._do(target, seen)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        furnish(running)
        yield running


def arguments(*words: str) -> argparse.Namespace:
    return build_parser(words[0]).parse_args(words)


async def _report(client: Client, given: argparse.Namespace, namespace: str | None) -> Any:
    shown, given.names = shown_kinds.parse(given.kind, given.names)
    return await command.read_report(client, given, shown, namespace)


async def workloads(world: World, *words: str, namespace: str | None = NAMESPACE) -> WorkloadReport:
    client = world.client()
    try:
        found = await _report(client, arguments("workloads", *words), namespace)
        assert isinstance(found, WorkloadReport)
        return found
    finally:
        await client.close()


async def queues(world: World, *words: str, namespace: str | None = NAMESPACE) -> QueueReport:
    client = world.client()
    try:
        found = await _report(client, arguments("queues", *words), namespace)
        assert isinstance(found, QueueReport)
        return found
    finally:
        await client.close()


def decided(world: World, name: str) -> bool:
    return world.condition(name, "QuotaReserved")[0] != ""


async def busy(world: World) -> None:
    """One Job runs, two wait."""
    async with assigner(world):
        for name in ("first", "second", "third"):
            world.submit(name, 12, cpu="4")
            await eventually(partial(decided, world, name))

        def counted() -> bool:
            found = world.get(kinds.CLUSTER_QUEUES, "cq") or {}
            return bool(found.get("status", {}).get("pendingWorkloads") == 2)

        await eventually(counted)


def jobs(report: WorkloadReport) -> list[tuple[str, str, int | None]]:
    return [(row.job, row.status, row.position_in_cluster_queue) for row in report.items]


async def test_without_the_api_positions_are_computed_and_it_is_said(world: Cluster) -> None:
    await busy(world)
    found = await workloads(world)
    assert jobs(found) == [
        ("Job/second", "Pending", 0),
        ("Job/third", "Pending", 1),
        ("Job/first", "Admitted", None),
    ]
    (note,) = found.notes
    assert found.positions_from == "objects"
    assert note.startswith("positions are computed from objects, because the API visibility.kueue")
    assert {row.reason for row in found.items[:2]} == {"WaitingForQuota"}


async def test_computed_positions_follow_the_usage_that_local_queues_show(world: Cluster) -> None:
    def use(queue: str, amount: str) -> None:
        stored = {"consumedResources": {"cpu": amount}, "lastUpdate": "2026-08-01T12:00:00Z"}
        sharing = {"weightedShare": 0, "admissionFairSharingStatus": stored}
        status = {"fairSharing": sharing}
        world.change(kinds.LOCAL_QUEUES, queue, lambda o: o.setdefault("status", {}).update(status))

    await busy(world)
    other = {"clusterQueue": "cq"}
    meta = {"name": "other", "namespace": NAMESPACE}
    world.put(kinds.LOCAL_QUEUES, {"metadata": meta, "spec": other})
    pending = {row.job: row.name for row in (await workloads(world)).items}["Job/third"]
    world.change(kinds.WORKLOADS, pending, lambda o: o["spec"].update(queueName="other"))
    use("queue", "5")
    use("other", "1500m")
    assert jobs(await workloads(world))[:2] == [
        ("Job/second", "Pending", 0),
        ("Job/third", "Pending", 1),
    ]
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(admissionScope=scope))
    found = await workloads(world)
    assert sorted(jobs(found)[:2]) == [("Job/second", "Pending", 1), ("Job/third", "Pending", 0)]
    assert "resourceWeights of the assigner are unknown" in found.notes[-1]


async def test_the_api_says_the_positions(world: Cluster) -> None:
    await busy(world)
    named = [row.name for row in (await workloads(world)).items]
    # Not as they would be computed.
    world.positions = {"queue": [named[1], named[0]]}
    found = await workloads(world)
    assert (found.positions_from, found.notes) == ("visibility", ())
    assert jobs(found)[:2] == [("Job/third", "Pending", 10), ("Job/second", "Pending", 11)]


async def test_a_long_queue_is_read_in_pages(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackgate_cli.queues.reading.PAGE", 1)
    await busy(world)
    named = [row.name for row in (await workloads(world)).items]
    world.positions = {"queue": named[:2]}
    assert [one[2] for one in jobs(await workloads(world))] == [10, 11, None]


async def test_a_user_of_one_namespace_gets_positions_in_local_queues(world: Cluster) -> None:
    await busy(world)
    world.forbidden = {"workloads", "localqueues", "clusterqueues", "workloadpriorityclasses"}
    found = await workloads(world)
    assert [
        (row.position_in_cluster_queue, row.position_in_local_queue) for row in found.items
    ] == [
        (None, 0),
        (None, 1),
        (None, None),
    ]
    assert "only positions in LocalQueues" in found.notes[-1]
    shown = await queues(world)
    assert {row.kind for row in shown.items} == {"LocalQueue"}
    assert "nominal quotas are unknown" in shown.notes[0]
    with pytest.raises(CommandError, match=r"cannot be listed: .*; name a namespace with -n"):
        await workloads(world, namespace=None)
    world.lacking = {"workloads", "localqueues"}
    named = "may not list localqueues.kueue.x-k8s.io and list workloads.kueue.x-k8s.io in namespace"
    with pytest.raises(CommandError, match=f'{named}.* "rackgate-batch-user"'):
        await workloads(world)


async def test_filters(world: Cluster) -> None:
    await busy(world)
    assert len((await workloads(world, "--status", "pending")).items) == 2
    assert len((await workloads(world, "--status", "admitted", "--status", "pending")).items) == 3
    assert (await workloads(world, "--status", "finished")).items == ()
    assert (await workloads(world, "--cluster-queue", "plain")).items == ()
    assert len((await workloads(world, "--local-queue", "queue")).items) == 3
    assert [row.job for row in (await workloads(world, "second")).items] == ["Job/second"]
    assert (await workloads(world, "-l", "team=none")).items == ()
    with pytest.raises(CommandError, match=r'no Workload or job "secnd" here \(did you mean'):
        await workloads(world, "secnd")


async def test_queues_show_usage_and_counts(world: Cluster) -> None:
    await busy(world)
    found = await queues(world)
    rows = {(row.kind, row.name): row for row in found.items}
    assert set(rows) == {
        *(("ClusterQueue", name) for name in ("cq", "plain")),
        *(("LocalQueue", name) for name in ("queue", "plain")),
    }
    queue = rows["ClusterQueue", "cq"]
    assert (queue.active, queue.pending_workloads, queue.reserving_workloads) == (True, 2, 1)
    (usage,) = queue.usage
    assert (usage.flavor, usage.resource, usage.used, usage.nominal) == ("tas", "cpu", "48", "64")
    assert [row.name for row in (await queues(world, "cq")).items] == ["cq"]
    with pytest.raises(CommandError, match='no queue "gpu" here'):
        await queues(world, "gpu")


async def test_only_reads(world: Cluster) -> None:
    await workloads(world)
    await queues(world)
    assert {request.method for request in world.requests} == {"GET"}


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_documents_have_the_names_of_the_api(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = WorkloadReport((), "objects", ("computed",))
    print_report(report, output, all_namespaces=False, nothing="nothing")
    written: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert written == {
        "items": [],
        "positionsFrom": "objects",
        "notes": ["computed"],
        "kind": "WorkloadReport",
        "apiVersion": "queues.rackgate.dev/v1alpha1",
    }
    print_report(report, None, all_namespaces=False, nothing="No Workloads found.")
    printed = capsys.readouterr()
    assert printed.out == "No Workloads found.\n"
    assert printed.err == "note: computed\n"


async def test_names_with_and_without_a_kind(
    world: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await busy(world)
    for name in ("job/second", "Job/second", "jobs/second"):
        assert [row.job for row in (await workloads(world, name)).items] == ["Job/second"]
    found = await workloads(world, "second", "job/third")
    assert [row.job for row in found.items] == ["Job/second", "Job/third"]
    with pytest.raises(CommandError, match='no Workload or job "jobset/second" here'):
        await workloads(world, "jobset/second")
    capsys.readouterr()  # the log of the assigner
    print_report(found, "name", all_namespaces=False, nothing="")
    names = [row.name for row in found.items]
    assert capsys.readouterr().out.split() == [f"workload.kueue.x-k8s.io/{one}" for one in names]


async def test_only_what_changed_is_printed_again(
    world: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await busy(world)
    before = await workloads(world)
    capsys.readouterr()  # the log of the assigner
    print_changes(before, await workloads(world), None, all_namespaces=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    changed = {row.job: row.name for row in before.items}["Job/third"]
    world.change(kinds.WORKLOADS, changed, lambda o: o["spec"].update(active=False))
    print_changes(before, await workloads(world), None, all_namespaces=False)
    shown = capsys.readouterr().out
    assert "job/third" in shown
    assert "Deactivated" in shown
    assert "job/first" not in shown
    after = msgspec.structs.replace(before, items=before.items[:-1])
    print_changes(before, after, None, all_namespaces=False)
    gone = before.items[-1].name
    assert capsys.readouterr().err == f"workload.kueue.x-k8s.io/{gone} is not shown any more\n"


def watches(world: Cluster) -> list[Stream]:
    return [stream for stream in world.streams if stream.target.plural == "workloads"]


async def test_watching_reads_again_after_a_change(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackgate_cli.get.watching.PAUSE_S", 0.01)
    await busy(world)
    client = world.client()
    read: list[dict[str, str]] = []

    async def act() -> None:
        found = await _report(client, arguments("workloads"), NAMESPACE)
        read.append({row.job: row.status for row in found.items})

    following = asyncio.ensure_future(call_on_changes(client, "workloads", NAMESPACE, act))
    try:
        await eventually(
            lambda: any(stream.target.plural == "workloads" for stream in world.streams)
        )
        for stream in [one for one in world.streams if one.target.plural == "workloads"]:
            stream.cut()  # it reads again after a broken watch, too
        name = {row.job: row.name for row in (await workloads(world)).items}["Job/third"]
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=False))
        await eventually(lambda: read and read[-1].get("Job/third") == "Deactivated")
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await client.close()


async def test_watching_shows_what_other_namespaces_change(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackgate_cli.get.watching.PAUSE_S", 0.01)
    monkeypatch.setattr("rackgate_cli.get.watching.REFRESH_S", 0.05)
    client = world.client()
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1

    following = asyncio.ensure_future(call_on_changes(client, "queues", "empty", act))
    try:
        await eventually(lambda: calls >= 3)  # without any event
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await client.close()
