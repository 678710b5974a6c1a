"""The service of the console over HTTP: who may see what, and what a stream sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.features import Features
from rackgate.runtime import clock
from rackgate.runtime.serving import connections
from rackgate.runtime.serving.connections import State
from rackgate_console import server as server_module
from rackgate_console import time_budget
from rackgate_console.console import Console
from rackgate_console.details import Details
from rackgate_console.responses import RejectedError
from rackgate_console.server import ConsoleServer
from rackgate_console.time_budget import TimeBudget
from rackgate_console.viewers.access import Access
from rackgate_console.viewers.sessions import CODE_S, Sessions
from rackgate_console.viewers.token_viewers import TokenViewers, identity_of
from rackgate_console.viewers.viewer import Credentials, LocalViewers
from tests.support import objects
from tests.support.apiserver import FakeApiServer, Fault, Object, Request
from tests.support.apiserver_objects import Target
from tests.support.console_page import Page
from tests.support.waiting import until

NAMESPACES = ("red", "blue")
CONNECTIONS = 64
# Who has which token, and what each may list: (resource, namespace), "" for everywhere.
TOKENS = {"t-admin": "admin", "t-red": "red", "t-none": "none", "t-queues": "queues"}
ACCOUNTS = {f"t-{name}": f"system:serviceaccount:red:{name}" for name in ("one", "two")}
TOKENS |= ACCOUNTS
ALL = {(name, "") for name in ("nodes", "clusterqueues", "workloads", "pods", "events")}
RIGHTS: dict[str, set[tuple[str, str]]] = {
    "admin": ALL,
    "red": {(name, "red") for name in ("workloads", "pods", "events")},
    "none": set(),
    "queues": {("clusterqueues", ""), ("workloads", "red"), ("pods", "red")},
    **{name: set() for name in ACCOUNTS.values()},
}


class Cluster(FakeApiServer):
    """A fake API server that knows users and their rights."""

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.plural == "tokenreviews":
            user = TOKENS.get(json.loads(seen.body)["spec"]["token"])
            status: Object = {"authenticated": user is not None}
            if user is not None:
                status["user"] = {"username": user, "groups": ["system:authenticated"]}
            return 201, {"status": status}
        if target.plural == "subjectaccessreviews":
            spec = json.loads(seen.body)["spec"]
            asked = spec["resourceAttributes"]
            right = (asked["resource"], asked.get("namespace", ""))
            rights = RIGHTS[spec["user"]]
            allowed = right in rights or (asked["resource"], "") in rights
            return 201, {"status": {"allowed": asked["verb"] == "list" and allowed}}
        return super()._do(target, seen)


def workload(namespace: str, name: str = "w", queue: str = "q") -> Object:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "creationTimestamp": "2026-08-01T12:00:00Z",
        },
        "spec": {
            "queueName": queue,
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
        "status": {},
    }


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    running = Cluster()
    async with running:
        running.put(kinds.TOPOLOGIES, objects.topology_object("default"))
        running.put(kinds.FLAVORS, objects.flavor("gpu", "pool", "default"))
        for node in objects.fx_a_nodes("pool"):
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            running.put(kinds.NODES, node)
        running.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "gpu", {"cpu": "8"}))
        for namespace in NAMESPACES:
            running.put(kinds.NAMESPACES, {"metadata": {"name": namespace}})
            queue = objects.local_queue("q", "cq")
            queue["metadata"]["namespace"] = namespace
            running.put(kinds.LOCAL_QUEUES, queue)
            running.put(kinds.WORKLOADS, workload(namespace))
        yield running


class Running:
    """A console of the fake cluster."""

    def __init__(self, cluster: Cluster, *, local: bool) -> None:
        self.client = cluster.client()
        self.console = Console(self.client, Features.of(None))
        self.sessions = Sessions(clock.monotonic())
        self.viewers = LocalViewers(self.sessions, "me", 0) if local else TokenViewers(self.client)
        details = Details(self.console, self.client)
        self.server = ConsoleServer(self.console, self.viewers, details, "test")

    async def __aenter__(self) -> Running:
        await self.server.start("127.0.0.1", 0, max_connections=CONNECTIONS)
        if isinstance(self.viewers, LocalViewers):
            self.viewers.port = self.server.port
        self._task = asyncio.create_task(self.console.follow())
        await until(lambda: self.console.feed.number)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.client.close()


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.CookieJar(unsafe=True), read_bufsize=2**22
    ) as session:
        yield session


@pytest_asyncio.fixture
async def local(
    cluster: Cluster, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[Running, Page]]:
    async with Running(cluster, local=True) as running:
        yield running, Page(running.server.port, http)


@pytest_asyncio.fixture
async def shared(
    cluster: Cluster, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[Running, Page]]:
    async with Running(cluster, local=False) as running:
        yield running, Page(running.server.port, http)


async def sign_in(running: Running, page: Page) -> int:
    code = {"code": running.sessions.code}
    async with page.http.post(page.address + "/api/session", json=code) as response:
        return response.status


# The user of this machine.


@pytest.mark.requirement("OPS-05")
async def test_the_code_opens_one_session_and_is_not_valid_again(
    local: tuple[Running, Page],
) -> None:
    running, page = local
    assert (await page.get("/api/session"))[0] == 401
    assert await sign_in(running, page) == 204
    status, found = await page.get("/api/session")
    assert (status, found["mode"], found["user"]) == (200, "local", "me")
    assert found["access"] == {
        "nodes": True,
        "queues": True,
        "allNamespaces": True,
        "namespaces": [],
    }
    page.http.cookie_jar.clear()
    assert await sign_in(running, page) == 401
    running.sessions.new_code(clock.monotonic())
    assert await sign_in(running, page) == 204


async def test_a_code_is_valid_for_some_minutes() -> None:
    sessions = Sessions(0.0)
    assert sessions.open("\ud800", 0.0) is None
    assert sessions.open(sessions.code, CODE_S + 1) is None
    assert sessions.open("", 0.0) is None
    cookie = sessions.open(sessions.code, CODE_S)
    assert cookie is not None
    assert sessions.is_valid(cookie)
    assert not sessions.is_valid("")
    assert not sessions.is_valid("\udcff")


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    local: tuple[Running, Page],
) -> None:
    running, page = local
    code = {"code": running.sessions.code}
    async with page.http.post(page.address + "/api/session", json=code) as response:
        cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Max-Age" not in cookie


@pytest.mark.parametrize(
    "path", ["/", "/page/index.html", "/api/session", "/nothing", "/page/../x"]
)
async def test_every_answer_has_the_headers_that_keep_others_out(
    local: tuple[Running, Page], path: str
) -> None:
    _, page = local
    async with page.http.get(page.address + path) as response:
        headers = response.headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in policy


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Host": "evil.example:80"}, 421),
        ("/api/session", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/api/session", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/api/session", {"Origin": "http://evil.example"}, 403),
        ("/api/session", {"Origin": "null"}, 403),
        ("/api/stream", {}, 401),
        ("/api/workloads/red/w", {}, 401),
        ("/api/history/ClusterQueue/cq", {}, 401),
        ("/api/hosts/gpu?domain=b1", {}, 401),
    ],
)
async def test_requests_of_others_are_not_answered(
    local: tuple[Running, Page], path: str, headers: dict[str, str], status: int
) -> None:
    _, page = local
    found, body = await page.get(path, **headers)
    assert found == status
    assert "error" in body


async def test_a_link_of_another_site_opens_the_page(local: tuple[Running, Page]) -> None:
    _, page = local
    assert (await page.get("/", **{"Sec-Fetch-Site": "cross-site"}))[0] == 200


async def test_files_are_sent_again_only_if_they_changed(local: tuple[Running, Page]) -> None:
    _, page = local
    async with page.http.get(page.address + "/") as response:
        tag = response.headers["ETag"]
        assert response.content_type == "text/html"
    assert (await page.get("/", **{"If-None-Match": tag}))[0] == 304


async def test_a_stream_begins_with_everything_and_goes_on_with_changes(
    local: tuple[Running, Page], cluster: Cluster
) -> None:
    running, page = local
    await sign_in(running, page)
    async with page.stream() as stream:
        await stream.until(lambda: stream.tables)
        assert stream.cluster["reachable"]
        assert set(stream.tables["workloads"]) == {"red/w", "blue/w"}
        assert len(stream.tables["hosts"]) == 8
        assert "ClusterQueue/cq" in stream.tables["queues"]
        positions = {tuple(row["position"]) for row in stream.tables["workloads"].values()}
        assert positions == {(0, 0), (1, 0)}
        cluster.put(kinds.WORKLOADS, workload("red", "second"))
        await stream.until(lambda: "red/second" in stream.tables["workloads"])
        cluster.remove(kinds.WORKLOADS, "w", "red")
        await stream.until(lambda: "red/w" not in stream.tables["workloads"])
        assert stream.tables["workloads"]["red/second"]["position"] == [1, 0]


async def test_a_stream_says_since_when_the_api_server_is_away(
    local: tuple[Running, Page], cluster: Cluster
) -> None:
    running, page = local
    await sign_in(running, page)
    async with page.stream() as stream:
        await stream.until(lambda: stream.tables)
        await cluster.stop()
        await stream.until(lambda: not stream.cluster["reachable"])
        assert stream.cluster["since"]
        assert stream.cluster["problem"]
        assert len(stream.tables["hosts"]) == 8
        cluster.compact()
        await cluster.start()
        cluster.put(kinds.WORKLOADS, workload("red", "later"))
        await stream.until(lambda: stream.cluster["reachable"])
        await stream.until(lambda: "red/later" in stream.tables["workloads"])


async def test_a_stream_ends_with_a_reason_when_the_console_stops(
    local: tuple[Running, Page],
) -> None:
    running, page = local
    await sign_in(running, page)
    async with page.stream() as stream:
        await stream.until(lambda: stream.tables)
        stopping = asyncio.create_task(running.server.stop())
        await stream.until(lambda: stream.ended)
        assert stream.ended == "the console stops"
        await stopping


async def test_a_workload_is_explained_with_its_timeline_and_pods(
    local: tuple[Running, Page], cluster: Cluster
) -> None:
    running, page = local
    await sign_in(running, page)
    cluster.put(
        kinds.EVENTS,
        {
            "metadata": {
                "name": "e",
                "namespace": "red",
                "creationTimestamp": "2026-08-01T12:00:05Z",
            },
            "regarding": {"kind": "Workload", "name": "w"},
            "reason": "Pending",
            "note": "it waits",
            "type": "Normal",
        },
    )
    status, found = await page.get("/api/workloads/red/w")
    assert status == 200
    assert found["explanation"]["state"] == "waiting"
    assert [entry["event"] for entry in found["timeline"]] == ["Created", "Pending"]
    assert found["pods"] == []
    assert (await page.get("/api/workloads/red/none"))[0] == 404
    status, found = await page.get("/api/history/ClusterQueue/cq")
    assert found["series"][0]["nominal"] == [8000]


MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: red, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  parallelism: 2
  template:
    metadata:
      annotations: {kueue.x-k8s.io/podset-required-topology: cloud.provider.com/topology-rack}
    spec:
      restartPolicy: Never
      containers: [{name: c, image: busybox, resources: {requests: {cpu: "%s"}}}]
"""


async def ask(page: Page, token: str = "", **question: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with page.http.post(
        page.address + "/api/what-if?namespaces=red", json=question, headers=headers
    ) as response:
        return response.status, await response.json()


async def test_a_manifest_is_placed_now_on_an_empty_cluster_and_with_more_nodes(
    local: tuple[Running, Page], cluster: Cluster
) -> None:
    running, page = local
    await sign_in(running, page)
    queue = objects.cluster_queue("cq", "gpu", {"cpu": "1000"})
    cluster.put(kinds.CLUSTER_QUEUES, queue)
    await until(
        lambda: b'"nominal":1000000' in running.console.feed.everything(Access(queues=True))
    )
    status, found = await ask(page, manifest=MANIFEST % 8)
    assert status == 200
    assert found["explanation"]["fits"]
    assert "API server has not checked" in found["notes"][0]
    # Too large for any node, so more of them do not help. What the page shows is left alone.
    shown = running.console.cache.flavor_topologies().by_flavor["gpu"].tree
    status, found = await ask(page, manifest=MANIFEST % 9, moreNodes=4)
    assert not found["explanation"]["fits"]
    assert "4 nodes of flavor gpu were added" in found["notes"][1]
    assert running.console.cache.flavor_topologies().by_flavor["gpu"].tree is shown
    # All racks are full: it fits on the empty cluster, and with more nodes.
    for node in running.console.cache.nodes:
        pod = {
            "metadata": {
                "name": node,
                "namespace": "red",
                "annotations": {"kueue.x-k8s.io/workload": "w"},
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "8"}}}],
            },
            "status": {"phase": "Running"},
        }
        cluster.put(kinds.PODS, pod)
    await until(lambda: len(running.console.watches.pods.store) == 8)
    assert not (await ask(page, manifest=MANIFEST % 8))[1]["explanation"]["fits"]
    assert (await ask(page, manifest=MANIFEST % 8, empty=True))[1]["explanation"]["fits"]
    assert (await ask(page, manifest=MANIFEST % 8, moreNodes=2))[1]["explanation"]["fits"]
    assert not (await ask(page, manifest=MANIFEST % 8, moreNodes=1))[1]["explanation"]["fits"]
    assert not [seen for seen in cluster.requests if seen.method not in ("GET", "POST")]
    assert {seen.path for seen in cluster.requests if seen.method == "POST"} <= set()


@pytest.mark.parametrize(
    ("question", "field", "said"),
    [
        ({}, "manifest", "paste the manifest"),
        ({"manifest": 3}, "manifest", "expected str"),
        ({"manifest": "a: [1"}, "manifest", "not plain YAML"),
        ({"manifest": "a: 1"}, "manifest", "contains no Job"),
        ({"manifest": MANIFEST % 1, "moreNodes": -1}, "moreNodes", "not between"),
        ({"manifest": MANIFEST % 1, "moreNodes": True}, "moreNodes", "expected int"),
        ({"manifest": "x" * 300_000}, "manifest", "more than 256 KiB"),
        ({"manifest": "kind: Job\napiVersion: batch/v1\nmetadata: 3"}, "metadata", "object"),
    ],
)
async def test_a_wrong_question_is_answered_with_the_field(
    local: tuple[Running, Page], question: dict[str, Any], field: str, said: str
) -> None:
    running, page = local
    await sign_in(running, page)
    status, found = await ask(page, **question)
    assert (status, found["field"]) == (422, field)
    assert said in found["error"]


@pytest.mark.requirement("OPS-05")
async def test_a_tenant_asks_about_their_own_namespaces(shared: tuple[Running, Page]) -> None:
    _, page = shared
    status, found = await ask(page, "t-red", manifest=MANIFEST % 1)
    assert status == 200
    assert "blue" not in json.dumps(found)
    assert (await ask(page, "t-red", manifest=(MANIFEST % 1).replace("red", "blue")))[0] == 403
    assert (await ask(page, "t-none", manifest=MANIFEST % 1))[0] == 403


@pytest.mark.requirement("OPS-05")
async def test_hosts_of_a_domain_need_the_right_to_list_nodes(shared: tuple[Running, Page]) -> None:
    _, page = shared
    status, found = await page.get("/api/hosts/gpu?domain=block-1/rack-1", "t-admin")
    assert status == 200
    assert found["total"] == len(found["hosts"]) > 0
    assert {tuple(one["p"]) for one in found["hosts"]} == {("block-1", "rack-1")}
    for path in ("gpu?domain=block-1/none", "gpu", "none?domain=block-1/rack-1"):
        assert (await page.get(f"/api/hosts/{path}", "t-admin"))[0] == 404
    for token in ("t-red", "t-queues", "t-none"):
        assert (await page.get("/api/hosts/gpu?domain=block-1/rack-1", token))[0] == 403


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("system:serviceaccount:red:a", "system:serviceaccount:red:"),
        ("system:serviceaccount:red:b", "system:serviceaccount:red:"),
        ("system:serviceaccount:red", "system:serviceaccount:red"),
        ("x:serviceaccount:red:a", "x:serviceaccount:red:a"),
        ("jane@example.com", "jane@example.com"),
    ],
)
def test_service_accounts_of_a_namespace_share_the_limits_of_one_user(
    name: str, identity: str
) -> None:
    assert identity_of(name) == identity


@pytest.mark.requirement("OPS-05")
async def test_two_service_accounts_have_the_limits_of_one(shared: tuple[Running, Page]) -> None:
    running, _ = shared
    found = [
        await running.viewers.viewer(Credentials(authorization=f"Bearer {token}"))
        for token in ACCOUNTS
    ]
    assert [one.user for one in found] == list(ACCOUNTS.values())
    assert len({one.identity for one in found}) == 1


def test_one_user_alone_does_not_use_up_the_time_of_all() -> None:
    budget = TimeBudget()
    budget.spend("red", 2 * time_budget.BURST_S, 0.0)
    with pytest.raises(RejectedError, match="took long"):
        budget.check("red", 0.0)
    budget.check("blue", 0.0)
    for number in range(3):
        budget.spend(f"user-{number}", time_budget.BURST_S, 0.0)
    with pytest.raises(RejectedError, match="took long"):
        budget.check("blue", 0.0)
    budget.check("blue", time_budget.BURST_OF_ALL_S)


async def test_a_user_whose_answers_take_long_waits_and_others_do_not(
    shared: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_budget, "BURST_S", 0.001)
    monkeypatch.setattr(time_budget, "SHARE_OF_ONE", 0.0)
    monkeypatch.setattr(time_budget, "SHARE_OF_ALL", 1000.0)
    _, page = shared
    path = "/api/workloads/red/w?namespaces=red"
    assert (await page.get(path, "t-red"))[0] == 200
    status, found = await page.get(path, "t-red")
    assert status == 429
    assert "took long" in found["error"]
    assert (await page.get(path, "t-admin"))[0] == 200


async def test_a_console_answers_so_many_streams_and_no_more(
    local: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_STREAMS_OF_USER", 1)
    running, page = local
    await sign_in(running, page)
    async with page.stream() as stream:
        await stream.until(lambda: stream.tables)
        status, found = await page.get("/api/stream")
        assert status == 429
        assert "too many pages" in found["error"]
    async with asyncio.timeout(10):
        while (await page.get("/api/session"))[0] != 200:
            await asyncio.sleep(0.01)


# Users of a cluster.


@pytest.mark.requirement("OPS-05")
async def test_two_tenants_do_not_see_each_other(shared: tuple[Running, Page]) -> None:
    _, page = shared
    async with page.stream("t-red", "?namespaces=red,blue") as stream:
        await stream.until(lambda: stream.tables)
        assert set(stream.tables) == {"queues", "workloads"}
        assert set(stream.tables["workloads"]) == {"red/w"}
        assert set(stream.tables["queues"]) == {"LocalQueue/red/q"}
    _, found = await page.get("/api/session?namespaces=red,blue", "t-red")
    assert found["access"] == {
        "nodes": False,
        "queues": False,
        "allNamespaces": False,
        "namespaces": ["red"],
    }
    assert (await page.get("/api/workloads/red/w?namespaces=red", "t-red"))[0] == 200
    assert (await page.get("/api/workloads/blue/w?namespaces=red,blue", "t-red"))[0] == 403
    assert (await page.get("/api/history/ClusterQueue/cq?namespaces=red", "t-red"))[0] == 404


@pytest.mark.requirement("OPS-05")
async def test_what_an_explanation_says_of_other_namespaces_is_hidden(
    shared: tuple[Running, Page],
) -> None:
    _, page = shared
    _, found = await page.get("/api/workloads/red/w?namespaces=red", "t-red")
    assert "blue" not in json.dumps(found)


@pytest.mark.requirement("OPS-05")
async def test_without_the_right_to_list_nodes_no_host_has_a_name(
    shared: tuple[Running, Page], cluster: Cluster
) -> None:
    _, page = shared
    lost = objects.node("pool", "b", "r", "lost")
    del lost["metadata"]["labels"][objects.RACK]
    lost["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    cluster.put(kinds.NODES, lost)
    async with page.stream("t-admin") as stream:
        await stream.until(lambda: stream.tables)
        await stream.until(lambda: stream.tables["topologies"]["gpu"]["outside"])
    async with page.stream("t-queues", "?namespaces=red") as stream:
        await stream.until(lambda: stream.tables)
        assert "hosts" not in stream.tables
        assert stream.tables["topologies"]["gpu"]["outside"] == []
        assert not stream.tables["topologies"]["gpu"]["hostRows"]
        assert stream.tables["domains"]
        assert "pool-" not in json.dumps(stream.tables)
        # It may list Workloads and pods of red, and no Events.
        assert stream.tables["workloads"] == {}


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize(
    ("token", "query", "status"),
    [
        ("", "", 401),
        ("nobody", "", 401),
        ("x" * 20_000, "", 401),
        ("\xff\xfe", "", 401),
        ("t-none", "", 200),
        ("t-red", "?namespaces=Red", 400),
        ("t-red", "?namespaces=" + ",".join(f"n{n}" for n in range(21)), 400),
    ],
)
async def test_only_a_user_of_the_cluster_gets_an_answer(
    shared: tuple[Running, Page], token: str, query: str, status: int
) -> None:
    _, page = shared
    if len(token) > 8190:
        token = token[:8000] + "é"
    found, body = await page.get("/api/session" + query, token)
    assert found == status
    if status != 200:
        assert "error" in body
    else:
        assert body["access"] == {
            "nodes": False,
            "queues": False,
            "allNamespaces": False,
            "namespaces": [],
        }


@pytest.mark.requirement("OPS-05")
async def test_a_stream_ends_when_the_rights_of_its_user_change(
    shared: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, page = shared
    monkeypatch.setattr(server_module, "RIGHTS_S", -1.0)
    monkeypatch.setattr(server_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr("rackgate_console.viewers.token_viewers.RIGHT_S", 0.0)
    monkeypatch.setitem(RIGHTS, "red", set(RIGHTS["red"]))
    async with page.stream("t-red", "?namespaces=red") as stream:
        await stream.until(lambda: stream.tables)
        RIGHTS["red"].clear()
        await stream.until(lambda: stream.ended)
        assert stream.ended == "your rights changed"


async def test_a_token_is_reviewed_once_for_many_requests(
    shared: tuple[Running, Page], cluster: Cluster
) -> None:
    _, page = shared
    await asyncio.gather(*(page.get("/api/session", "t-admin") for _ in range(20)))
    reviews = [seen for seen in cluster.requests if seen.path.endswith("tokenreviews")]
    assert len(reviews) == 1


@pytest.mark.requirement("OPS-05")
async def test_a_tenant_learns_neither_hosts_nor_what_a_single_other_uses(
    shared: tuple[Running, Page], cluster: Cluster
) -> None:
    """Of what waits, and of what is asked: red may list neither nodes nor ClusterQueues."""
    running, page = shared
    foreign = {
        "metadata": {"name": "theirs", "namespace": "blue", "uid": "pod-theirs"},
        "spec": {
            "nodeName": "pool-11-1",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}],
        },
        "status": {"phase": "Running"},
    }
    cluster.put(kinds.PODS, foreign)
    await until(lambda: running.console.watches.pods.store)
    question = {"manifest": MANIFEST % 9}
    async with page.http.post(
        page.address + "/api/what-if?namespaces=red",
        json=question,
        headers={"Authorization": "Bearer t-red"},
    ) as response:
        found = (await response.json())["explanation"]
    text = json.dumps(found)
    assert found["flavors"][0]["levels"], "the domains above are shown"
    for host in running.console.cache.nodes:
        assert host not in text
    assert not [line for line in found["quota"] if line["used"] or line["available"]]
    domains = [one for level in found["flavors"][0]["levels"] for one in level["best"]]
    assert not [holder for one in [*domains, *found["quota"]] for holder in one["holders"]]
    async with page.http.post(
        page.address + "/api/what-if", json=question, headers={"Authorization": "Bearer t-admin"}
    ) as response:
        whole = (await response.json())["explanation"]
    assert "pool-11-1" in json.dumps(whole)
    assert "blue/theirs" in json.dumps(whole)


async def test_a_review_that_fails_is_no_internal_error(
    shared: tuple[Running, Page], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, page = shared
    monkeypatch.setattr("rackgate_console.viewers.token_viewers.RIGHT_S", -1.0)
    query = "?namespaces=red"
    assert (await page.get("/api/session" + query, "t-red"))[0] == 200
    cluster.faults.append(Fault.status(500, path="/subjectaccessreviews", times=1000))
    for path in ("/api/session", "/api/workloads/red/w"):
        status, found = await page.get(path + query, "t-red")
        assert status == 503
        assert "did not review" in found["error"]


async def test_tokens_that_are_not_valid_push_out_no_valid_one(
    shared: tuple[Running, Page], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackgate_console.viewers.token_viewers.MAX_TOKENS", 4)
    viewers = TokenViewers(shared[0].client)
    await viewers.viewer(Credentials(authorization="Bearer t-admin"))
    for number in range(8):
        with pytest.raises(RejectedError) as raised:
            await viewers.viewer(Credentials(authorization=f"Bearer nobody-{number}"))
        assert raised.value.status == 401
    before = len(cluster.requests)
    await viewers.viewer(Credentials(authorization="Bearer t-admin"))
    assert len(cluster.requests) == before


@pytest.mark.requirement("OPS-05")
async def test_requests_that_do_not_arrive_hold_no_place(
    shared: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, page = shared
    head = (
        "POST /api/what-if HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n"
        "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    )
    # Of two users, so that the places of one do not limit them.
    tokens = ("t-none", "t-queues")
    held = []
    for token in tokens:
        await page.get("/api/session", token)
        for _ in range(server_module.MAX_ANSWERS_OF_USER):
            held.append(await asyncio.open_connection("127.0.0.1", running.server.port))
            held[-1][1].write(head.format(token).encode())
            await held[-1][1].drain()
    assert len(held) >= server_module.MAX_ANSWERS
    for token in tokens:
        await page.get("/api/session", token)
    assert (await page.get("/api/workloads/red/w?namespaces=red", "t-red"))[0] == 200
    monkeypatch.setattr(server_module, "BODY_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(head.format("t-none").encode())
    assert b" 408 " in await reader.readuntil(b"\r\n")
    for _, one in [*held, (reader, writer)]:
        one.close()


async def answers_from(address: str, port: int) -> bool:
    """Whether a request from a source address is answered."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        with contextlib.closing(writer):
            writer.write(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            return b" 200 " in await reader.readuntil(b"\r\n")
    return False


async def test_all_pages_connect_again_at_the_same_time(
    local: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 600.0)
    running, _ = local
    await running.server.stop()
    console, viewers = running.console, running.viewers
    running.server = ConsoleServer(console, viewers, Details(console, running.client), "test")
    await running.server.start("127.0.0.1", 0, max_connections=400)
    assert isinstance(viewers, LocalViewers)
    port = viewers.port = running.server.port
    async with contextlib.AsyncExitStack() as stack:
        pages = []
        for _ in range(400):  # none says anything before all are there
            pages.append(await asyncio.open_connection("127.0.0.1", port))
            stack.callback(pages[-1][1].close)
        for _, writer in pages:
            writer.write(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        for reader, _ in pages:
            assert b" 200 " in await reader.readuntil(b"\r\n")


@pytest.mark.requirement("OPS-05")
async def test_connections_of_one_address_leave_room_for_others(
    shared: tuple[Running, Page],
) -> None:
    running, _ = shared
    port = running.server.port
    part = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS + 8):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(part)
        listening = running.server._connections
        assert listening is not None
        await until(lambda: len(listening.accepted) == CONNECTIONS)
        async with asyncio.timeout(60):
            while not await answers_from("127.0.0.2", port):
                pass
        assert len(listening.accepted) <= CONNECTIONS


async def test_a_request_whose_headers_do_not_come_is_closed(
    local: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WRITE_S", 0.2)
    monkeypatch.setattr(server_module, "SWEEP_S", 0.05)
    running, _ = local
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    with contextlib.closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(60):
            assert await reader.read() == b""


def get(path: str, port: int, method: str = "GET", body: str = "", length: int = 0) -> bytes:
    """A request as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n{body}".encode()


async def test_a_request_during_the_stop_is_answered_and_ends_its_connection(
    local: tuple[Running, Page],
) -> None:
    running, _ = local
    port = running.server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(get("/none", port))
        assert b" 404 " in await reader.readuntil(b"}")
        stopping = asyncio.ensure_future(running.server.stop())
        await asyncio.sleep(0)
        writer.write(get("/none", port))
        answer = await reader.read()
        assert b" 404 " in answer
        assert b"Connection: close" in answer
        loop = asyncio.get_running_loop()
        since = loop.time()
        await stopping
        assert loop.time() - since < connections.SHUTDOWN_TIMEOUT_S / 2


async def test_an_answer_before_the_body_was_read_ends_the_connection(
    local: tuple[Running, Page],
) -> None:
    running, _ = local
    port = running.server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(get("/api/what-if", port, "POST", "{", length=400_000))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 401 " in answer
        assert b"Connection: close" in answer


async def test_the_answer_to_head_has_no_body(
    local: tuple[Running, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PART_BYTES", 16)
    running, _ = local
    port = running.server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(get("/", port, "HEAD"))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(get("/", port))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_stream_is_not_closed_while_it_waits_for_news(
    local: tuple[Running, Page], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SWEEP_S", 0.01)
    monkeypatch.setattr(server_module, "WRITE_S", 0.3)
    running, page = local
    await sign_in(running, page)
    async with page.stream() as stream:
        await stream.until(lambda: stream.tables)
        listening = running.server._connections
        assert listening is not None
        (streaming,) = [one for one in listening.open.values() if one.state is State.ANSWERING]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while loop.time() - streaming.since < 1.0:
                await asyncio.sleep(0.01)
        cluster.put(kinds.WORKLOADS, workload("red", "later"))
        await stream.until(lambda: "red/later" in stream.tables["workloads"])


@pytest.mark.parametrize("text", ["é" * 60_000, "x" * 200_000])
async def test_aliases_of_a_long_text_are_rejected_before_they_expand(
    local: tuple[Running, Page], text: str
) -> None:
    running, page = local
    await sign_in(running, page)
    status, found = await ask(page, manifest=f"a: &a {text}\nb: [{'*a,' * 500}*a]\n")
    assert status == 422
    assert "aliases expand to more than" in found["error"]


async def test_without_the_api_server_no_one_gets_in(
    shared: tuple[Running, Page], cluster: Cluster
) -> None:
    running, page = shared
    await cluster.stop()
    status, found = await page.get("/api/session", "t-admin")
    assert status == 503
    assert "did not review" in found["error"]
    assert running.console.feed.everything(Access()) is not None
