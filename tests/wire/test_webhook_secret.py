"""The Secret is gone, fought over or dated wrongly: no caller loses the trust that it had."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from rackgate.api.resources import SECRETS, VALIDATING_CONFIGS
from rackgate.certificates.certificates import read_bundle
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.provided import ProvidedCertificateManager
from rackgate.certificates.tls import server_context, trust_failure
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate_webhook.settings import CertificateSettings
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler
from tests.support.apiserver_objects import status_body
from tests.support.odd_certificates import unreadable_name
from tests.support.waiting import until
from tests.wire.webhook_fleet import NEW, Fleet, fine, has_new_name, rotated_by
from tests.wire.webhook_world import NAMESPACE, SECRET, VALIDATING, register, registered, secret

pytestmark = [pytest.mark.requirement("HOOK-13"), pytest.mark.field_note("W5")]

DAY_S = 86400.0


def foreign_authority() -> bytes:
    """One that no replica has made."""
    key, now = ec.generate_private_key(ec.SECP256R1()), clock.now()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foreign")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize("odd", [False, True])
async def test_a_replica_that_comes_as_the_secret_goes_leaves_the_others_trusted(
    api: FakeApiServer, client: Client, odd: bool
) -> None:
    """It has never seen the pair that they serve: the registrations know its authority."""
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    fleet.alive[0], old = fleet.replica(), fleet.alive[1]
    before, trusted = old._served, read_bundle(registered(api)[0])
    foreign = unreadable_name(foreign_authority()) if odd else foreign_authority()
    both = base64.b64encode(registered(api)[0] + foreign).decode()
    api.remove(SECRETS, SECRET, NAMESPACE)
    register(api, caBundle=both)
    await fleet.alive[0].reconcile(fine)
    fleet.check()
    assert secret(api)["tls.crt"] != before
    await old.reconcile(fine)
    assert old._served == before, "callers have to hear of the new authority first"
    await fleet.until(fleet.rest)
    assert set(read_bundle(secret(api)["ca.crt"])) > set(trusted)
    assert not set(read_bundle(secret(api)["ca.crt"])) & set(read_bundle(foreign))


async def test_a_secret_that_others_fight_over_takes_no_bundle_away(
    api: FakeApiServer, client: Client
) -> None:
    """What is read when the attempts are used up may be a Secret that is gone."""
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    before = registered(api)
    api.remove(SECRETS, SECRET, NAMESPACE)
    api.faults.append(Fault.status(409, "AlreadyExists", method="POST", times=100))
    await fleet.alive[0].reconcile(fine)
    assert registered(api) == before
    fleet.check()
    api.faults.clear()
    await fleet.until(fleet.rest)


async def test_a_replica_that_missed_a_rotation_leaves_the_others_trusted(
    api: FakeApiServer, client: Client
) -> None:
    """The pair that it puts back into a Secret that is gone is not the one that they serve."""
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    late = fleet.alive[0]
    fleet = Fleet(api, client, "localhost", NEW)
    await fleet.until(lambda: has_new_name(api) and fleet.rest())
    api.remove(SECRETS, SECRET, NAMESPACE)
    fleet.alive.append(late)
    await late.reconcile(fine)
    fleet.check()
    assert len(read_bundle(secret(api)["ca.crt"])) == 3


async def test_an_authority_that_cannot_be_loaded_goes_with_the_pair_that_it_does_not_fit(
    api: FakeApiServer, client: Client
) -> None:
    """A replica that starts has nothing but the Secret."""
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    odd = base64.b64encode(unreadable_name(secret(api)["ca.crt"])).decode()
    api.put(SECRETS, {**found, "data": {**found["data"], "ca.crt": odd}})
    await fleet.replica().reconcile(fine)
    assert mistrusted(secret(api)) == ""


REFUSALS = {
    "forbidden": Fault.status(403, "Forbidden", "no right", method="PUT"),
    "invalid": Fault.status(422, "Invalid", "quota", method="PUT"),
    "broken": Fault.status(500, "InternalError", "store", method="PUT"),
    "lost": Fault.cut(method="PUT"),
}


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_secret_that_cannot_be_written_is_served_while_its_pair_is_valid(
    api: FakeApiServer, client: Client, refusal: str
) -> None:
    """A replica that starts becomes ready, and a registration made anew gets the bundle."""
    fleet = await rotated_by(api, client)
    fault = replace(REFUSALS[refusal], times=10**9)
    api.faults.append(fault)
    replica = IssuedCertificateManager(client, fleet.alive[0]._settings, server_context())
    await replica.reconcile(fine)
    assert replica._served == secret(api)["tls.crt"]
    assert replica.problem == ""
    register(api)
    await replica.reconcile(fine)
    assert set(registered(api)) == {secret(api)["ca.crt"]}
    api.faults.clear()
    await fleet.until(lambda: has_new_name(api) and fleet.rest())


ODD_SECRETS: dict[str, bytes] = {
    "a list": b"[]",
    "nothing": b"null",
    "no metadata": b'{"metadata": null, "data": {}}',
    "annotations": b'{"metadata": {"annotations": ["x"]}, "data": {}}',
    "a moment": b'{"metadata": {"annotations": {"rackgate.dev/published-at": '
    b'"0001-01-01T00:00:00+23:59"}}}',
    "data": b'{"metadata": {}, "data": ["tls.crt"]}',
    "a field": b'{"metadata": {}, "data": {"tls.crt": null, "tls.key": 5, "ca.crt": {}}}',
}


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("source", ["issued", "provided"])
@pytest.mark.parametrize("odd", ODD_SECRETS)
async def test_a_secret_of_odd_shape_ends_no_replica(
    api: FakeApiServer, client: Client, odd: str, source: Literal["issued", "provided"]
) -> None:
    settings = CertificateSettings(source=source, dns_names=["localhost"], check_interval=0.02)
    kind = IssuedCertificateManager if source == "issued" else ProvidedCertificateManager
    replica = kind(client, settings, server_context())
    fault = Fault.body(ODD_SECRETS[odd], method="GET", path="/secrets/", times=10**9)
    api.faults.append(fault)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(replica.run(fine))
        await until(lambda: fault.times < 10**9 - 3)
        running.cancel()


async def test_a_registration_without_webhooks_holds_nothing_up(
    api: FakeApiServer, client: Client
) -> None:
    """Nobody calls through it."""
    found = api.get(VALIDATING_CONFIGS, VALIDATING)
    assert found is not None
    api.put(VALIDATING_CONFIGS, {**found, "webhooks": []})
    fleet = await rotated_by(api, client)
    await fleet.until(lambda: has_new_name(api) and fleet.rest())


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("known", [True, False])
async def test_a_pair_that_is_not_valid_yet_for_the_api_server_is_replaced(
    api: FakeApiServer, client: Client, known: bool
) -> None:
    """A replica with a wrong clock issued it, which could not ask for the time."""
    fleet = Fleet(api, client, "localhost")
    api.faults.append(Fault(without_time, times=10**9))
    try:
        clock.shift(DAY_S)
        await fleet.alive[0].reconcile(fine)
    finally:
        clock.shift(0)
    before = secret(api)["tls.crt"]
    if known:
        api.faults.clear()
        await fleet.until(lambda: secret(api)["tls.crt"] != before and fleet.rest())
        assert mistrusted(secret(api)) == ""
        return
    for _ in range(3):
        await fleet.alive[0].reconcile(fine)
    assert secret(api)["tls.crt"] == before, "its own clock may be the wrong one"


async def without_time(request: web.Request, handle: Handler) -> web.StreamResponse:
    """Refuse what is only asked for its creation time."""
    if "dryRun" in request.query:
        return web.Response(status=403, body=status_body(403, "Forbidden", ""))
    return await handle()


def mistrusted(data: dict[str, bytes]) -> str:
    return trust_failure(data["tls.crt"], data["tls.key"], "localhost", data["ca.crt"])
