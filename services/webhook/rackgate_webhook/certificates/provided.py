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
from rackgate_webhook.certificates.manager import CertificateManager, SelfCheck
from rackgate_webhook.certificates.provided_pair import (
    ProvidedPair,
    TrustState,
    may_switch,
    merge_bundle,
    read_provided_pair,
)
from rackgate_webhook.certificates.secret import read_secret
from rackgate_webhook.certificates.trust import trust_failure
from rackgate_webhook.certificates.webhook_configurations import (
    CHANGED_MEANWHILE,
    Configuration,
    NamedConfiguration,
)
from rackgate_webhook.settings import CertificateSettings

# Authorities that left the Secret stay in the registrations so many settling times longer:
# other replicas may be later than this one.
RETIRE_AFTER: Final = 10

log = structlog.get_logger()


class ProvidedCertificateManager(CertificateManager):
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
        self._trusted_since: tuple[bytes, float] = (b"", 0.0)
        self._changed_at = clock.monotonic()
        self._logged_problem = ""

    async def reconcile(self, check: SelfCheck) -> None:
        """Serve what the Secret offers as soon as callers trust it, and check.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        provided = await self._read()
        found = await self._configurations.apply_bundle(
            lambda there: self._desired_bundle(provided, there)
        )
        if not provided.problem:
            self._serve_if_trusted(provided, found)
        self._log_problem(provided.problem)
        self.problem = self._own_problem(provided) or await self._callers_problem(
            provided, found, check
        )

    def _next_due_at(self) -> datetime | None:
        # What is wrong with the Secret may be over in time: a certificate that is not valid yet.
        if (
            self._logged_problem
            or self._trusted_since[0] != self._served
            or self._keeps_old_authorities
        ):
            return None
        return self._served_until

    @property
    def _keeps_old_authorities(self) -> bool:
        """Whether authorities that left the Secret are still kept."""
        kept_s = RETIRE_AFTER * self._settings.settle
        return clock.monotonic() - self._changed_at < kept_s

    async def _read(self) -> ProvidedPair:
        found = await self._read_object()
        if found is None:
            return ProvidedPair("it does not exist")
        data = read_secret(section(found, "data"), None).data
        provided = read_provided_pair(data, self._settings.rules.names, clock.now())
        if (
            self._settings.write_bundle
            and not provided.problem
            and not read_bundle(provided.authorities)
        ):
            return ProvidedPair(
                "it has no ca.crt to write into the configurations (writeBundle: true)"
            )
        return provided

    def _desired_bundle(self, provided: ProvidedPair, configuration: Configuration) -> bytes | None:
        if provided.problem or not self._settings.write_bundle:
            return None
        keep = self._keeps_old_authorities or provided.certificate != self._served
        return merge_bundle(provided, bundles_of(configuration), clock.now(), keep=keep)

    def _serve_if_trusted(self, provided: ProvidedPair, found: list[NamedConfiguration]) -> None:
        """Serve the offered pair if it may be served by now."""
        if provided.certificate == self._served:
            self._trusted_since = (self._served, self._trusted_since[1])
            return
        bundles = [bundle for there in found for bundle in _bundles_in(there)]
        trusted = bool(bundles) and not any(
            trust_failure(provided.certificate, provided.key, self._name, bundle)
            for bundle in bundles
        )
        if not trusted or self._trusted_since[0] != provided.certificate:
            self._trusted_since = (provided.certificate if trusted else b"", clock.monotonic())
        trust = TrustState(
            offered=trusted,
            served=any(
                not trust_failure(self._served, self._key, self._name, bundle) for bundle in bundles
            ),
            any=bool(found),
            since=timedelta(seconds=clock.monotonic() - self._trusted_since[1]),
        )
        settle = timedelta(seconds=self._settings.settle if self._settings.write_bundle else 0)
        if may_switch(trust, self._served_until, now=clock.now(), settle=settle):
            self._serve(provided.certificate, provided.key, _expiry_of(provided))
            self._key = provided.key
            self._changed_at = clock.monotonic()

    def _own_problem(self, provided: ProvidedPair) -> str:
        secret = f"Secret {self._settings.namespace}/{self._settings.secret_name}"
        if not self.loaded.is_set():
            return f"no certificate yet: {secret}: {provided.problem}"
        if self._served_until is not None and self._served_until <= clock.now():
            return f"the served certificate has expired; {secret}: {provided.problem}"
        return ""

    async def _callers_problem(
        self, provided: ProvidedPair, found: list[NamedConfiguration], check: SelfCheck
    ) -> str:
        """What stands between callers and this replica, by what the registrations carry."""
        checked: set[bytes] = set()
        for there in found:
            for bundle in _bundles_in(there):
                if not bundle:
                    return f"no CA bundle yet in {there.name}"
                if bundle not in checked:
                    checked.add(bundle)
                    self.bundle = bundle
                    if failure := await check(bundle):
                        return f"TLS call to itself, trusting {there.name}: {failure}"
        if not checked:
            # Nobody calls us; the certificate is checked against what came with it.
            self.bundle = provided.authorities or self._served
            failure = await check(self.bundle)
            return f"TLS call to itself: {failure}" if failure else ""
        return ""

    def _log_problem(self, problem: str) -> None:
        """Log what is wrong with the Secret, once."""
        if problem and problem != self._logged_problem:
            log.warning("provided_certificate_rejected", problem=problem)
        self._logged_problem = problem


def _bundles_in(registration: NamedConfiguration) -> list[bytes]:
    """Bundles of the webhooks; one that is empty when the registration changed under our hands."""
    changing = registration.configuration is CHANGED_MEANWHILE
    return [b""] if changing else bundles_of(registration.configuration)


def _expiry_of(provided: ProvidedPair) -> datetime:
    return provided.not_after if provided.not_after is not None else clock.now()
