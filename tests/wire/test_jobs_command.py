"""`rackgate hold`, `resume`, `requeue`, `cancel` and `logs` against a fake cluster over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, TransportError
from rackgate_cli.errors import CommandError
from rackgate_cli.jobs import logs as logs_module
from rackgate_cli.jobs.actions import JobActions
from rackgate_cli.jobs.logs import JobLogs, LogOptions
from rackgate_cli.jobs.names import parse
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish

LOG = "batch.kubernetes.io/job-completion-index"


class Cluster(World):
    """A world that serves logs and answers which rights its user has.

    Attributes:
        logs: by name of the pod, the parts of its log; None waits for `more`.
        forbidden: verb and resource, as in a SelfSubjectAccessReview.
        asked: the queries of logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, list[bytes | None]] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self.asked: list[dict[str, str]] = []
        self.more = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/log"):
            return await super()._handle(request)
        self.asked.append(dict(request.query))
        name = request.path.split("/")[-2]
        if name not in self.logs:
            status = {"kind": "Status", "reason": "BadRequest", "message": "waiting to start"}
            return web.json_response(status, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        for part in self.logs[name]:
            if part is None:
                await self.more.wait()
            else:
                await response.write(part)
        await response.write_eof()
        return response

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.plural == "selfsubjectaccessreviews":
            asked = json.loads(seen.body or b"{}")["spec"]["resourceAttributes"]
            sub = f"/{asked['subresource']}" if asked["subresource"] else ""
            denied = (asked["verb"], asked["resource"] + sub) in self.forbidden
            return 201, {"status": {"allowed": not denied}}
        verb = {"GET": "get" if target.name else "list"}.get(seen.method, seen.method.lower())
        if (verb, target.plural) in self.forbidden:
            raise RejectedRequest(403, "Forbidden", f"{target.plural} is forbidden")
        return super()._do(target, seen)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        furnish(running)
        yield running


@pytest_asyncio.fixture
async def client(world: Cluster) -> AsyncIterator[Client]:
    found = world.client()
    yield found
    await found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rackgate_cli.jobs.actions.POLL_S", 0.01)
    monkeypatch.setattr("rackgate_cli.jobs.logs.POLL_S", 0.01)


def actions(client: Client, said: list[str] | None = None) -> JobActions:
    said = [] if said is None else said
    return JobActions(client, NAMESPACE, said.append)


async def test_hold_and_resume(world: Cluster, client: Client) -> None:
    said: list[str] = []
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
        await actions(client, said).hold(parse("job/train"))
        await eventually(world.shows("train", "Evicted", "True", "Deactivated"))
        await actions(client, said).hold(parse("train"))
        await actions(client, said).resume(parse("train"))
        await eventually(partial(world.admitted, "train"))
        await actions(client, said).resume(parse("train"))
    assert said == [
        "job/train held: its pods are being stopped",
        "job/train is held already",
        "job/train resumed",
        "job/train is not held",
    ]


async def test_requeue_gives_up_the_admission(world: Cluster, client: Client) -> None:
    said: list[str] = []
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
        await actions(client, said).requeue(parse("train"), 60)
        await eventually(partial(world.admitted, "train"))
        assert world.workload("train")["spec"]["active"] is True
        assert world.condition("train", "Requeued")[0] == "True"
    assert said == ["job/train requeued"]


async def test_a_requeue_that_is_cut_off_says_how_to_go_on(world: Cluster, client: Client) -> None:
    said: list[str] = []
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
    # No assigner stops it.
    with pytest.raises(CommandError, match=r"and is held now; .* rackgate resume job/train queues"):
        await actions(client, said).requeue(parse("train"), 0.05)
    with pytest.raises(CommandError, match="job/train is held: rackgate resume job/train"):
        await actions(client, said).requeue(parse("train"), 60)
    await actions(client, said).resume(parse("train"))
    going = asyncio.ensure_future(actions(client, said).requeue(parse("train"), 60))
    await eventually(lambda: world.workload("train")["spec"]["active"] is False)
    going.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going
    assert said[-1] == "job/train may be held now: rackgate resume job/train queues it again"


@pytest.mark.parametrize(
    ("error", "may_be_held"),
    [(CommandError("you may not patch Workloads"), False), (TransportError("PATCH", "/w"), True)],
)
async def test_a_requeue_says_that_a_job_may_be_held_only_if_it_may(
    world: Cluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    may_be_held: bool,
) -> None:
    said: list[str] = []
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))

    async def failing(*_: object, **__: object) -> None:
        raise error

    acting = actions(client, said)
    monkeypatch.setattr(acting, "_patch", failing)
    with pytest.raises(type(error)):
        await acting.requeue(parse("train"), 60)
    assert any("may be held now" in line for line in said) is may_be_held


async def test_a_pending_job_has_nothing_to_give_up(world: Cluster, client: Client) -> None:
    said: list[str] = []
    async with assigner(world):
        world.submit("large", 400, cpu="4")
        await eventually(lambda: world.condition("large", "QuotaReserved")[0] == "False")
        before = world.workload("large")
        await actions(client, said).requeue(parse("large"), 60)
        assert world.workload("large")["spec"] == before["spec"]
    assert said == ["job/large is pending already: it has no admission to give up"]


async def test_a_workload_of_that_name_that_came_later_is_not_changed_unread(
    world: Cluster, client: Client
) -> None:
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
    acting = actions(client)
    (found,) = await acting.find(parse("train"))
    stored = world.workload("train")
    world.put(kinds.WORKLOADS, {**stored, "metadata": {**stored["metadata"], "uid": "other"}})
    await acting.hold(parse("train"))  # reads it first
    assert world.workload("train")["spec"]["active"] is False
    with pytest.raises(Exception, match="uid"):
        await acting._patch(found, active=True)
    assert world.workload("train")["spec"]["active"] is False


async def test_cancel_deletes_exactly_this_job(world: Cluster, client: Client) -> None:
    said: list[str] = []
    acting = actions(client, said)
    world.submit("train", 4)
    name, uid = await acting.find_object(parse("train"))
    with pytest.raises(CommandError, match="another job/train exists now"):
        await acting.cancel(name, "of an earlier one")
    await acting.cancel(name, uid)
    assert said == ["job/train canceled"]
    (deletion,) = [one for one in world.accepted() if one.method == "DELETE"]
    assert json.loads(deletion.body or b"")["propagationPolicy"] == "Background"
    with pytest.raises(CommandError, match='no job and no Workload "train" in namespace'):
        await acting.find_object(parse("train"))


async def test_what_there_is_instead_is_said(world: Cluster, client: Client) -> None:
    acting = actions(client)
    world.submit("new", 4)
    with pytest.raises(
        CommandError, match=r"job/new has no Workload yet\. Check that the assigner"
    ):
        await acting.hold(parse("new"))
    meta = {"name": "free", "namespace": NAMESPACE}
    world.put(kinds.JOBS, {"metadata": meta, "spec": {"template": {}}})
    with pytest.raises(CommandError, match="Rackgate does not manage job/free: it has no label"):
        await acting.hold(parse("free"))
    async with assigner(world):
        await eventually(partial(world.admitted, "new"))
        with pytest.raises(CommandError, match=r'"nwe" in namespace .* \(did you mean "new"\?\)'):
            await acting.hold(parse("nwe"))
        world.complete("new")
        await eventually(world.shows("new", "Finished", "True"))
        with pytest.raises(CommandError, match="job/new is finished"):
            await acting.hold(parse("new"))


async def test_all_missing_rights_are_named_with_their_role(world: Cluster, client: Client) -> None:
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
    acting = actions(client)
    role = 'ask an administrator to bind the ClusterRole "rackgate-batch-user" to you there'
    world.forbidden = {("patch", "workloads")}
    with pytest.raises(CommandError, match=rf"may not patch workloads.kueue.*; {role}"):
        await acting.hold(parse("train"))
    world.forbidden = {("patch", "workloads"), ("list", "workloads")}
    said = "may not list workloads.kueue.x-k8s.io and patch workloads.kueue.x-k8s.io in namespace"
    with pytest.raises(CommandError, match=said):
        await acting.resume(parse("train"))
    world.forbidden = {("delete", "jobs")}
    with pytest.raises(CommandError, match=r"may not delete jobs\.batch in namespace"):
        await acting.cancel(*await acting.find_object(parse("train")))
    world.forbidden = {("list", "pods"), ("get", "pods/log")}
    with pytest.raises(CommandError, match="may not list pods and get pods/log in namespace"):
        await JobLogs(client, NAMESPACE, LogOptions()).run(parse("train"))


# Logs.


def pod(world: World, name: str, rank: int | None, job: str = "train", **more: Any) -> None:
    """A pod of a Job as its controller makes it."""
    workload, owner = world.workload(job), world.job(job)["metadata"]
    index = {} if rank is None else {LOG: str(rank)}
    controller = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job,
        "uid": more.pop("owner", owner["uid"]),
        "controller": True,
    }
    world.put(
        kinds.PODS,
        {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {names.PODSET_LABEL: "main", **index},
                "annotations": more.get("annotations")
                or {names.WORKLOAD_ANNOTATION: workload["metadata"]["name"]},
                "ownerReferences": [controller],
            },
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": more.get("phase", "Running")},
        },
    )


async def running(world: World) -> None:
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))


async def test_logs_have_the_rank_of_their_pod(world: Cluster, client: Client) -> None:
    await running(world)
    pod(world, "train-b", 0)
    pod(world, "train-a", 1)
    pod(world, "train-c", None)
    pod(world, "train-d", 3, phase="Pending")
    pod(world, "forged", 0, owner="of another job")
    world.logs = {
        "train-a": [b"one\ntw", b"o\n"],
        "train-b": [b"zero\n\rhidden\n"],
        "train-c": [b"no end"],
        "forged": [b"not of this job\n"],
    }
    written: list[str] = []
    await JobLogs(client, NAMESPACE, LogOptions(), written.append).run(parse("job/train"))
    lines = "".join(written).splitlines()
    assert lines == ["[0] zero", "[0] \\rhidden", "[1] one", "[1] two", "[train-c] no end"]
    written.clear()
    options = LogOptions(ranks=frozenset({1}), tail=7, container="main")
    await JobLogs(client, NAMESPACE, options, written.append).run(parse("train"))
    assert "".join(written) == "[1] one\n[1] two\n"
    assert world.asked[-1] == {"tailLines": "7", "container": "main"}
    with pytest.raises(CommandError, match="job/train has no pod with rank 9"):
        await JobLogs(client, NAMESPACE, LogOptions(ranks=frozenset({9}))).run(parse("train"))


@pytest.mark.requirement("OPS-14")
async def test_logs_of_a_job_that_kueue_scaled_up(world: Cluster, client: Client) -> None:
    """Its pods name a Workload slice that Kueue replaced, and that is gone."""
    await running(world)
    pod(world, "train-a", 1)
    workload = world.workload("train")
    chain = {names.KUEUE_SLICE_CHAIN_ANNOTATION: "first"}
    workload["metadata"].setdefault("annotations", {}).update(chain)
    world.put(kinds.WORKLOADS, workload)
    for name, first in (("train-b", "first"), ("forged", "another")):
        named = {names.WORKLOAD_ANNOTATION: "second", names.KUEUE_SLICE_CHAIN_ANNOTATION: first}
        pod(world, name, 0, annotations=named)
    world.logs = {"train-a": [b"one\n"], "train-b": [b"zero\n"], "forged": [b"other\n"]}
    written: list[str] = []
    await JobLogs(client, NAMESPACE, LogOptions(), written.append).run(parse("train"))
    assert "".join(written) == "[0] zero\n[1] one\n"


async def test_a_log_that_cannot_be_read_does_not_hide_the_others(
    world: Cluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    await running(world)
    pod(world, "train-a", 0)
    pod(world, "train-b", 1)
    world.logs = {"train-b": [b"one\n"]}
    written: list[str] = []
    await JobLogs(client, NAMESPACE, LogOptions(), written.append).run(parse("train"))
    assert written == ["[1] one\n"]
    assert "note: train-a: waiting to start" in capsys.readouterr().err
    world.logs.clear()
    with pytest.raises(KubeError, match="waiting to start"):
        await JobLogs(client, NAMESPACE, LogOptions()).run(parse("train"))


async def test_following_ends_with_the_job_and_shows_late_pods(
    world: Cluster, client: Client
) -> None:
    async with assigner(world):
        world.submit("train", 4)
        await eventually(partial(world.admitted, "train"))
        pod(world, "train-a", 0)
        pod(world, "train-b", 1)  # its container is waiting: it has no log yet
        world.logs = {"train-a": [b"first\n", None, b"last\n"]}
        written: list[str] = []
        options = LogOptions(follow=True)
        printing = JobLogs(client, NAMESPACE, options, written.append).run(parse("train"))
        following = asyncio.ensure_future(printing)
        await eventually(lambda: written == ["[0] first\n"])
        world.logs["train-b"] = [b"late\n"]
        await eventually(lambda: "[1] late\n" in written)
        world.complete("train")
        await eventually(world.shows("train", "Finished", "True"))
        assert not following.done()
        world.more.set()
        await asyncio.wait_for(following, 60)
    assert written == ["[0] first\n", "[1] late\n", "[0] last\n"]
    assert {one["follow"] for one in world.asked} == {"true"}


async def test_a_few_logs_are_followed_at_once(
    world: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "MAX_STREAMS", 2)
    await running(world)
    for rank in range(4):
        pod(world, f"train-{rank}", rank)
    world.logs = {f"train-{rank}": [f"{rank}\n".encode(), None] for rank in range(4)}
    written: list[str] = []
    printing = JobLogs(client, NAMESPACE, LogOptions(follow=True), written.append)
    following = asyncio.ensure_future(printing.run(parse("train")))
    await eventually(lambda: len(written) == 2)
    assert len(world.asked) == 2
    world.more.set()
    await eventually(lambda: len(written) == 4)
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def test_without_pods_the_reason_is_one_command_away(world: Cluster, client: Client) -> None:
    await running(world)
    with pytest.raises(CommandError, match="job/train has no pods: rackgate explain train says"):
        await JobLogs(client, NAMESPACE, LogOptions()).run(parse("train"))
    pod(world, "train-a", 0, phase="Pending")
    with pytest.raises(CommandError, match="no pod of job/train has started yet"):
        await JobLogs(client, NAMESPACE, LogOptions()).run(parse("train"))
