"""Serves a certificate that cert-manager or an administrator issues and rotates.

The Secret is only read. Its owner may replace certificate and authorities at any time, also both in
one write. Callers reject a pair whose authority they do not trust yet. So a replica keeps serving
its current pair, while that is valid, until the webhook configurations trust the new one.

The functions up to `may_switch` decide and are pure; `ProvidedCertificateManager` acts.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from rackgate.certificates.certificates import (
    UNREADABLE_ERRORS,
    read_bundle,
    read_chain,
    write_bundle,
)
from rackgate.certificates.manager import CertificateManager, SelfCheck
from rackgate.certificates.registrations import (
    CHANGED_MEANWHILE,
    Configuration,
    NamedConfiguration,
    bundles_of,
)
from rackgate.certificates.rotation import BUNDLE, CERTIFICATE, KEY, read_secret
from rackgate.certificates.settings import BaseCertificateSettings
from rackgate.certificates.tls import trust_failure
from rackgate.jobframework.templates import section
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.runtime.namespaces import NamespaceSelector

MAX_OTHERS: Final = 4
# Authorities that were removed from the Secret stay in the webhook configurations for so many
# settling times: other replicas may still serve the old pair.
RETIRE_AFTER: Final = 10

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProvidedPair:
    """What a Secret of type kubernetes.io/tls offers.

    Attributes:
        problem: why it cannot be served; empty when it can.
        certificate: PEM of the serving certificate and of its intermediates.
        key: PEM.
        authorities: PEM of `ca.crt`; empty without one.
        not_after: when the serving certificate expires, aware; None when it cannot be read.
    """

    problem: str
    certificate: bytes = b""
    key: bytes = b""
    authorities: bytes = b""
    not_after: datetime | None = None


def read_provided_pair(
    data: Mapping[str, bytes], names: Iterable[str], now: datetime
) -> ProvidedPair:
    """Check the fields of a Secret.

    Args:
        data: decoded.
        names: DNS names and IP addresses that the certificate must have.
        now: aware.
    """
    certificate, key = data.get(CERTIFICATE, b""), data.get(KEY, b"")
    for name, value in ((CERTIFICATE, certificate), (KEY, key)):
        if not value:
            return ProvidedPair(f"it has no {name}")
    try:
        leaf = read_chain(certificate)[0]
    except ValueError:
        return ProvidedPair(f"its {CERTIFICATE} is no certificate in PEM")
    problem = _key_mismatch(leaf, key) or _time_problem(leaf, now) or _name_problem(leaf, names)
    return ProvidedPair(problem, certificate, key, data.get(BUNDLE, b""), leaf.not_valid_after_utc)


def _key_mismatch(leaf: x509.Certificate, key: bytes) -> str:
    try:
        private = serialization.load_pem_private_key(key, password=None)
        fits = private.public_key() == leaf.public_key()
    except UNREADABLE_ERRORS:
        return f"its {KEY} is no private key in PEM, or needs a password"
    return "" if fits else f"its {KEY} does not fit its {CERTIFICATE}"


def _time_problem(leaf: x509.Certificate, now: datetime) -> str:
    if leaf.not_valid_after_utc <= now:
        return f"its certificate expired at {_rfc3339(leaf.not_valid_after_utc)}"
    if leaf.not_valid_before_utc > now:
        return f"its certificate is not valid before {_rfc3339(leaf.not_valid_before_utc)}"
    return ""


def _rfc3339(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _name_problem(leaf: x509.Certificate, names: Iterable[str]) -> str:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        has = {str(name.value) for name in found}
    except UNREADABLE_ERRORS:
        has = set()
    missing = sorted(name for name in names if name not in has and _wildcard_of(name) not in has)
    if not missing:
        return ""
    return f"its certificate is for {', '.join(sorted(has)) or 'no name'}, not {missing[0]}"


def _wildcard_of(name: str) -> str:
    return "*." + name.partition(".")[2]


def merge_bundle(
    provided: ProvidedPair, carried: Iterable[bytes], now: datetime, *, keep: bool
) -> bytes:
    """The bundle that a webhook configuration should contain while a pair is provided.

    Args:
        provided: has authorities.
        carried: the bundles that its webhooks contain now.
        now: aware.
        keep: at most 4 other authorities that it contains stay while they are valid.
    """
    offered = read_bundle(provided.authorities)
    others = {
        digest: found
        for bundle in (carried if keep else ())
        for digest, found in read_bundle(bundle).items()
        if digest not in offered and found.not_valid_after_utc > now
    }
    return write_bundle([*offered.values(), *list(others.values())[:MAX_OTHERS]])


@dataclass(frozen=True, slots=True)
class TrustState:
    """Which pairs callers trust.

    Attributes:
        offered: every webhook of every webhook configuration trusts the offered pair.
        served: any of them trusts the pair that is served.
        any: a webhook configuration exists.
        since: for how long this replica has seen `offered` as true.
    """

    offered: bool
    served: bool
    any: bool
    since: timedelta = timedelta()


def may_switch(
    trust: TrustState, served_until: datetime | None, *, now: datetime, settle: timedelta
) -> bool:
    """Whether to replace the served pair with the provided one, which is usable.

    Args:
        trust: which pairs callers trust.
        served_until: expiry of the served pair; None when there is none.
        now: aware.
        settle: time after which API servers have seen a changed webhook configuration.
    """
    if served_until is None or served_until <= now or not trust.any:
        return True
    if trust.offered:
        return trust.since >= settle
    # The old authority was removed from the bundle: a longer wait has no benefit.
    return not trust.served


class ProvidedCertificateManager(CertificateManager):
    """One replica's certificate, if another tool issues it."""

    def __init__(
        self,
        client: Client,
        settings: BaseCertificateSettings,
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
        """Serve the pair of the Secret as soon as callers trust it, and check.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
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
        # A problem may end without a change of the Secret: a certificate that is not valid yet.
        if (
            self._logged_problem
            or self._trusted_since[0] != self._served
            or self._keeps_old_authorities
        ):
            return None
        return self._served_until

    @property
    def _keeps_old_authorities(self) -> bool:
        """Whether authorities that were removed from the Secret are still in the bundle."""
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
        """Serve the provided pair if `may_switch` allows it."""
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
        """Why callers cannot call this replica, given the bundles of the configurations."""
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
            # There are no callers: check the certificate against the authorities of the Secret.
            self.bundle = provided.authorities or self._served
            failure = await check(self.bundle)
            return f"TLS call to itself: {failure}" if failure else ""
        return ""

    def _log_problem(self, problem: str) -> None:
        """Log a problem of the Secret once."""
        if problem and problem != self._logged_problem:
            log.warning("provided_certificate_rejected", problem=problem)
        self._logged_problem = problem


def _bundles_in(named: NamedConfiguration) -> list[bytes]:
    """Bundles of the webhooks; empty if the configuration changed between read and write."""
    changing = named.configuration is CHANGED_MEANWHILE
    return [b""] if changing else bundles_of(named.configuration)


def _expiry_of(provided: ProvidedPair) -> datetime:
    return provided.not_after if provided.not_after is not None else clock.now()
