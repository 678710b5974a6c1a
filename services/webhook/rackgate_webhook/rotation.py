"""Keeps certificate, Secret and registrations in step, on every replica alike.

Replicas do not elect anyone: each looks at the Secret, decides the same next step, and writes it
bound to the version it has read. Who loses reads again and finds the step done.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    KubeError,
    NotFoundError,
    UnprocessableError,
)
from rackgate.kube.resources import MUTATING_CONFIGS, SECRETS, VALIDATING_CONFIGS, Resource
from rackgate.runtime import clock, metrics
from rackgate_webhook.certs import Issued, issue, read_bundle
from rackgate_webhook.expiry import Holding, Step, due_at, names_to_issue, next_step
from rackgate_webhook.registration import bundle_patch, carried_authorities
from rackgate_webhook.secret import (
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
from rackgate_webhook.tls import load_pair

EXPIRY: Final = metrics.gauge(
    "certificate_expiry_timestamp_seconds", "When the served certificate expires, Unix time."
)
SOON_S: Final = 0.5
IDLE_S: Final = 3600.0
STEPS_AT_ONCE: Final = 5

log = structlog.get_logger()
Check = Callable[[bytes], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The Secret as read: None without one. The object is kept to write back what is not ours."""

    object: dict[str, Any] | None
    secret: TlsSecret


class CertificateKeeper:
    """One replica's part in the rotation.

    Attributes:
        context: TLS context of the server; certificates are changed under it while it serves.
        loaded: whether it has a certificate.
        problem: why the webhook must not be called yet; empty when all is well.
        bundle: PEM of the authorities that callers are to trust, as last read.
    """

    def __init__(
        self, client: Client, settings: CertificateSettings, context: ssl.SSLContext
    ) -> None:
        self.context = context
        self.loaded = asyncio.Event()
        self.problem = "no certificate yet"
        self._client = client
        self._settings = settings
        self._path = SECRETS.path(settings.namespace, settings.secret_name)
        self.bundle = b""
        self._served = b""
        self._absent = True
        self._due_at: datetime | None = None
        self._carried: frozenset[str] = frozenset()

    async def run(self, check: Check, changed: asyncio.Event | None = None) -> None:
        """Look, act and check for ever; failures are logged and tried again.

        Args:
            check: a TLS call to this very server trusting the given bundle; returns what went
                wrong, empty when it was answered.
            changed: set by whoever follows Secret and registrations: then nothing is asked of
                the API server while all is well and no rotation is due. Without it they are
                looked at again and again.
        """
        while True:
            if changed is not None:
                changed.clear()
            try:
                await self.step(check)
            except (KubeError, ssl.SSLError, OSError, ValueError) as error:
                log.warning("certificate_step_failed", error=str(error))
                if not self.loaded.is_set():
                    self.problem = f"no certificate yet: {error}"
                await asyncio.sleep(min(self._settings.check_interval, SOON_S))
                continue
            if changed is None:
                every = self._settings.check_interval
                soon = self._absent or self.problem
                await asyncio.sleep(min(every, SOON_S) if soon else every)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s()):
                    await changed.wait()

    def _rest_s(self) -> float:
        """Seconds until time alone gives something to do."""
        every = self._settings.check_interval
        if self.problem:
            return min(every, SOON_S)
        if self._due_at is None:
            return every
        return min(max((self._due_at - clock.now()).total_seconds(), every), IDLE_S)

    async def step(self, check: Check) -> None:
        """Bring Secret, served certificate and registrations as far as they may go now.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        stored = await self._settled_secret()
        self._serve(stored.secret)
        holding, rules = stored.secret.holding, self._settings.rules
        # While the next pair waits to be used, or none is there, there is no quiet time.
        quiet = holding.serving is not None and holding.upcoming is None
        self._due_at = due_at(holding.serving, rules) if quiet and holding.serving else None
        self.bundle = stored.secret.bundle
        missing = await self._inject(self.bundle)
        failure = await check(self.bundle)
        if failure:
            self.problem = f"TLS call to itself: {failure}"
        elif missing:
            self.problem = f"CA bundle not yet in {', '.join(missing)}"
        else:
            self.problem = ""

    async def _settled_secret(self) -> _Stored:
        """The Secret once nothing is left to do to it."""
        for _ in range(STEPS_AT_ONCE):
            stored = await self._read()
            wanted = self._decide(stored.secret)
            if wanted is None:
                return stored
            try:
                await self._write(stored, wanted)
            except ConflictError:
                continue  # another replica was faster: look again
        return await self._read()

    def _decide(self, secret: TlsSecret) -> TlsSecret | None:
        """What the Secret should hold next; None when it may stay."""
        now, rules = clock.now(), self._settings.rules
        holding = secret.holding
        step = next_step(holding, rules, now=now, injected=self._carried)
        if step is Step.KEEP:
            return None
        log.info("certificate_step", step=str(step))
        if step is Step.SWITCH:
            return switched(secret)
        if step is Step.PRUNE:
            return pruned(secret, now)
        pair = self._issue(holding)
        return issued(secret, pair, now) if step is Step.ISSUE else published(secret, pair, now)

    def _issue(self, holding: Holding) -> Issued:
        names = names_to_issue(holding, self._settings.rules)
        return issue(names, validity=timedelta(seconds=self._settings.validity), now=clock.now())

    async def _read(self) -> _Stored:
        try:
            body = await self._client.get(self._path)
        except NotFoundError:
            return _Stored(None, TlsSecret())
        found: dict[str, Any] = msgspec.json.decode(body)
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

    def _serve(self, secret: TlsSecret) -> None:
        """Load the pair in use when it is not the one served; connections go on undisturbed."""
        serving = secret.holding.serving
        certificate, key = secret.data.get("tls.crt", b""), secret.data.get("tls.key", b"")
        if serving is None or certificate == self._served:
            return
        load_pair(self.context, certificate, key)
        self._served = certificate
        self.loaded.set()
        EXPIRY.set(serving.not_after.timestamp())
        log.info("certificate_rotated", expires_at=clock.rfc3339(serving.not_after))

    async def _inject(self, bundle: bytes) -> list[str]:
        """Write the bundle into every registration that differs.

        Registrations that do not exist are waited for, but nothing calls us through them: they
        hold up neither readiness nor a switch.

        Returns:
            Names of registrations that exist and do not carry the whole bundle yet.
        """
        whole = frozenset(read_bundle(bundle))
        carried: list[frozenset[str]] = []
        missing: list[str] = []
        self._absent = False
        for name in self._settings.configuration_names:
            found = [
                marks
                for resource in (MUTATING_CONFIGS, VALIDATING_CONFIGS)
                if (marks := await self._inject_one(resource, name, bundle)) is not None
            ]
            carried += found
            self._absent = self._absent or not found
            if any(not whole <= marks for marks in found):
                missing.append(name)
        self._carried = whole.intersection(*carried)
        return missing

    async def _inject_one(
        self, resource: Resource, name: str, bundle: bytes
    ) -> frozenset[str] | None:
        """Authorities that the registration carries now; None when it does not exist."""
        path = resource.path(name=name)
        try:
            configuration = msgspec.json.decode(await self._client.get(path))
            operations = bundle_patch(configuration, bundle)
            if operations:
                body = msgspec.json.encode(operations)
                answer = await self._client.patch(path, body, PatchType.JSON)
                configuration = msgspec.json.decode(answer)
                log.info("ca_bundle_injected", configuration=name)
        except NotFoundError:
            return None
        except (ConflictError, UnprocessableError) as error:
            log.debug("patch_conflicted", resource=resource.full_name, status=error.status)
            return frozenset()
        return carried_authorities(configuration)


def _moment(annotations: dict[str, str]) -> datetime | None:
    text = annotations.get(PUBLISHED_ANNOTATION)
    if text is None:
        return None
    try:
        return clock.parse_rfc3339(text)
    except ValueError:
        return None
