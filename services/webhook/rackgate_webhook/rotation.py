"""Keeps certificate, Secret and registrations in step, on every replica alike.

Replicas do not elect anyone: each looks at the Secret, decides the same next step, and writes it
bound to the version it has read. Who loses reads again and finds the step done.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, KubeError
from rackgate.kube.resources import SECRETS
from rackgate.runtime import clock
from rackgate_webhook.certs import Issued, issue, read_bundle
from rackgate_webhook.expiry import Holding, Step, due_at, names_to_issue, next_step
from rackgate_webhook.keeper import Check, Keeper
from rackgate_webhook.registration import carried_authorities
from rackgate_webhook.secret import (
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
)
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
        self, client: Client, settings: CertificateSettings, context: ssl.SSLContext
    ) -> None:
        super().__init__(client, settings, context)
        self._renew_at: datetime | None = None
        # Authorities that all registrations carry, since when by the monotonic clock: wall clocks
        # of replicas may differ.
        self._carried: dict[str, float] = {}
        self._last: TlsSecret | None = None
        self._ahead = timedelta()

    async def step(self, check: Check) -> None:
        """Bring Secret, served certificate and registrations as far as they may go now.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        stored = await self._settled_secret()
        holding, rules = stored.secret.holding, self._settings.rules
        if holding.serving is not None:
            certificate, key = (stored.secret.data[name] for name in (CERTIFICATE, KEY))
            self._serve(certificate, key, holding.serving.not_after)
            self._last = stored.secret
        # While the next pair waits to be used, or none is there, there is no quiet time.
        quiet = holding.serving is not None and holding.upcoming is None
        self._renew_at = due_at(holding.serving, rules) if quiet and holding.serving else None
        self.bundle = stored.secret.bundle
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

    async def _settled_secret(self) -> _Stored:
        """The Secret once nothing is left to do to it."""
        for _ in range(STEPS_AT_ONCE):
            stored = await self._read()
            step = self._next_step(stored.secret)
            # What was found out holds as long as the clock is wrong: somebody may set it right.
            if step is not Step.KEEP or self._ahead:
                await self._compare_clocks()
            if step is Step.SWITCH:
                # The registrations may have changed since they were looked at.
                await self._inject(stored.secret.bundle)
            wanted = self._decide(stored.secret)
            if wanted is None:
                return stored
            try:
                await self._write(stored, wanted)
            except ConflictError:
                continue  # another replica was faster: look again
        return await self._read()

    def _next_step(self, secret: TlsSecret) -> Step:
        patient = clock.monotonic() - self._settings.settle
        settled = {mark for mark, since in self._carried.items() if since <= patient}
        return next_step(secret.holding, self._settings.rules, now=self._now(), settled=settled)

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
        last = self._last
        serving = None if last is None else last.holding.serving
        if last is not None and serving is not None and serving.not_after > now:
            return published(last, self._issue(last.holding), now)
        return issued(secret, self._issue(secret.holding), now)

    def _issue(self, holding: Holding) -> Issued:
        names = names_to_issue(holding, self._settings.rules)
        return issue(names, validity=timedelta(seconds=self._settings.validity), now=self._now())

    def _now(self) -> datetime:
        """The API server's time, as far as it is known to differ from this machine's."""
        return clock.now() - self._ahead

    async def _compare_clocks(self) -> None:
        """Ask for the API server's time: a wrong clock here must not expire what others use.

        It is the creation time of a Secret that is not created.
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
            created = clock.parse_rfc3339(answer["metadata"]["creationTimestamp"])
        except (KubeError, KeyError, TypeError, ValueError) as error:
            log.debug("clock_not_compared", error=str(error))
            return
        ahead = clock.now() - created
        self._ahead = ahead if abs(ahead) > MAX_SKEW else timedelta()
        if self._ahead:
            log.warning("clock_differs", ahead_s=round(ahead.total_seconds(), 3))

    async def _read(self) -> _Stored:
        found = await self._read_object()
        if found is None:
            return _Stored(None, TlsSecret())
        annotations = found.get("metadata", {}).get("annotations") or {}
        return _Stored(found, read_secret(found.get("data") or {}, _moment(annotations)))

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
            annotations[PUBLISHED_ANNOTATION] = clock.rfc3339_micro(secret.published_at)
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
        ]
        carried = whole.intersection(*(there for _, there in found))
        now = clock.monotonic()
        self._carried = {mark: self._carried.get(mark, now) for mark in carried}
        return list(dict.fromkeys(name for name, there in found if not whole <= there))


def _moment(annotations: dict[str, str]) -> datetime | None:
    text = annotations.get(PUBLISHED_ANNOTATION)
    if text is None:
        return None
    try:
        return clock.parse_rfc3339(text)
    except ValueError:
        return None
