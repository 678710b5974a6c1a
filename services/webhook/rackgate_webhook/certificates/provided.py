"""Serves a certificate that somebody else issues and rotates: cert-manager, an administrator.

The Secret is only read. Whoever owns it may change it at any time, and without order: certificate
and authorities may both be new at once. What is served already goes on being served, as long as
it is valid, until the registrations trust what is new.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta
from typing import Final

import structlog

from rackgate.jobframework.templates import section
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate_webhook.certificates.ca_bundle import bundles_of
from rackgate_webhook.certificates.certificates import read_bundle
from rackgate_webhook.certificates.keeper import Check, Keeper
from rackgate_webhook.certificates.offer import Offer, Trust, bundle_with, may_switch, read_offer
from rackgate_webhook.certificates.secret import read_secret
from rackgate_webhook.certificates.trust import mistrust
from rackgate_webhook.certificates.webhook_configurations import (
    NOTHING,
    Configuration,
    Registration,
)
from rackgate_webhook.settings import CertificateSettings

# Authorities that left the Secret stay in the registrations so many settling times longer:
# other replicas may be later than this one.
RETIRE_AFTER: Final = 10

log = structlog.get_logger()


class ProvidedKeeper(Keeper):
    """One replica's certificate, when it is another's to issue."""

    def __init__(
        self,
        client: Client,
        settings: CertificateSettings,
        context: ssl.SSLContext,
        selector: NamespaceSelector | None = None,
    ) -> None:
        super().__init__(client, settings, context, selector)
        self._name = (*settings.dns_names, *settings.ip_addresses)[0]
        self._key = b""
        self._trusted: tuple[bytes, float] = (b"", 0.0)
        self._changed_at = clock.monotonic()
        self._said = ""

    async def step(self, check: Check) -> None:
        """Serve what the Secret offers as soon as callers trust it, and check.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        offer = await self._read()
        found = await self._registrations.bring(lambda there: self._wanted(offer, there))
        if not offer.problem:
            self._take(offer, found)
        self._say(offer.problem)
        self.problem = self._own_problem(offer) or await self._callers_problem(offer, found, check)

    def _due_at(self) -> datetime | None:
        # What is wrong with the Secret may be over in time: a certificate that is not valid yet.
        if self._said or self._trusted[0] != self._served or self._retiring:
            return None
        return self._served_until

    @property
    def _retiring(self) -> bool:
        """Whether authorities that left the Secret are still kept."""
        kept_s = RETIRE_AFTER * self._settings.settle
        return clock.monotonic() - self._changed_at < kept_s

    async def _read(self) -> Offer:
        found = await self._read_object()
        if found is None:
            return Offer("it does not exist")
        data = read_secret(section(found, "data"), None).data
        offer = read_offer(data, self._settings.rules.names, clock.now())
        if self._settings.write_bundle and not offer.problem and not read_bundle(offer.authorities):
            return Offer("it has no ca.crt to write into the configurations (writeBundle: true)")
        return offer

    def _wanted(self, offer: Offer, configuration: Configuration) -> bytes | None:
        if offer.problem or not self._settings.write_bundle:
            return None
        keep = self._retiring or offer.certificate != self._served
        return bundle_with(offer, bundles_of(configuration), clock.now(), keep=keep)

    def _take(self, offer: Offer, found: list[Registration]) -> None:
        """Serve the offered pair if it may be served by now."""
        if offer.certificate == self._served:
            self._trusted = (self._served, self._trusted[1])
            return
        bundles = [bundle for there in found for bundle in _bundles(there)]
        trusted = bool(bundles) and not any(
            mistrust(offer.certificate, offer.key, self._name, bundle) for bundle in bundles
        )
        if not trusted or self._trusted[0] != offer.certificate:
            self._trusted = (offer.certificate if trusted else b"", clock.monotonic())
        trust = Trust(
            offered=trusted,
            served=any(
                not mistrust(self._served, self._key, self._name, bundle) for bundle in bundles
            ),
            any=bool(found),
            since=timedelta(seconds=clock.monotonic() - self._trusted[1]),
        )
        settle = timedelta(seconds=self._settings.settle if self._settings.write_bundle else 0)
        if may_switch(trust, self._served_until, now=clock.now(), settle=settle):
            self._serve(offer.certificate, offer.key, _until(offer))
            self._key = offer.key
            self._changed_at = clock.monotonic()

    def _own_problem(self, offer: Offer) -> str:
        secret = f"Secret {self._settings.namespace}/{self._settings.secret_name}"
        if not self.loaded.is_set():
            return f"no certificate yet: {secret}: {offer.problem}"
        if self._served_until is not None and self._served_until <= clock.now():
            return f"the served certificate has expired; {secret}: {offer.problem}"
        return ""

    async def _callers_problem(self, offer: Offer, found: list[Registration], check: Check) -> str:
        """What stands between callers and this replica, by what the registrations carry."""
        checked: set[bytes] = set()
        for there in found:
            for bundle in _bundles(there):
                if not bundle:
                    return f"no CA bundle yet in {there.name}"
                if bundle not in checked:
                    checked.add(bundle)
                    self.bundle = bundle
                    if failure := await check(bundle):
                        return f"TLS call to itself, trusting {there.name}: {failure}"
        if not checked:
            # Nobody calls us; the certificate is checked against what came with it.
            self.bundle = offer.authorities or self._served
            failure = await check(self.bundle)
            return f"TLS call to itself: {failure}" if failure else ""
        return ""

    def _say(self, problem: str) -> None:
        """Log what is wrong with the Secret, once."""
        if problem and problem != self._said:
            log.warning("certificate_not_taken", problem=problem)
        self._said = problem


def _bundles(registration: Registration) -> list[bytes]:
    """Bundles of the webhooks; one that is empty when the registration changed under our hands."""
    changing = registration.configuration is NOTHING
    return [b""] if changing else bundles_of(registration.configuration)


def _until(offer: Offer) -> datetime:
    return offer.not_after if offer.not_after is not None else clock.now()
