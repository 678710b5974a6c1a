"""Keeps certificate, Secret and registrations in step, on every replica alike.

Replicas do not elect anyone: each looks at the Secret, decides the same next step, and writes it
bound to the version it has read. Who loses reads again and finds the step done.
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
from rackgate.jobframework.templates import annotations_of, section
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, KubeError
from rackgate.runtime import clock
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate_webhook.certificates.ca_bundle import bundles_of, carried_authorities
from rackgate_webhook.certificates.certificates import Issued, issue, own_authorities, read_bundle
from rackgate_webhook.certificates.keeper import Check, Keeper
from rackgate_webhook.certificates.rotation_rules import (
    Holding,
    ServingFacts,
    Step,
    due_at,
    names_to_issue,
    next_step,
)
from rackgate_webhook.certificates.secret import (
    CERTIFICATE,
    KEY,
    PUBLISHED_ANNOTATION,
    TlsSecret,
    issued,
    pruned,
    published,
    read_secret,
    secret_data,
    switched,
    trusting,
)
from rackgate_webhook.certificates.webhook_configurations import NOTHING
from rackgate_webhook.settings import CertificateSettings

STEPS_AT_ONCE: Final = 5
# Certificates are backdated by more than this.
MAX_SKEW: Final = timedelta(minutes=2)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Stored:
    """The Secret as read: None without one. The object is kept to write back what is not ours."""

    object: dict[str, Any] | None
    secret: TlsSecret


class CertificateKeeper(Keeper):
    """One replica's part in the rotation of certificates that the replicas issue themselves."""

    def __init__(
        self,
        client: Client,
        settings: CertificateSettings,
        context: ssl.SSLContext,
        selector: NamespaceSelector | None = None,
    ) -> None:
        super().__init__(client, settings, context, selector)
        self._renew_at: datetime | None = None
        # Authorities that all registrations carry, since when by the monotonic clock: wall clocks
        # of replicas may differ.
        self._carried: dict[str, float] = {}
        self._last: TlsSecret | None = None
        self._trusted = b""
        self._ahead = timedelta()

    async def step(self, check: Check) -> None:
        """Bring Secret, served certificate and registrations as far as they may go now.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        secret = (await self._settled_secret()).secret
        holding, rules = secret.holding, self._settings.rules
        if holding.serving is None:
            # Others write it faster than this replica can: it must not spread what is broken.
            self._renew_at = None
            return
        certificate, key = secret.data[CERTIFICATE], secret.data[KEY]
        if certificate == self._served or not self._keeps_its_own(holding, holding.serving):
            self._serve(certificate, key, holding.serving.not_after)
            self._last = secret
        # While a pair waits to be used there is no quiet time.
        quiet = holding.upcoming is None and certificate == self._served
        self._renew_at = due_at(holding.serving, rules) if quiet else None
        self.bundle = secret.bundle
        missing = await self._inject(self.bundle)
        failure = await check(self.bundle)
        if failure:
            self.problem = f"TLS call to itself: {failure}"
        elif missing:
            self.problem = f"CA bundle not yet in {', '.join(missing)}"
        else:
            self.problem = ""

    def _due_at(self) -> datetime | None:
        return self._renew_at

    def _keeps_its_own(self, holding: Holding, in_use: ServingFacts) -> bool:
        """Whether callers have yet to hear of the pair in use, and trust the one served here."""
        own = None if self._last is None else self._last.holding.serving
        return (
            own is not None
            and own.valid_at(self._now())
            and own.authority in holding.authorities
            and in_use.authority not in self._settled
        )

    @property
    def _settled(self) -> frozenset[str]:
        """Authorities that all registrations have carried for so long that callers know them."""
        patient = clock.monotonic() - self._settings.settle
        return frozenset(mark for mark, since in self._carried.items() if since <= patient)

    async def _settled_secret(self) -> _Stored:
        """The Secret once nothing is left to do to it."""
        for _ in range(STEPS_AT_ONCE):
            stored = await self._read()
            step = self._next_step(stored.secret)
            # What was found out holds as long as the clock is wrong: somebody may set it right.
            known = await self._compare_clocks() if step is not Step.KEEP or self._ahead else True
            if not known and self._is_early(stored.secret):
                return stored
            if step is Step.SWITCH:
                # The registrations may have changed since they were looked at.
                await self._inject(stored.secret.bundle)
            if step is Step.ISSUE:
                found = await self._registrations.bring(lambda _: None)
                carried = [one for there in found for one in bundles_of(there.configuration)]
                self._trusted = own_authorities(carried)
            wanted = self._decide(stored.secret)
            if wanted is None:
                return stored
            try:
                await self._write(stored, wanted)
            except ConflictError:
                continue  # another replica was faster: look again
            except KubeError as error:
                serving = stored.secret.holding.serving
                if serving is None or not serving.valid_at(self._now()):
                    raise
                # There is time: what can be served is served, and trusted, until it may be written.
                self._complain("write", str(error))
                return stored
            self._complain("write", "")
        return await self._read()

    def _is_early(self, secret: TlsSecret) -> bool:
        """Whether its pair is not valid yet by this clock, which may be the wrong one."""
        serving = secret.holding.serving
        return serving is not None and serving.not_before > self._now()

    def _next_step(self, secret: TlsSecret) -> Step:
        rules = self._settings.rules
        return next_step(secret.holding, rules, now=self._now(), settled=self._settled)

    def _decide(self, secret: TlsSecret) -> TlsSecret | None:
        """What the Secret should hold next; None when it may stay."""
        step, now = self._next_step(secret), self._now()
        if step is Step.KEEP:
            return None
        log.info("certificate_step", step=str(step))
        if step is Step.SWITCH:
            return switched(secret)
        if step is Step.PRUNE:
            return pruned(secret, now)
        if step is Step.PUBLISH:
            return published(secret, self._issue(secret.holding), now)
        # Somebody deleted or damaged the Secret. The pair that this replica serves is trusted:
        # it stays in use until the new one is trusted, too.
        others = own_authorities((self._trusted, secret.bundle))
        last = self._last
        serving = None if last is None else last.holding.serving
        if last is not None and serving is not None and serving.valid_at(now):
            return published(trusting(last, others), self._issue(last.holding), now)
        return issued(secret, self._issue(secret.holding), now, others)

    def _issue(self, holding: Holding) -> Issued:
        names = names_to_issue(holding, self._settings.rules)
        return issue(names, validity=timedelta(seconds=self._settings.validity), now=self._now())

    def _now(self) -> datetime:
        """The API server's time, as far as it is known to differ from this machine's."""
        return clock.now() - self._ahead

    async def _compare_clocks(self) -> bool:
        """Ask for the API server's time: a wrong clock here must not expire what others use.

        It is the creation time of a Secret that is not created.

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
        before, self._ahead = self._ahead, ahead if abs(ahead) > MAX_SKEW else timedelta()
        if abs(self._ahead - before) > MAX_SKEW:
            log.warning("clock_differs", ahead_s=round(self._ahead.total_seconds(), 3))
        return True

    async def _read(self) -> _Stored:
        found = await self._read_object()
        if found is None:
            return _Stored(None, TlsSecret())
        return _Stored(found, read_secret(section(found, "data"), _moment(annotations_of(found))))

    async def _write(self, stored: _Stored, secret: TlsSecret) -> None:
        found = stored.object or {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self._settings.secret_name,
                "namespace": self._settings.namespace,
            },
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

    async def _inject(self, bundle: bytes) -> list[str]:
        """Write the bundle into every registration that differs.

        Returns:
            Names of registrations that exist and do not carry the whole bundle yet.
        """
        whole = frozenset(read_bundle(bundle))
        found = [
            (registration.name, carried_authorities(registration.configuration))
            for registration in await self._registrations.bring(lambda _: bundle)
            # Through one without webhooks nobody calls.
            if registration.configuration is NOTHING or bundles_of(registration.configuration)
        ]
        carried = whole.intersection(*(there for _, there in found))
        now = clock.monotonic()
        self._carried = {mark: self._carried.get(mark, now) for mark in carried}
        return list(dict.fromkeys(name for name, there in found if not whole <= there))


def _moment(annotations: Mapping[str, object]) -> datetime | None:
    text = annotations.get(PUBLISHED_ANNOTATION)
    if not isinstance(text, str):
        return None
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):  # the latter at either end of all years
        return None
