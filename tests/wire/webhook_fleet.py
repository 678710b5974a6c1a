"""Replicas of the webhook that step in turns around one Secret; callers must trust each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rackgate.api.resources import SECRETS
from rackgate.certificates.certificates import read_bundle
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.rotation import TlsSecret, read_secret
from rackgate.certificates.tls import server_context, trust_failure
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, TransportError
from rackgate_webhook.settings import CertificateSettings
from tests.support.apiserver import FakeApiServer
from tests.wire.webhook_world import NAMESPACE, SECRET, registered, secret

NEW: Final = "new.name"
SETTLE_S: Final = 0.1


async def fine(_: bytes) -> str:
    return ""


class DiedError(Exception):
    """A process that ended at a write: whether it was done nobody knows."""


class Mortal(IssuedCertificateManager):
    """Goes no further once a write has lost its connection."""

    async def _write(self, stored: Any, secret: TlsSecret) -> None:
        try:
            await super()._write(stored, secret)
        except TransportError as error:
            raise DiedError from error


class Fleet:
    """Replicas that step in turns; one that cannot finish a step is dead, and another comes.

    After every step of any of them it is checked that callers, who trust what the registrations
    carry, accept what each living replica serves.
    """

    def __init__(self, api: FakeApiServer, client: Client, *names: str) -> None:
        self.api, self.client, self.names = api, client, names
        self.deaths = 0
        self.alive = [self.replica(), self.replica()]

    def replica(self) -> IssuedCertificateManager:
        settings = CertificateSettings(
            dns_names=list(self.names), settle=SETTLE_S, check_interval=0.02
        )
        return Mortal(self.client, settings, server_context())

    async def round(self) -> None:
        for index, replica in enumerate(self.alive):
            try:
                await replica.reconcile(fine)
            except (KubeError, DiedError):
                self.deaths += 1
                self.alive[index] = self.replica()
            self.check()

    def check(self) -> None:
        bundles = {bundle for bundle in registered(self.api) if bundle}
        for replica in self.alive:
            last = replica._last_secret
            if last is not None:
                certificate, key = last.data["tls.crt"], last.data["tls.key"]
                assert certificate == replica._served
                for bundle in bundles:
                    assert trust_failure(certificate, key, "localhost", bundle) == ""

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.round()
                await asyncio.sleep(0.01)

    def rest(self) -> bool:
        """Whether nothing is left to do, by all of them."""
        found = self.api.get(SECRETS, SECRET, NAMESPACE)
        return (
            found is not None
            and read_secret(found["data"], None).pairs.upcoming is None
            and all(replica.problem == "" for replica in self.alive)
            and len({replica._served for replica in self.alive}) == 1
            and set(registered(self.api)) == {secret(self.api)["ca.crt"]}
        )


async def rotated_by(api: FakeApiServer, client: Client) -> Fleet:
    """A fleet at rest, and then one that wants another name."""
    before = Fleet(api, client, "localhost")
    await before.until(before.rest)
    return Fleet(api, client, "localhost", NEW)


def has_new_name(api: FakeApiServer) -> bool:
    return NEW in str([found.extensions for found in read_bundle(secret(api)["tls.crt"]).values()])
