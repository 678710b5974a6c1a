"""A rotation that is disturbed at any moment comes to its end, and no caller is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding

from rackgate.api.resources import MUTATING_CONFIGS, SECRETS, VALIDATING_CONFIGS
from rackgate.certificates.certificates import read_bundle
from rackgate.kube.client import Client
from rackgate.runtime import clock
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler
from tests.support.odd_certificates import ODD
from tests.wire.webhook_fleet import SETTLE_S, Fleet, fine, has_new_name, rotated_by
from tests.wire.webhook_world import (
    MUTATING,
    NAMESPACE,
    SECRET,
    VALIDATING,
    register,
    secret,
)

pytestmark = [pytest.mark.requirement("HOOK-13"), pytest.mark.field_note("W5")]


def cut(number: int, *, applied: bool) -> Fault:
    """Lose the connection at the write of this number, before or after it is done."""
    seen = -1

    async def answer(request: web.Request, handle: Handler) -> web.StreamResponse:
        nonlocal seen
        if request.method == "GET" or "dryRun" in request.query:
            return await handle()
        seen += 1
        if seen != number:
            return await handle()
        return await Fault.cut(applied=applied).answer(request, handle)

    return Fault(answer, times=10**9)


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("number", range(7))
async def test_a_replica_that_dies_at_any_write_leaves_it_to_another(
    api: FakeApiServer, client: Client, number: int, applied: bool
) -> None:
    """Issue, two patches; publish, two patches; switch: seven writes in all."""
    fault = cut(number, applied=applied)
    api.faults.append(fault)
    fleet = await rotated_by(api, client)
    await fleet.until(lambda: has_new_name(api) and fleet.rest())


def _odd(field: str, make: Callable[[bytes], bytes], data: dict[str, Any]) -> dict[str, Any]:
    found = base64.b64decode(data[field])
    first = next(iter(read_bundle(found).values())).public_bytes(Encoding.PEM)
    return {**data, field: base64.b64encode(make(first)).decode()}


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "deleted": lambda data: None,
    "emptied": lambda data: {},
    "certificate": lambda data: {**data, "tls.crt": "eA=="},
    "key": lambda data: {**data, "tls.key": "eA=="},
    "authorities": lambda data: {**data, "ca.crt": "eA=="},
    "next": lambda data: {**data, "next.crt": data["tls.crt"]},
    "mixed": lambda data: {**data, "tls.crt": data.get("next.crt", "eA==")},
    **{
        f"{field}: {name}": partial(_odd, field, make)
        for field in ("tls.crt", "ca.crt")
        for name, make in ODD.items()
        if (field, name) != ("ca.crt", "an extension twice")  # an authority has no such extension
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("moment", ["at rest", "published", "switched"])
async def test_a_secret_damaged_by_hand_is_fixed_and_no_one_is_rejected(
    api: FakeApiServer, client: Client, damage: str, moment: str
) -> None:
    fleet = await rotated_by(api, client)
    if moment == "at rest":
        fleet = Fleet(api, client, "localhost")
        await fleet.until(fleet.rest)
    else:
        await fleet.until(lambda: moment == "switched" or "next.crt" in secret(api))
        await fleet.until(lambda: moment != "switched" or has_new_name(api))
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    data = DAMAGES[damage](found["data"])
    if data is None:
        api.remove(SECRETS, SECRET, NAMESPACE)
    else:
        api.put(SECRETS, {**found, "data": data})
    await fleet.round()
    await fleet.until(fleet.rest)


async def test_a_deleted_secret_is_a_rotation_that_was_asked_for(
    api: FakeApiServer, client: Client
) -> None:
    """The old pair stays in use until the new one is trusted; then it is gone."""
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    before = secret(api)
    api.remove(SECRETS, SECRET, NAMESPACE)
    await fleet.round()
    assert secret(api)["tls.crt"] == before["tls.crt"]
    assert "next.crt" in secret(api)
    await fleet.until(fleet.rest)
    assert secret(api)["tls.key"] != before["tls.key"]


@pytest.mark.parametrize("resource", [MUTATING_CONFIGS, VALIDATING_CONFIGS])
async def test_a_registration_that_goes_and_comes_gets_its_bundle_again(
    api: FakeApiServer, client: Client, resource: Any
) -> None:
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    count = len(api._history)
    api.remove(resource, MUTATING if resource is MUTATING_CONFIGS else VALIDATING)
    await fleet.round()
    assert all(replica.problem == "" for replica in fleet.alive)
    assert len(api._history) == count + 1, "nothing but the deletion"
    register(api)
    await fleet.until(fleet.rest)


async def test_a_registration_that_comes_during_a_rotation_delays_the_switch(
    api: FakeApiServer,
    client: Client,
) -> None:
    fleet = await rotated_by(api, client)
    await fleet.until(lambda: "next.crt" in secret(api))
    register(api, caBundle=base64.b64encode(b"old").decode())  # as somebody's tool had it
    api.faults.append(Fault.status(409, "Conflict", method="PATCH", times=8))
    for _ in range(2):
        await asyncio.sleep(SETTLE_S)
        for replica in fleet.alive:
            await replica.reconcile(fine)
        assert "next.crt" in secret(api), "not used before all registrations trust it"
    await fleet.until(lambda: has_new_name(api) and fleet.rest())


YEARS = 3 * 365 * 86400.0


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("offset_s", [YEARS, -YEARS, 90.0, -90.0])
async def test_a_replica_with_a_wrong_clock_rotates_nothing_and_starts_no_fight(
    api: FakeApiServer, client: Client, offset_s: float
) -> None:
    fleet = Fleet(api, client, "localhost")
    await fleet.until(fleet.rest)
    before, count = secret(api), len(api._history)
    wrong, right = fleet.alive
    for _ in range(3):
        try:
            clock.shift(offset_s)
            await wrong.reconcile(fine)
        finally:
            clock.shift(0)
        await right.reconcile(fine)
    assert secret(api) == before
    assert len(api._history) == count


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("offset_s", [YEARS, -YEARS])
async def test_a_first_certificate_is_dated_by_the_api_server(
    api: FakeApiServer, client: Client, offset_s: float
) -> None:
    fleet = Fleet(api, client, "localhost")
    try:
        clock.shift(offset_s)
        await fleet.alive[0].reconcile(fine)
    finally:
        clock.shift(0)
    (found,) = read_bundle(secret(api)["tls.crt"]).values()
    assert found.not_valid_before_utc < clock.now() < found.not_valid_after_utc


@pytest.mark.requirement("OPS-12")
async def test_a_replica_whose_clock_is_set_right_goes_by_it_again(
    api: FakeApiServer, client: Client
) -> None:
    """What was found out about a clock holds as long as the clock is wrong, and no longer."""
    fleet = Fleet(api, client, "localhost")
    (only, *_) = fleet.alive
    try:
        clock.shift(YEARS)
        await only.reconcile(fine)
        clock.shift(0)
        before = secret(api)["tls.crt"]
        await only.reconcile(fine)
        assert abs(only._now() - clock.now()) < timedelta(minutes=1)
        assert secret(api)["tls.crt"] == before
    finally:
        clock.shift(0)


async def test_an_older_version_beside_a_newer_one_changes_nothing_that_it_does_not_know(
    api: FakeApiServer,
    client: Client,
) -> None:
    """Fields and annotations that a newer version may add survive a rotation by this one."""
    fleet = await rotated_by(api, client)
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    metadata = {**found["metadata"], "annotations": {"rackgate.dev/newer": "x"}}
    api.put(SECRETS, {**found, "metadata": metadata, "data": {**found["data"], "newer": "eA=="}})
    await fleet.until(lambda: has_new_name(api) and fleet.rest())
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    assert found["data"]["newer"] == "eA=="
    assert found["metadata"]["annotations"]["rackgate.dev/newer"] == "x"
