"""Conversions between v1beta1 and v1beta2 over TLS, and the CA bundle in the kinds."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import io
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api.conversion import OLD_API_VERSION, convert
from rackgate.api.names import API_VERSION
from rackgate.api.resources import CRDS
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.tls import server_context
from rackgate.kube.client import Client
from rackgate_webhook.admission.conversion_review import (
    MAX_CONVERSION_BYTES,
    MAX_EXPANSION_BYTES,
    MAX_OBJECTS,
)
from rackgate_webhook.serving.bodies import SMALL_BYTES
from rackgate_webhook.serving.server import CONNECTIONS, MAX_LARGE_CONVERSIONS, WebhookServer
from rackgate_webhook.serving.unsent import MAX_UNSENT_BYTES
from rackgate_webhook.settings import CONVERTED_CRDS, CertificateSettings
from tests.support.apiserver import FakeApiServer
from tests.support.waiting import until
from tests.wire.webhook_server import calling, connections, count, request, serving, url
from tests.wire.webhook_world import JSON, REVIEW, register, registered, secret

Object = dict[str, Any]

pytestmark = pytest.mark.requirement("OPS-04")


def cluster_queue(**spec: Any) -> Object:
    head = {"apiVersion": OLD_API_VERSION, "kind": "ClusterQueue", "metadata": {"name": "cq"}}
    return {**head, "spec": spec}


def review(objects: list[Any], wanted: str = API_VERSION, **request: Any) -> Object:
    asked = {"uid": "u-1", "desiredAPIVersion": wanted, "objects": objects, **request}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": asked}


async def post(server: WebhookServer, sent: Object | bytes) -> tuple[int, str]:
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    async with (
        calling() as session,
        session.post(url(server, "/convert"), data=io.BytesIO(body), headers=JSON) as answer,
    ):
        return answer.status, await answer.text()


async def converted(server: WebhookServer, sent: Object) -> Object:
    status, text = await post(server, sent)
    assert status == 200, text
    found: Object = json.loads(text)
    assert (found["apiVersion"], found["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    assert found["response"]["uid"] == "u-1"
    response: Object = found["response"]
    return response


async def test_objects_come_back_in_their_order_in_the_version_that_was_asked_for() -> None:
    objects = [
        cluster_queue(cohort="a"),
        {"apiVersion": API_VERSION, "kind": "Topology", "metadata": {}, "spec": {"levels": []}},
        cluster_queue(cohort="b"),
    ]
    async with serving() as server:
        response = await converted(server, review(objects))
        assert response["result"] == {"status": "Success"}
        found = response["convertedObjects"]
        assert [one["apiVersion"] for one in found] == [API_VERSION] * 3
        assert [one["spec"] for one in found] == [
            {"cohortName": "a"},
            {"levels": []},
            {"cohortName": "b"},
        ]
        assert [one["metadata"] for one in found] == [one["metadata"] for one in objects]
        back = await converted(server, review(found, OLD_API_VERSION))
        assert back["convertedObjects"][0] == objects[0]
        none = await converted(server, review([]))
        assert (none["result"], none["convertedObjects"]) == ({"status": "Success"}, [])


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([cluster_queue(), cluster_queue(admissionChecks=1)], "objects[1].spec.admissionChecks: 1"),
        ([{"apiVersion": "v1", "kind": "Pod"}], 'objects[0].apiVersion: "v1": must be kueue'),
        (["x"], "objects[0]: Expected `object`, got `str`"),
        ([cluster_queue() | {"kind": "Pod"}], 'objects[0].kind: "Pod": must be one of '),
    ],
)
async def test_one_that_cannot_be_converted_fails_the_review_by_its_field(
    objects: list[Any], message: str
) -> None:
    async with serving() as server:
        response = await converted(server, review(objects))
    assert response["convertedObjects"] == []
    assert response["result"]["status"] == "Failure"
    assert response["result"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"{", "not a ConversionReview: "),
        (b"\xff", "not a ConversionReview: "),
        (REVIEW, 'expected "apiextensions.k8s.io/v1" "ConversionReview", found "admission.'),
        (json.dumps(review([], uid="")).encode(), "request.uid is empty"),
        (json.dumps(review([], "v1")).encode(), 'request.desiredAPIVersion: "v1": must be kueue.'),
        (json.dumps(review([1] * (MAX_OBJECTS + 1))).encode(), "request.objects: 50001 objects: "),
    ],
)
async def test_what_is_no_review_is_answered_with_the_reason(sent: bytes, message: str) -> None:
    async with serving() as server:
        status, text = await post(server, sent)
        assert (status, text.startswith(message)) == (400, True), text
        assert (await converted(server, review([cluster_queue()])))["convertedObjects"]


async def test_a_body_has_a_limit() -> None:
    async with serving() as server:
        status, text = await post(server, b" " * (MAX_CONVERSION_BYTES + 1))
        assert status == 413
        assert str(MAX_CONVERSION_BYTES) in text


def nested(depth: int) -> str:
    return "[" * depth + '"x"' + "]" * depth


@pytest.mark.field_note("C2")
async def test_a_pod_template_nested_without_end_stays_as_it_is() -> None:
    """Any user can create one, and it must not fail the list of all Workloads."""
    podsets = f'"podSets": [{{"template": {{"x": {nested(5000)}}}}}]'
    spec = f'{{"priorityClassName": "low", {podsets}}}'
    meta = '"metadata": {"name": "w", "annotations": {"a": "deep-0-0"}}'
    deep = f'{{"apiVersion": "{OLD_API_VERSION}", "kind": "Workload", {meta}, "spec": {spec}}}'
    text = json.dumps(review(["HERE", cluster_queue(cohort="team")])).replace('"HERE"', deep)
    async with serving() as server:
        status, answer = await post(server, text.encode())
    assert status == 200
    assert '"status":"Success"' in answer
    assert nested(5000) in answer
    assert '"annotations":{"a":"deep-0-0"}' in answer
    assert '"cohortName":"team"' in answer
    assert '"priorityClassRef"' in answer


async def test_a_list_is_converted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that reviews of jobs do not wait for the list of all Workloads."""
    monkeypatch.setattr("rackgate_webhook.serving.server.CONVERSION_STEP_S", -1.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async with serving() as server:
        body = json.dumps(review([cluster_queue(cohort="team")] * 50)).encode()
        before = turns
        answer = await server._convert(body)
        assert turns - before >= 49
    task.cancel()
    assert len(json.loads(answer.body)["response"]["convertedObjects"]) == 50


def placed(rows: int) -> Object:
    """A Workload whose slices take 10 bytes for each row, and its domains 1,100."""
    roots = [f"{i:06d}" for i in range(rows)]
    columns = [{"universal": "x" * 63}] * 15
    part = {
        "domainCount": rows,
        "valuesPerLevel": [*columns, {"individual": {"prefix": "n" * 57, "roots": roots}}],
        "podCounts": {"universal": 1},
    }
    assignment = {"levels": [f"l{i}" for i in range(16)], "slices": [part]}
    podset = {"name": "main", "topologyAssignment": assignment}
    status = {"admission": {"clusterQueue": "cq", "podSetAssignments": [podset]}}
    head = {"apiVersion": API_VERSION, "kind": "Workload", "metadata": {"name": "w"}}
    return {**head, "spec": {}, "status": status}


def assignment_of(workload: Object) -> Object:
    found: Object = workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
    return found


@pytest.mark.field_note("W5")
async def test_an_answer_has_a_limit_and_later_objects_keep_their_slices() -> None:
    """Their domains would take 250 MiB."""
    body = json.dumps(review([placed(6_000)] * 40, OLD_API_VERSION)).encode()
    async with serving() as server:
        answer = await server._convert(body)
    assert len(answer.body) < len(body) + MAX_EXPANSION_BYTES
    found = json.loads(answer.body)["response"]["convertedObjects"]
    assert len(found) == 40
    fitting = MAX_EXPANSION_BYTES // (6_000 * 1_200)
    assert all(len(assignment_of(one)["domains"]) == 6_000 for one in found[:fitting])
    assert assignment_of(found[-1]) == assignment_of(placed(6_000))
    assert {one["apiVersion"] for one in found} == {OLD_API_VERSION}


async def test_a_small_review_with_a_large_answer_waits_for_others() -> None:
    body = json.dumps(review([placed(1_000)], OLD_API_VERSION)).encode()
    assert len(body) < SMALL_BYTES
    async with serving() as server:
        async with server._large_conversion:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server._convert(body), 0.5)
            small = await converted(server, review([placed(5), cluster_queue()], OLD_API_VERSION))
            assert len(assignment_of(small["convertedObjects"][0])["domains"]) == 5
        large = await converted(server, review([placed(1_000)], OLD_API_VERSION))
        assert len(assignment_of(large["convertedObjects"][0])["domains"]) == 1_000


@pytest.mark.parametrize("wanted", [API_VERSION, OLD_API_VERSION])
async def test_others_run_while_a_large_object_is_converted(wanted: str) -> None:
    """So that reviews of jobs do not wait for it."""
    workload = placed(5_000)
    if wanted == API_VERSION:
        workload = convert(workload, OLD_API_VERSION)
    body = json.dumps(review([workload], wanted)).encode()
    threads = set()

    def noted(*arguments: Any) -> Object:
        threads.add(threading.get_ident())
        return convert(*arguments)

    async with serving() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rackgate_webhook.admission.conversion_review.convert", noted)
            await server._convert(body)
            assert len(threads - {threading.get_ident()}) == 1
            assert gc.isenabled()
            # A small one is not worth a thread.
            threads.clear()
            await server._convert(json.dumps(review([placed(5)], OLD_API_VERSION)).encode())
            assert threads == {threading.get_ident()}


def asking(objects: list[Any]) -> bytes:
    """A request for objects of v1beta1, on a connection of its own."""
    body = json.dumps(review(objects, OLD_API_VERSION)).encode()
    return request(body).replace(b"POST /mutate", b"POST /convert")


# Its answer takes 13 MiB, more than the buffers of sockets.
LARGE = [placed(6_000)] * 2


async def ask_and_never_read(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # its class has it
    writer.write(asking(LARGE))
    await writer.drain()


def held_bytes(server: WebhookServer) -> int:
    """Bytes of answers that are not sent yet."""
    return server._unsent.size


@pytest.mark.field_note("W5")
async def test_a_caller_that_reads_slowly_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing but its connection is held while its answer is sent."""
    monkeypatch.setattr("rackgate.runtime.serving.connections.HEADERS_WITHIN_S", 600.0)
    async with serving() as server, connections(server, 1) as ((_, writer),):
        await ask_and_never_read(writer)
        await until(lambda: held_bytes(server))
        assert not server._large_conversion.locked()
        for _ in range(MAX_LARGE_CONVERSIONS):
            found = await converted(server, review([placed(2_000)], OLD_API_VERSION))
            assert len(assignment_of(found["convertedObjects"][0])["domains"]) == 2_000
            assert held_bytes(server) > 10 * 2**20


@pytest.mark.field_note("W5")
async def test_answers_that_no_one_reads_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest is dropped for the next, and the metric counts it."""
    monkeypatch.setattr("rackgate.runtime.serving.connections.HEADERS_WITHIN_S", 600.0)
    before, most = count(CONNECTIONS.closed, reason="slow"), 0
    async with serving() as server, connections(server, 5) as slow:
        for _, writer in slow:
            await ask_and_never_read(writer)

        def cut_off() -> int:
            nonlocal most
            most = max(most, held_bytes(server))
            return int(count(CONNECTIONS.closed, reason="slow") - before)

        await until(lambda: cut_off() == len(slow) - 2)
        assert most <= MAX_UNSENT_BYTES
        found = await converted(server, review([placed(6_000)], OLD_API_VERSION))
        assert len(assignment_of(found["convertedObjects"][0])["domains"]) == 6_000
        for _, writer in slow:
            writer.transport.abort()
        await until(lambda: held_bytes(server) == 0)


async def test_a_value_cannot_stand_for_a_deep_part() -> None:
    """It would be repeated in each domain."""
    workload = placed(3)
    for level in (0, 1):
        assignment_of(workload)["slices"][0]["valuesPerLevel"][level] = {
            "individual": {"prefix": "deep-0", "roots": ["-0", "-1", "-2"]}
        }
    workload["spec"] = {"podSets": [{"template": {"x": "HERE"}}]}
    text = json.dumps(review([workload], OLD_API_VERSION)).replace('"HERE"', nested(5000))
    async with serving() as server:
        status, answer = await post(server, text.encode())
    assert status == 200
    assert answer.count(nested(5000)) == 1
    assert '"deep-0-0"' in answer


# The CA bundle in the kinds.


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        register(running)
        yield running


def keeper(client: Client) -> IssuedCertificateManager:
    names = ["rackgate-webhook.rackgate-system.svc"]
    settings = CertificateSettings(dns_names=names, settle=0.1, check_interval=0.02)
    return IssuedCertificateManager(client, settings, server_context())


async def fine(_: bytes) -> str:
    return ""


SERVICE = {"name": "rackgate-webhook", "namespace": "rackgate-system", "path": "/convert"}
KUEUE = {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/convert"}


def put_crd(api: FakeApiServer, name: str, conversion: Object) -> None:
    api.put(CRDS, {"metadata": {"name": name}, "spec": {"group": "g", "conversion": conversion}})


def by_webhook(service: Object, **client: Any) -> Object:
    return {"strategy": "Webhook", "webhook": {"clientConfig": {"service": service, **client}}}


def conversion_of(api: FakeApiServer, name: str) -> Object:
    found = api.get(CRDS, name)
    assert found is not None
    conversion: Object = copy.deepcopy(found["spec"]["conversion"])
    return conversion


async def test_the_bundle_is_in_every_kind_that_the_webhook_converts(
    api: FakeApiServer, client: Client
) -> None:
    for name in CONVERTED_CRDS:
        put_crd(api, name, by_webhook(SERVICE))
    replica = keeper(client)
    await replica.reconcile(fine)
    bundle = base64.b64encode(secret(api)["ca.crt"]).decode()
    for name in CONVERTED_CRDS:
        assert conversion_of(api, name) == by_webhook(SERVICE, caBundle=bundle)
    assert replica.problem == ""
    # Somebody replaces the definition with that of the manifests.
    put_crd(api, CONVERTED_CRDS[1], by_webhook(SERVICE))
    await replica.reconcile(fine)
    assert conversion_of(api, CONVERTED_CRDS[1]) == by_webhook(SERVICE, caBundle=bundle)
    # And a Kueue was there before.
    put_crd(api, CONVERTED_CRDS[2], by_webhook(SERVICE, caBundle="AAAA"))
    await replica.reconcile(fine)
    assert conversion_of(api, CONVERTED_CRDS[2]) == by_webhook(SERVICE, caBundle=bundle)


@pytest.mark.parametrize(
    "conversion",
    [
        {"strategy": "None"},
        by_webhook(KUEUE, caBundle="AAAA"),
        {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://other/convert"}}},
    ],
)
async def test_a_kind_that_another_converts_is_left_alone(
    api: FakeApiServer, client: Client, conversion: Object
) -> None:
    """Those of an older installation, of Kueue, and of nobody; reviews of jobs do not wait."""
    for name in CONVERTED_CRDS:
        put_crd(api, name, conversion)
    replica = keeper(client)
    await replica.reconcile(fine)
    assert replica.problem == ""
    assert all(conversion_of(api, name) == conversion for name in CONVERTED_CRDS)
    assert set(registered(api)) == {secret(api)["ca.crt"]}


@pytest.mark.requirement("HOOK-13")
async def test_an_annotation_that_kueue_left_holds_up_no_reviews(
    api: FakeApiServer, client: Client
) -> None:
    """cert-manager goes on to write the authority of a Kueue that is gone."""
    put_crd(api, CONVERTED_CRDS[0], by_webhook(SERVICE, caBundle="AAAA"))
    crd = api.get(CRDS, CONVERTED_CRDS[0])
    assert crd is not None
    crd["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "kueue-system/cert"}
    api.put(CRDS, crd)
    replica = keeper(client)
    with capture_logs() as logs:
        await replica.reconcile(fine)
    assert replica.problem == ""
    assert conversion_of(api, CONVERTED_CRDS[0]) == by_webhook(SERVICE, caBundle="AAAA")
    (said,) = (entry for entry in logs if entry["event"] == "conversion_bundle_not_kept")
    assert "remove the annotation" in said["problem"]


@pytest.mark.requirement("HOOK-13")
async def test_a_new_pair_is_served_only_when_the_kinds_trust_it(
    api: FakeApiServer, client: Client
) -> None:
    """As with the webhook configurations: an API server that converts must not see it sooner."""
    for name in CONVERTED_CRDS:
        put_crd(api, name, by_webhook(SERVICE))
    await keeper(client).reconcile(fine)
    before = secret(api)
    names = ["rackgate-webhook.rackgate-system.svc", "another.localhost"]
    settings = CertificateSettings(dns_names=names, settle=0.1, check_interval=0.02)
    renewing = IssuedCertificateManager(client, settings, server_context())
    await renewing.reconcile(fine)
    published = secret(api)
    assert published["tls.crt"] == before["tls.crt"]
    assert published["ca.crt"] != before["ca.crt"]
    bundle = base64.b64encode(published["ca.crt"]).decode()
    assert all(
        conversion_of(api, name) == by_webhook(SERVICE, caBundle=bundle) for name in CONVERTED_CRDS
    )
    # A definition whose bundle is old again, while the time of settling runs.
    old = base64.b64encode(before["ca.crt"]).decode()
    put_crd(api, CONVERTED_CRDS[0], by_webhook(SERVICE, caBundle=old))
    for _ in range(400):
        await renewing.reconcile(fine)
        if secret(api)["tls.crt"] != before["tls.crt"]:
            break
        await asyncio.sleep(0.02)
    assert secret(api)["tls.crt"] != before["tls.crt"]
    bundle = base64.b64encode(secret(api)["ca.crt"]).decode()
    assert all(
        conversion_of(api, name) == by_webhook(SERVICE, caBundle=bundle) for name in CONVERTED_CRDS
    )
