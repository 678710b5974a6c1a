"""Issues and rotates the serving certificate: Secret and registrations, on every replica.

There is no leader: each replica reads the Secret, decides the same next step (`rotation.py`) and
writes it with the resourceVersion that it read. A replica whose write conflicts reads again and
finds the step done. If the Secret or a registration cannot be written, the service keeps
serving its current certificate and retries with backoff.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.resources import SECRETS
from rackgate.api.timestamps import parse_rfc3339, rfc3339_micro
from rackgate.certificates.certificates import (
    IssuedPair,
    ServingPair,
    issue,
    own_authorities,
    read_bundle,
)
from rackgate.certificates.manager import CertificateManager, SelfCheck
from rackgate.certificates.registrations import (
    CHANGED_MEANWHILE,
    bundles_of,
    trusted_authorities,
)
from rackgate.certificates.rotation import (
    CERTIFICATE,
    KEY,
    PUBLISHED_ANNOTATION,
    RotationStep,
    TlsPairs,
    TlsSecret,
    due_at,
    names_to_issue,
    next_step,
    prune_expired,
    read_secret,
    secret_data,
    switch_pair,
    with_authorities,
    with_issued_pair,
    with_next_pair,
)
from rackgate.certificates.settings import BaseCertificateSettings
from rackgate.jobframework.templates import annotations_of, section
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, KubeError
from rackgate.runtime import clock
from rackgate.runtime.namespaces import NamespaceSelector

MAX_STEPS: Final = 5
# Less than the time by which certificates are backdated.
MAX_SKEW: Final = timedelta(minutes=2)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _StoredSecret:
    """The Secret as read; None without one. The object keeps fields of others for the write."""

    object: dict[str, Any] | None
    secret: TlsSecret


class IssuedCertificateManager(CertificateManager):
    """One replica's certificate, if the replicas issue it themselves."""

    def __init__(
        self,
        client: Client,
        settings: BaseCertificateSettings,
        context: ssl.SSLContext,
        selector: NamespaceSelector | None = None,
    ) -> None:
        super().__init__(client, settings, context, selector)
        self._renew_at: datetime | None = None
        # Authorities that all webhook configurations contain, and since when. The time is
        # monotonic, because wall clocks of replicas may differ.
        self._trusted_since: dict[str, float] = {}
        self._last_secret: TlsSecret | None = None
        self._trusted_bundle = b""
        self._clock_ahead = timedelta()

    async def reconcile(self, check: SelfCheck) -> None:
        """Take each step of the rotation that is due now.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
        """
        secret = (await self._advance_secret()).secret
        pairs, rules = secret.pairs, self._settings.rules
        if pairs.serving is None:
            # Every write conflicted, and the pair in the Secret is unusable: do not publish it.
            self._renew_at = None
            return
        certificate, key = secret.data[CERTIFICATE], secret.data[KEY]
        if certificate == self._served or not self._keeps_last_pair(pairs, pairs.serving):
            self._serve(certificate, key, pairs.serving.not_after)
            self._last_secret = secret
        # While the next pair is published and not yet served, a step may be due soon.
        quiet = pairs.upcoming is None and certificate == self._served
        self._renew_at = due_at(pairs.serving, rules) if quiet else None
        self.bundle = secret.bundle
        missing = await self._inject_bundle(self.bundle)
        failure = await check(self.bundle)
        if failure:
            self.problem = f"TLS call to itself: {failure}"
        elif missing:
            self.problem = f"CA bundle not yet in {', '.join(missing)}"
        else:
            self.problem = ""

    def _next_due_at(self) -> datetime | None:
        return self._renew_at

    def _keeps_last_pair(self, pairs: TlsPairs, in_use: ServingPair) -> bool:
        """Whether callers do not trust the pair in use yet, but trust the one served here."""
        own = None if self._last_secret is None else self._last_secret.pairs.serving
        return (
            own is not None
            and own.valid_at(self._now())
            and own.authority in pairs.authorities
            and in_use.authority not in self._propagated_authorities
        )

    @property
    def _propagated_authorities(self) -> frozenset[str]:
        """Authorities that all configurations have contained for at least the settling time."""
        patient = clock.monotonic() - self._settings.settle
        return frozenset(
            digest for digest, since in self._trusted_since.items() if since <= patient
        )

    async def _advance_secret(self) -> _StoredSecret:
        """The Secret, after all steps that are due."""
        for _ in range(MAX_STEPS):
            stored = await self._read()
            step = self._next_step(stored.secret)
            # Valid only as long as the clock is wrong: an administrator may correct it.
            known = (
                await self._compare_clocks()
                if step is not RotationStep.KEEP or self._clock_ahead
                else True
            )
            if not known and self._is_not_yet_valid(stored.secret):
                return stored
            if step is RotationStep.SWITCH:
                # The webhook configurations may have changed since they were read.
                await self._inject_bundle(stored.secret.bundle)
            if step is RotationStep.ISSUE:
                found = await self._configurations.apply_bundle(lambda _: None)
                carried = [one for there in found for one in bundles_of(there.configuration)]
                self._trusted_bundle = own_authorities(carried, self._settings.owner)
            desired = self._next_secret(stored.secret)
            if desired is None:
                return stored
            try:
                await self._write(stored, desired)
            except ConflictError:
                continue  # another replica wrote first: read again
            except KubeError as error:
                serving = stored.secret.pairs.serving
                if serving is None or not serving.valid_at(self._now()):
                    raise
                # The write is not urgent: the current pair is served and trusted until it succeeds.
                self._log_failure("write", str(error))
                return stored
            self._log_failure("write", "")
        return await self._read()

    def _is_not_yet_valid(self, secret: TlsSecret) -> bool:
        """Whether its pair is not valid yet by the local clock, which may be wrong."""
        serving = secret.pairs.serving
        return serving is not None and serving.not_before > self._now()

    def _next_step(self, secret: TlsSecret) -> RotationStep:
        rules = self._settings.rules
        return next_step(
            secret.pairs, rules, now=self._now(), propagated=self._propagated_authorities
        )

    def _next_secret(self, secret: TlsSecret) -> TlsSecret | None:
        """The next content of the Secret; None if it needs no change."""
        step, now = self._next_step(secret), self._now()
        if step is RotationStep.KEEP:
            return None
        log.info("certificate_step", step=str(step))
        if step is RotationStep.SWITCH:
            return switch_pair(secret)
        if step is RotationStep.PRUNE:
            return prune_expired(secret, now)
        if step is RotationStep.PUBLISH:
            return with_next_pair(secret, self._issue(secret.pairs), now)
        # The Secret was deleted or damaged. The pair that this replica serves is trusted:
        # it stays in use until the new pair is trusted, too.
        others = own_authorities((self._trusted_bundle, secret.bundle), self._settings.owner)
        last = self._last_secret
        serving = None if last is None else last.pairs.serving
        if last is not None and serving is not None and serving.valid_at(now):
            return with_next_pair(with_authorities(last, others), self._issue(last.pairs), now)
        return with_issued_pair(secret, self._issue(secret.pairs), now, others)

    def _issue(self, pairs: TlsPairs) -> IssuedPair:
        names = names_to_issue(pairs, self._settings.rules)
        validity = timedelta(seconds=self._settings.validity)
        return issue(names, validity=validity, now=self._now(), owner=self._settings.owner)

    def _now(self) -> datetime:
        """The time of the API server if it is known to differ, else the local time."""
        return clock.now() - self._clock_ahead

    async def _compare_clocks(self) -> bool:
        """Read the time of the API server: a wrong local clock must not expire a pair in use.

        It is the creationTimestamp in the response to a dry run that creates a Secret.

        Returns:
            Whether it is known.
        """
        asked = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"generateName": f"{self._settings.secret_name}-"},
        }
        body = msgspec.json.encode(asked)
        path = SECRETS.path(self._settings.namespace)
        try:
            answer = msgspec.json.decode(await self._client.create(path, body, {"dryRun": "All"}))
            created = parse_rfc3339(answer["metadata"]["creationTimestamp"])
        except (KubeError, KeyError, TypeError, ValueError) as error:
            log.debug("clock_not_compared", error=str(error))
            return False
        ahead = clock.now() - created
        before, self._clock_ahead = (
            self._clock_ahead,
            ahead if abs(ahead) > MAX_SKEW else timedelta(),
        )
        if abs(self._clock_ahead - before) > MAX_SKEW:
            log.warning("clock_differs", ahead_s=round(self._clock_ahead.total_seconds(), 3))
        return True

    async def _read(self) -> _StoredSecret:
        found = await self._read_object()
        if found is None:
            return _StoredSecret(None, TlsSecret())
        return _StoredSecret(
            found, read_secret(section(found, "data"), _published_at(annotations_of(found)))
        )

    async def _write(self, stored: _StoredSecret, secret: TlsSecret) -> None:
        found = stored.object or {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._settings.secret_name, "namespace": self._settings.namespace},
            "type": "Opaque",
        }
        metadata = dict(found["metadata"])
        annotations = dict(metadata.get("annotations") or {})
        annotations.pop(PUBLISHED_ANNOTATION, None)
        if secret.published_at is not None:
            annotations[PUBLISHED_ANNOTATION] = rfc3339_micro(secret.published_at)
        metadata["annotations"] = annotations
        body = msgspec.json.encode({**found, "metadata": metadata, "data": secret_data(secret)})
        if stored.object is None:
            await self._client.create(SECRETS.path(self._settings.namespace), body)
        else:
            await self._client.replace(self._path, body)

    async def _inject_bundle(self, bundle: bytes) -> list[str]:
        """Write the bundle into every webhook configuration that differs.

        Returns:
            Names of webhook configurations that exist and do not contain the whole bundle yet.
        """
        whole = frozenset(read_bundle(bundle))
        found = [
            (named.name, trusted_authorities(named.configuration))
            for named in await self._configurations.apply_bundle(lambda _: bundle)
            # A configuration without webhooks causes no calls.
            if named.configuration is CHANGED_MEANWHILE or bundles_of(named.configuration)
        ]
        carried = whole.intersection(*(there for _, there in found))
        now = clock.monotonic()
        self._trusted_since = {digest: self._trusted_since.get(digest, now) for digest in carried}
        return list(dict.fromkeys(name for name, there in found if not whole <= there))


def _published_at(annotations: Mapping[str, object]) -> datetime | None:
    text = annotations.get(PUBLISHED_ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):  # OverflowError near year 1 or 9999
        return None
