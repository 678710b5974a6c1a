"""A Secret that somebody else owns: served when it can be, never written, changed at any time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api.resources import CRDS, MUTATING_CONFIGS, SECRETS, VALIDATING_CONFIGS
from rackgate.certificates.certificates import IssuedPair, issue, read_bundle
from rackgate.certificates.provided import ProvidedCertificateManager
from rackgate.certificates.tls import server_context
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate_webhook.serving.self_call import call_self
from rackgate_webhook.serving.server import WebhookServer
from rackgate_webhook.settings import CONVERTED_CRDS, CertificateSettings
from tests.support.apiserver import FakeApiServer
from tests.support.odd_certificates import (
    cut_off,
    extension_twice,
    other_version,
    with_authority_between,
)
from tests.support.waiting import until
from tests.wire.webhook_world import (
    MUTATING,
    NAMESPACE,
    SECRET,
    VALIDATING,
    Callers,
    Replicas,
    register,
    registered,
)

pytestmark = pytest.mark.requirement("HOOK-13")

HOUR_S = 3600.0


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


def made(
    *names: str, age: timedelta = timedelta(), life: timedelta = timedelta(days=1)
) -> IssuedPair:
    """A certificate of an authority of its own, that was issued `age` ago."""
    return issue(
        names or ("localhost",), validity=life, now=clock.now() - age, owner="rackgate-webhook"
    )


def offer(api: FakeApiServer, pair: IssuedPair, **fields: bytes | None) -> None:
    """Write the Secret as cert-manager does; `fields` override, None leaves one out."""
    given: dict[str, bytes | None] = {
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
        "ca.crt": pair.authority,
        **fields,
    }
    data = {key: base64.b64encode(value).decode() for key, value in given.items() if value}
    metadata = {"name": SECRET, "namespace": NAMESPACE}
    api.put(SECRETS, {"metadata": metadata, "type": "kubernetes.io/tls", "data": data})


def inject(api: FakeApiServer, bundle: bytes) -> None:
    """What cert-manager's cainjector does."""
    register(api, caBundle=base64.b64encode(bundle).decode())


def keeper(client: Client, *, writes: bool, settle: float = 0.0) -> ProvidedCertificateManager:
    settings = CertificateSettings(
        source="provided",
        write_bundle=writes,
        dns_names=["localhost"],
        settle=settle,
        check_interval=0.02,
    )
    return ProvidedCertificateManager(client, settings, server_context())


async def fine(_: bytes) -> str:
    return ""


async def step(replica: ProvidedCertificateManager) -> str:
    """Look once, then serve; the problem as the server's own call finds it."""
    await replica.reconcile(fine)
    if not replica.loaded.is_set():
        return replica.problem
    server = WebhookServer("127.0.0.1", 0, replica.context)
    await server.start()
    try:
        await replica.reconcile(lambda bundle: call_self(server.private_port, "localhost", bundle))
    finally:
        await server.stop()
    return replica.problem


def written(api: FakeApiServer) -> set[str]:
    """Kinds that were written through the API."""
    return {
        request.path.split("/")[-2]
        for request in api.requests
        if request.method not in ("GET", "HEAD")
    }


@pytest.mark.requirement("HOOK-13", "OPS-05")
@pytest.mark.parametrize("with_authority", [True, False])
async def test_with_an_injected_bundle_nothing_at_all_is_written(
    api: FakeApiServer, client: Client, with_authority: bool
) -> None:
    pair = made()
    offer(api, pair, **({} if with_authority else {"ca.crt": None}))
    inject(api, pair.authority)
    assert await step(keeper(client, writes=False)) == ""
    assert written(api) == set()


async def test_an_authority_in_the_secret_is_written_into_the_registrations_only(
    api: FakeApiServer, client: Client
) -> None:
    pair = made()
    offer(api, pair)
    register(api)
    assert await step(keeper(client, writes=True)) == ""
    assert set(registered(api)) == {pair.authority}
    assert written(api) == {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


async def test_a_chain_with_an_authority_between_is_served_whole(
    api: FakeApiServer, client: Client
) -> None:
    chain = with_authority_between()
    offer(api, chain)
    register(api)
    assert await step(keeper(client, writes=True)) == ""
    assert set(registered(api)) == {chain.authority}


SOUND = made()
BROKEN: dict[str, tuple[IssuedPair, dict[str, Any], str]] = {
    "another version": (
        SOUND,
        {"tls.crt": other_version(SOUND.certificate)},
        "its tls.crt is no certificate in PEM",
    ),
    "an extension twice": (
        SOUND,
        {"tls.crt": extension_twice(SOUND.certificate)},
        "its certificate is for no name, not localhost",
    ),
    "cut off": (
        SOUND,
        {"tls.crt": cut_off(SOUND.certificate)},
        "its tls.crt is no certificate in PEM",
    ),
    "no certificate": (made(), {"tls.crt": None}, "it has no tls.crt"),
    "no key": (made(), {"tls.key": None}, "it has no tls.key"),
    "no PEM": (made(), {"tls.crt": b"x"}, "its tls.crt is no certificate in PEM"),
    "no key in PEM": (made(), {"tls.key": b"x"}, "its tls.key is no private key in PEM"),
    "other key": (made(), {"tls.key": made().key}, "its tls.key does not fit its tls.crt"),
    "expired": (
        made(age=timedelta(hours=2), life=timedelta(hours=1)),
        {},
        "its certificate expired at 20",
    ),
    "not yet valid": (
        made(age=timedelta(hours=-2)),
        {},
        "its certificate is not valid before 20",
    ),
    "other names": (
        made("other.name", "another.name"),
        {},
        "its certificate is for another.name, other.name, not localhost",
    ),
    "no authority": (made(), {"ca.crt": None}, "it has no ca.crt to write"),
    "nonsense as authority": (made(), {"ca.crt": b"x"}, "it has no ca.crt to write"),
}


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize("case", BROKEN)
async def test_what_cannot_be_served_is_reported_and_leaves_everything_as_it_is(
    api: FakeApiServer, client: Client, case: str
) -> None:
    pair, fields, words = BROKEN[case]
    good = made()
    offer(api, pair, **fields)
    inject(api, good.authority)
    replica = keeper(client, writes=True)
    problem = await step(replica)
    assert problem.startswith(f"no certificate yet: Secret {NAMESPACE}/{SECRET}: {words}")
    assert written(api) == set()
    offer(api, good)
    assert await step(replica) == ""
    # And once it serves, a bad change is not taken.
    offer(api, pair, **fields)
    assert await step(replica) == ""
    assert set(registered(api)) == {good.authority}


@pytest.mark.requirement("OPS-08")
async def test_a_missing_secret_is_waited_for_and_a_deleted_one_survived(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    replica = keeper(client, writes=True)
    assert (await step(replica)).endswith(f"Secret {NAMESPACE}/{SECRET}: it does not exist")
    offer(api, made())
    assert await step(replica) == ""
    api.remove(SECRETS, SECRET, NAMESPACE)
    assert await step(replica) == ""


@pytest.mark.requirement("OPS-08")
async def test_a_served_certificate_that_expires_makes_unready(
    api: FakeApiServer, client: Client
) -> None:
    register(api)
    offer(api, made())
    replica = keeper(client, writes=True)
    assert await step(replica) == ""
    try:
        clock.shift(2 * 86400)
        await replica.reconcile(fine)
    finally:
        clock.shift(0)
    assert replica.problem.startswith("the served certificate has expired; Secret")


@pytest.mark.field_note("W4")
async def test_readiness_is_judged_by_what_the_registrations_trust(
    api: FakeApiServer, client: Client
) -> None:
    pair = made()
    offer(api, pair)
    register(api)
    replica = keeper(client, writes=False)
    assert await step(replica) == f"no CA bundle yet in {MUTATING}"
    inject(api, made().authority)
    assert "certificate verify failed" in await step(replica)
    inject(api, pair.authority)
    assert await step(replica) == ""


@pytest.mark.field_note("W5")
async def test_a_new_authority_is_trusted_beside_the_old_one_before_it_is_served(
    api: FakeApiServer, client: Client
) -> None:
    old, new = made(), made()
    register(api)
    offer(api, old)
    replica = keeper(client, writes=True, settle=0.2)
    await replica.reconcile(fine)
    offer(api, new)
    await replica.reconcile(fine)
    assert set(read_bundle(registered(api)[0])) == {*read_bundle(old.authority + new.authority)}
    assert await replica_serves(replica, old.authority) == ""
    async with asyncio.timeout(60):
        while await replica_serves(replica, new.authority):
            await replica.reconcile(fine)
        # Later on the old one is forgotten.
        while set(registered(api)) != {new.authority}:
            await replica.reconcile(fine)
            await asyncio.sleep(0.05)


async def replica_serves(replica: ProvidedCertificateManager, bundle: bytes) -> str:
    server = WebhookServer("127.0.0.1", 0, replica.context)
    await server.start()
    try:
        return await call_self(server.private_port, "localhost", bundle)
    finally:
        await server.stop()


async def test_a_certificate_that_is_not_valid_yet_is_taken_when_its_time_comes(
    api: FakeApiServer, client: Client
) -> None:
    """The issuer's clock is ahead of ours; nobody writes anything again."""
    register(api)
    offer(api, made())
    replica, changed = keeper(client, writes=True), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(replica.run(fine, changed))
        await until(lambda: replica.loaded.is_set() and replica._next_due_at() is not None)
        early = made()
        try:
            clock.shift(-HOUR_S)  # TLS goes by the machine's time, by which it is valid
            offer(api, early)
            changed.set()
            await until(lambda: "not valid before" in replica._logged_problem)
            assert replica._served != early.certificate
        finally:
            clock.shift(0)
        await until(lambda: replica._served == early.certificate)
        running.cancel()


@pytest.mark.field_note("W5")
async def test_with_an_injected_bundle_the_switch_follows_the_injector(
    api: FakeApiServer, client: Client
) -> None:
    old, new = made(), made()
    offer(api, old)
    inject(api, old.authority)
    replica = keeper(client, writes=False)
    await replica.reconcile(fine)
    offer(api, new)
    await replica.reconcile(fine)
    assert await replica_serves(replica, old.authority) == ""
    inject(api, new.authority)
    await replica.reconcile(fine)
    assert await replica_serves(replica, new.authority) == ""


async def test_an_old_certificate_that_no_one_trusts_any_more_is_not_held_on_to(
    api: FakeApiServer, client: Client
) -> None:
    old, new = made(), made()
    offer(api, old)
    inject(api, old.authority)
    replica = keeper(client, writes=False)
    await replica.reconcile(fine)
    offer(api, new)
    inject(api, made().authority)
    await replica.reconcile(fine)
    assert await replica_serves(replica, new.authority) == ""


async def test_a_bundle_that_cert_manager_was_asked_for_is_left_to_it(
    api: FakeApiServer, client: Client
) -> None:
    offer(api, made())
    register(api)
    for resource, name in ((MUTATING_CONFIGS, MUTATING), (VALIDATING_CONFIGS, VALIDATING)):
        found = api.get(resource, name)
        assert found is not None
        annotations = {"cert-manager.io/inject-ca-from": "rackgate-system/x"}
        api.put(resource, {**found, "metadata": {**found["metadata"], "annotations": annotations}})
    assert await step(keeper(client, writes=True)) == f"no CA bundle yet in {MUTATING}"
    assert written(api) == set()


@pytest.mark.requirement("HOOK-14")
@pytest.mark.field_note("W5")
async def test_an_authority_is_replaced_under_traffic_without_a_failed_call(
    tmp_path: Path,
) -> None:
    async with FakeApiServer() as api:
        offer(api, made())
        register(api)
        world = Replicas(api, tmp_path)
        try:
            started = [await world.start(source="provided") for _ in range(2)]
            for replica in started:
                await replica.ready()
            callers = Callers(world, kept=False)
            async with callers.calling(2):
                new = made()
                offer(api, new)
                for replica in started:
                    await replica.rotated(2)
                await callers.more(20)
            assert callers.failures == []
            assert set(read_bundle(new.authority)) <= set(read_bundle(registered(api)[0]))
        finally:
            await world.kill()


def convertible(api: FakeApiServer, name: str, **client_config: Any) -> None:
    """A CRD whose versions the webhook converts."""
    webhook = {"clientConfig": {"url": "https://localhost/convert", **client_config}}
    conversion = {"strategy": "Webhook", "webhook": webhook}
    api.put(CRDS, {"metadata": {"name": name}, "spec": {"conversion": conversion}})


@pytest.mark.requirement("HOOK-13", "OPS-04")
async def test_a_kind_that_nobody_keeps_delays_no_certificate(
    api: FakeApiServer, client: Client
) -> None:
    """The administrator applied deploy/cluster without the annotation of cert-manager."""
    old, new = made(), made()
    offer(api, old)
    inject(api, old.authority)
    convertible(api, CONVERTED_CRDS[0], caBundle="AAAA")
    replica = keeper(client, writes=False)
    with capture_logs() as logs:
        assert await step(replica) == ""
        assert await step(replica) == ""
    said = [entry for entry in logs if entry["event"] == "conversion_bundle_not_kept"]
    assert [entry["crd"] for entry in said] == [CONVERTED_CRDS[0]]
    assert "deploy/overlays/cert-manager/cluster" in said[0]["problem"]
    offer(api, new)
    inject(api, new.authority)
    assert await step(replica) == ""
    assert written(api) == set()


@pytest.mark.requirement("HOOK-13", "OPS-04")
async def test_a_kind_that_cert_manager_keeps_is_waited_for(
    api: FakeApiServer, client: Client
) -> None:
    pair = made()
    offer(api, pair)
    inject(api, pair.authority)
    convertible(api, CONVERTED_CRDS[0])
    crd = api.get(CRDS, CONVERTED_CRDS[0])
    assert crd is not None
    crd["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "x/y"}
    api.put(CRDS, crd)
    replica = keeper(client, writes=False)
    assert await step(replica) == f"no CA bundle yet in {CONVERTED_CRDS[0]}"
    bundle = base64.b64encode(pair.authority).decode()
    crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = bundle
    api.put(CRDS, crd)
    assert await step(replica) == ""
