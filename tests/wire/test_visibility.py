"""The visibility API over TLS, as the front proxy of an API server calls it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeAlias

import aiohttp
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api.resources import API_SERVICES, CONFIG_MAPS, SECRETS
from rackgate.certificates.tls import client_context
from rackgate.runtime import clock
from rackgate.runtime.pki import CLIENT, CertifiedKey, issue_certificate, make_authority
from rackgate.runtime.serving import connections
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.tenant import HIDDEN
from rackgate_assigner.explain.workload import explain
from rackgate_assigner.visibility import answer_limit, authorizer, order_cache, pending_order
from rackgate_assigner.visibility.controller import VisibilityController
from rackgate_assigner.visibility.settings import VisibilitySettings
from tests.support.apiserver import FakeApiServer, Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.support.waiting import until
from tests.unit.assigner.builders import HOST, cache_with, local_queue, node, pod, podset, workload
from tests.wire.floods import HELLO, flood

SERVICE = "rackgate-visibility.rackgate-system.svc"
ROOT = "/apis/visibility.kueue.x-k8s.io"
CLUSTER_QUEUE = f"{ROOT}/v1beta2/clusterqueues/cq/pendingworkloads"
LOCAL_QUEUE = f"{ROOT}/v1beta2/namespaces/team/localqueues/lq/pendingworkloads"
VERSIONS = ("v1beta1", "v1beta2")
DAY = timedelta(days=1)
Answer: TypeAlias = tuple[int, dict[str, Any]]


class ApiServer(FakeApiServer):
    """Reviews access: `allowed` has what each user may get, as `resource/namespace/name`."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed: dict[str, set[str]] = {}
        self.reviews: list[Object] = []
        self.broken = False
        self.writes_secrets = True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.plural == "secrets" and seen.method == "POST" and not self.writes_secrets:
            raise RejectedRequest(403, "Forbidden", "not yours to write")
        if target.plural != "subjectaccessreviews":
            return super()._do(target, seen)
        if self.broken:
            raise RejectedRequest(403, "Forbidden", "not yours to ask")
        spec = json.loads(seen.body)["spec"]
        self.reviews.append(spec)
        asked = spec["resourceAttributes"]
        key = f"{asked['resource']}/{asked.get('namespace', '')}/{asked['name']}"
        return 201, {"status": {"allowed": key in self.allowed.get(spec["user"], ())}}


@dataclass
class Site:
    """One replica, and the API server that calls it."""

    api: ApiServer
    folder: Path
    cache: Cache
    workloads: dict[str, Workload] = field(default_factory=dict)
    synced: bool = True

    def __post_init__(self) -> None:
        self.authority = authority()
        self.settings = VisibilitySettings.model_validate(
            {
                "host": "127.0.0.1",
                "port": 0,
                "certificates": {"settle": 0, "checkInterval": 0.1},
            }
        )
        self.client = self.api.client()
        self.controller = VisibilityController(
            self.client,
            self.settings,
            self.cache,
            self.workloads,
            is_synced=lambda: self.synced,
            explain=lambda key: explain(self.cache, key, self.cache.features),
        )

    def register(self) -> None:
        """Write the APIServices, and who the front proxy is."""
        for version in VERSIONS:
            name = f"{version}.visibility.kueue.x-k8s.io"
            self.api.put(API_SERVICES, {"metadata": {"name": name}, "spec": {"service": {}}})
        self.trust(self.authority)

    def trust(self, *authorities: CertifiedKey, **changes: str) -> None:
        """Write the ConfigMap that names the front proxy."""
        data = {
            "requestheader-client-ca-file": "".join(
                one.certificate_pem.decode() for one in authorities
            ),
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            **changes,
        }
        name = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
        self.api.put(CONFIG_MAPS, {"metadata": name, "data": data})

    def submit(self, name: str, **options: Any) -> None:
        """One more pending Workload."""
        found = workload(name, **options)
        self.workloads[found.metadata.key] = found
        self.cache.set_workload(found)

    def bundles(self) -> list[bytes]:
        """The CA bundle of each APIService."""
        found = [
            self.api.get(API_SERVICES, f"{version}.visibility.kueue.x-k8s.io")
            for version in VERSIONS
        ]
        return [base64.b64decode((one or {})["spec"].get("caBundle", "")) for one in found]

    async def served(self) -> None:
        """Wait until it listens, and the API server trusts it."""
        await until(lambda: self.controller.server is not None and all(self.bundles()))

    def context(
        self, *, name: str = "front-proxy-client", signer: CertifiedKey | None = None
    ) -> ssl.SSLContext:
        """TLS of a caller that trusts the APIService, with a certificate of its own."""
        found = client_context(self.bundles()[0])
        made = issue_certificate(
            signer or self.authority, name, purposes=(CLIENT,), validity=DAY, now=clock.now()
        )
        pair = self.folder / "client.pem"
        pair.write_bytes(made.certificate_pem + made.key_pem)
        found.load_cert_chain(pair)
        return found

    async def get(
        self,
        path: str,
        user: str = "admin",
        *,
        context: ssl.SSLContext | None = None,
        method: str = "GET",
        **query: str,
    ) -> Answer:
        """Call it as the API server does in the name of a user."""
        server = self.controller.server
        assert server is not None
        url = f"https://127.0.0.1:{server.port}{path}"
        headers = {"X-Remote-User": user, "X-Remote-Group": "system:authenticated"}
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                method,
                url,
                params=query,
                headers={key: value for key, value in headers.items() if value},
                ssl=context or self.context(),
                server_hostname=SERVICE,
            ) as answer,
        ):
            return answer.status, await answer.json()


def authority() -> CertifiedKey:
    return make_authority("front-proxy-ca", validity=DAY, now=clock.now())


@asynccontextmanager
async def running(site: Site) -> AsyncIterator[None]:
    task = asyncio.create_task(site.controller.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await site.client.close()
        assert task.cancelled()


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with ApiServer() as api:
        cache = cache_with()
        cache.set_local_queue(local_queue("other"))
        cache.set_local_queue(local_queue("theirs", namespace="elsewhere"))
        made = Site(api, tmp_path, cache)
        made.register()
        api.allowed["admin"] = {"clusterqueues//cq", "clusterqueues//none", "localqueues/team/lq"}
        async with running(made):
            await made.served()
            yield made


async def test_a_queue_answers_with_positions(site: Site) -> None:
    site.submit("late", created="2026-08-01T13:00:00Z")
    site.submit("early", queue="other")
    site.submit("urgent", priority=7, created="2026-08-01T14:00:00Z")
    status, found = await site.get(CLUSTER_QUEUE)
    assert (status, found["kind"]) == (200, "PendingWorkloadsSummary")
    shown = [
        (
            item["metadata"]["name"],
            item["priority"],
            item["localQueueName"],
            item["positionInClusterQueue"],
            item["positionInLocalQueue"],
        )
        for item in found["items"]
    ]
    assert shown == [
        ("urgent", 7, "lq", 0, 0),
        ("early", 0, "other", 1, 0),
        ("late", 0, "lq", 2, 1),
    ]
    status, found = await site.get(LOCAL_QUEUE, limit="1", offset="1")
    assert [item["positionInClusterQueue"] for item in found["items"]] == [2]
    status, found = await site.get(CLUSTER_QUEUE, limit="x")
    assert (status, found["reason"]) == (400, "BadRequest")


@pytest.mark.requirement("OPS-05", "VAL-13")
async def test_a_pending_workload_is_explained_without_names_of_other_namespaces(
    site: Site,
) -> None:
    site.cache.set_node(node("a", cpu="4"))
    site.submit("waits", podsets=[podset(count=5, topology={"required": HOST})])
    site.cache.set_pod(pod("secret", "a", namespace="theirs", cpu="2"))
    path = f"{ROOT}/v1beta2/namespaces/team/workloads/waits/explanation"
    status, found = await site.get(path)
    assert (status, found["reason"]) == (403, "Forbidden")
    assert 'cannot get resource "workloads/explanation"' in found["message"]
    site.api.allowed["ann"] = {"workloads/team/waits", "workloads/team/none"}
    status, found = await site.get(path, "ann")
    assert (status, found["kind"], found["workload"]) == (200, "Explanation", "team/waits")
    assert found["flavors"], "with what is free in the domains"
    assert HIDDEN in json.dumps(found)
    assert "secret" not in json.dumps(found)
    assert "theirs" not in json.dumps(found)
    status, found = await site.get(path.replace("waits", "none"), "ann")
    assert (status, found["reason"]) == (404, "NotFound")


async def test_discovery_is_answered_without_a_review(site: Site) -> None:
    for version in VERSIONS:
        status, found = await site.get(f"{ROOT}/{version}", "system:kube-aggregator")
        assert (status, found["kind"]) == (200, "APIResourceList")
    assert site.api.reviews == []
    status, found = await site.get("/openapi/v2")
    assert (status, found["reason"]) == (404, "NotFound")


@pytest.mark.requirement("OPS-05")
async def test_who_has_no_right_learns_nothing(site: Site) -> None:
    site.submit("secret", queue="lq")
    site.api.allowed["ann"] = {"localqueues/elsewhere/theirs"}
    status, found = await site.get(
        f"{ROOT}/v1beta2/namespaces/elsewhere/localqueues/theirs/pendingworkloads", "ann"
    )
    assert (status, found["items"]) == (200, [])
    answers = []
    for path in (CLUSTER_QUEUE, LOCAL_QUEUE, CLUSTER_QUEUE.replace("/cq/", "/none/")):
        status, found = await site.get(path, "ann", limit="x")
        answers.append((status, found["reason"]))
        assert "secret" not in json.dumps(found)
        assert 'User "ann" cannot get resource' in found["message"]
    # The same for a queue that exists and one that does not.
    assert answers == [(403, "Forbidden")] * 3
    status, found = await site.get(CLUSTER_QUEUE.replace("/cq/", "/none/"))
    assert (status, found["reason"]) == (404, "NotFound")


@pytest.mark.requirement("OPS-05")
async def test_only_the_front_proxy_may_name_a_user(site: Site) -> None:
    bare = client_context(site.bundles()[0])
    status, found = await site.get(CLUSTER_QUEUE, context=site.context(name="somebody"))
    assert (status, found["reason"]) == (401, "Unauthorized")
    status, found = await site.get(CLUSTER_QUEUE, "")
    assert (status, found["reason"]) == (401, "Unauthorized")
    for context in (bare, site.context(signer=authority())):
        with pytest.raises(aiohttp.ClientError):
            await site.get(CLUSTER_QUEUE, context=context)
    assert site.api.reviews == []


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("addresses", [1, 30])
@pytest.mark.parametrize("sent", [b"", HELLO], ids=["silent", "handshakes"])
async def test_it_answers_beside_a_thousand_connections_of_others(
    site: Site, sent: bytes, addresses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No connection ends because its time is over: they are closed for the sake of others.
    monkeypatch.setattr(connections, "HANDSHAKE_S", 3600.0)
    server = site.controller.server
    assert server is not None
    context = site.context()
    async with flood(server.port, [f"127.0.0.{10 + at}" for at in range(addresses)], 1000, sent):
        for _ in range(3):
            async with asyncio.timeout(60):
                assert (await site.get(CLUSTER_QUEUE, context=context))[0] == 200


async def test_the_same_answer_is_computed_once_for_each_order(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_cache, "KEPT_S", 3600.0)
    site.submit("first")
    assert len((await site.get(CLUSTER_QUEUE))[1]["items"]) == 1
    # It would be left out of an answer that is computed now.
    del site.workloads["team/first"]
    assert len((await site.get(CLUSTER_QUEUE, offset="0", limit="9"))[1]["items"]) == 1
    status, found = await site.get(CLUSTER_QUEUE.replace("v1beta2", "v1beta1"))
    assert (status, found["items"]) == (200, [])


@pytest.mark.requirement("OPS-05")
async def test_users_who_ask_for_ever_other_parts_get_429_and_others_the_kept_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_cache, "KEPT_S", 3600.0)
    monkeypatch.setattr(answer_limit, "MAX_LOAD", 0.0)
    monkeypatch.setattr(answer_limit, "BURST_S", 0.01)
    for number in range(2000):
        site.submit(f"w{number:04}")
    assert (await site.get(CLUSTER_QUEUE))[0] == 200
    answers = [await site.get(CLUSTER_QUEUE, offset=str(at)) for at in range(1, 40)]
    assert answers[-1][0] == 429
    assert (answers[-1][1]["reason"], answers[-1][1]["code"]) == ("TooManyRequests", 429)
    assert (await site.get(CLUSTER_QUEUE))[0] == 200


@pytest.mark.requirement("OPS-05")
async def test_more_requests_at_the_same_time_get_429_with_retry_after(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_limit, "MAX_AT_ONCE", 0)
    server = site.controller.server
    assert server is not None
    async with (
        aiohttp.ClientSession(headers={"X-Remote-User": "admin"}) as http,
        http.get(
            f"https://127.0.0.1:{server.port}{CLUSTER_QUEUE}",
            ssl=site.context(),
            server_hostname=SERVICE,
        ) as answer,
    ):
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    monkeypatch.setattr(answer_limit, "MAX_AT_ONCE", 1)
    assert (await site.get(CLUSTER_QUEUE))[0] == 200


async def test_a_review_is_kept_for_a_short_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert (await site.get(CLUSTER_QUEUE))[0] == 200
    (review,) = site.api.reviews
    assert (review["user"], review["groups"]) == ("admin", ["system:authenticated"])
    # It is not the answer for another user, queue or version.
    assert (await site.get(CLUSTER_QUEUE, "ann"))[0] == 403
    assert (await site.get(CLUSTER_QUEUE.replace("v1beta2", "v1beta1")))[0] == 200
    assert len(site.api.reviews) == 3
    monkeypatch.setattr(authorizer, "KEPT_S", -1.0)
    site.api.allowed.clear()
    assert (await site.get(CLUSTER_QUEUE))[0] == 403


async def test_without_a_review_nothing_is_shown(site: Site) -> None:
    site.api.broken = True
    status, found = await site.get(CLUSTER_QUEUE)
    assert (status, found["reason"], "items" in found) == (503, "ServiceUnavailable", False)
    site.api.broken = False
    assert (await site.get(CLUSTER_QUEUE))[0] == 200


async def test_an_incomplete_cache_shows_no_positions(site: Site) -> None:
    site.synced = False
    assert (await site.get(CLUSTER_QUEUE))[0] == 503
    site.synced = True
    assert (await site.get(CLUSTER_QUEUE))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_it_is_read_only(site: Site, method: str) -> None:
    status, found = await site.get(CLUSTER_QUEUE, method=method)
    assert (status, found["reason"]) == (405, "MethodNotAllowed")


async def test_a_huge_queue_is_ordered_in_steps_and_once_for_many_requests(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_cache, "KEPT_S", 3600.0)
    built = 0
    order_of_cache = pending_order.order_of_cache

    def counted(*arguments: Any) -> Any:
        nonlocal built
        built += 1
        return order_of_cache(*arguments)

    monkeypatch.setattr(order_cache, "order_of_cache", counted)
    for number in range(5000):
        site.submit(f"w{number:04}")
    found = await asyncio.gather(
        *(site.get(CLUSTER_QUEUE, limit="2", offset=str(4000 + at)) for at in range(8))
    )
    names = [[item["metadata"]["name"] for item in body["items"]] for _, body in found]
    assert names == [[f"w{4000 + at}", f"w{4001 + at}"] for at in range(8)]
    assert built == 1
    status, body = await site.get(CLUSTER_QUEUE, limit="100000")
    assert (status, len(body["items"])) == (200, 4000)


async def test_another_front_proxy_replaces_the_first(site: Site) -> None:
    other = authority()
    site.trust(other)
    former = site.controller.server
    await until(lambda: site.controller.server not in (None, former))
    assert (await site.get(CLUSTER_QUEUE, context=site.context(signer=other)))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await site.get(CLUSTER_QUEUE)
    # A malformed ConfigMap changes nothing.
    site.trust(other, **{"requestheader-group-headers": "X-Remote-Group"})
    site.trust(other, **{"requestheader-client-ca-file": "no certificate"})
    assert (await site.get(CLUSTER_QUEUE, context=site.context(signer=other)))[0] == 200


async def test_without_a_front_proxy_nothing_is_served(tmp_path: Path) -> None:
    async with ApiServer() as api:
        site = Site(api, tmp_path, cache_with())
        async with running(site):
            await until(lambda: any("configmaps" in seen.path for seen in api.requests))
            assert api.get(SECRETS, "rackgate-visibility-tls", "rackgate-system") is None
            site.register()
            await site.served()
            api.remove(CONFIG_MAPS, "extension-apiserver-authentication", "kube-system")
            await until(lambda: site.controller.server is None)


async def test_without_the_right_to_write_its_secret_the_log_says_what_to_do(
    tmp_path: Path,
) -> None:
    async with ApiServer() as api:
        site = Site(api, tmp_path, cache_with())
        api.writes_secrets = False
        site.register()
        with capture_logs() as logs:
            async with running(site):
                await until(lambda: any(one["event"] == "certificate_step_failed" for one in logs))
        (error, *_) = [one["error"] for one in logs if one["event"] == "certificate_step_failed"]
        assert "not yours to write" in error
        assert "Secret rackgate-visibility-tls" in error
        assert "set certificates.source: provided" in error


async def test_a_port_in_use_does_not_end_the_assigner(tmp_path: Path) -> None:
    async with ApiServer() as api:
        site = Site(api, tmp_path, cache_with())
        blocker = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        site.settings.port = blocker.sockets[0].getsockname()[1]
        site.register()
        with capture_logs() as logs:
            async with running(site):
                await until(lambda: any(one["event"] == "visibility_not_served" for one in logs))
                assert site.controller.server is None
                blocker.close()
                await blocker.wait_closed()
                await site.served()
