"""The base of both certificate managers: loop, served pair, problem, watches."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.resources import SECRETS, Resource
from rackgate.api.timestamps import rfc3339
from rackgate.certificates.registrations import Registrations
from rackgate.certificates.settings import BaseCertificateSettings
from rackgate.certificates.tls import load_pair
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError, NotFoundError
from rackgate.kube.informer import Informer
from rackgate.runtime import clock, metrics
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, View

EXPIRY: Final = metrics.gauge(
    "certificate_expiry_timestamp_seconds", "When the served certificate expires, Unix time."
)
RETRY_S: Final = 0.5
IDLE_S: Final = 3600.0

_FORBIDDEN: Final = (
    "; with certificates.source: issued, the service writes the Secret {secret}: give it the "
    "rights of deploy/rbac, or set certificates.source: provided"
)

log = structlog.get_logger()
SelfCheck = Callable[[bytes], Awaitable[str]]


class CertificateManager(ABC):
    """One replica's certificate, reconciled with the Secret and the registrations.

    Attributes:
        context: TLS context of the server; its certificate changes while it serves.
        loaded: whether it has a certificate.
        problem: why callers cannot call this replica; empty when it is.
        bundle: PEM of the authorities that callers should trust, as last read.
    """

    def __init__(
        self,
        client: Client,
        settings: BaseCertificateSettings,
        context: ssl.SSLContext,
        selector: NamespaceSelector | None = None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: for Secret and registrations.
            settings: of the certificate.
            context: TLS context of the server.
            selector: of the namespaces in which jobs are managed; all by default.
        """
        self.context = context
        self.loaded = asyncio.Event()
        self.problem = "no certificate yet"
        self.bundle = b""
        self._client = client
        self._settings = settings
        self._path = SECRETS.path(settings.namespace, settings.secret_name)
        self._configurations = Registrations(
            client,
            settings.registrations,
            selector,
            settings.namespace,
            settings.rules.names,
            writes=settings.write_bundle,
            issues=settings.source == "issued",
        )
        self._served = b""
        self._served_until: datetime | None = None
        # Pause before the next attempt. Once there is a pair, it doubles with each failure.
        self._backoff_s = 0.0
        self._logged_failures: dict[str, tuple[str, float]] = {}

    @property
    def selector_mismatch(self) -> str:
        """How namespace selectors differ from those of managed jobs; empty if they agree."""
        return self._configurations.selector_mismatch

    async def run(self, check: SelfCheck, changed: asyncio.Event | None = None) -> None:
        """Reconcile and check until cancelled. Failures are logged and retried.

        Args:
            check: a TLS call to this server that trusts the given bundle; returns the failure, or
                an empty string.
            changed: set when the Secret or a configuration changes. Without failure and before a
                rotation is due, no request is sent until then. If None, they are read every
                `check_interval`.
        """
        every = self._settings.check_interval
        while True:
            if changed is not None:
                changed.clear()
            done = await self._reconcile_once(check)
            if done and not self.problem:
                self._backoff_s = 0.0
            else:
                longer_s = 2 * self._backoff_s if self.loaded.is_set() else 0.0
                self._backoff_s = min(every, max(RETRY_S, longer_s))
            if not done:
                # Changes do not shorten the pause: many replicas may fail for the same reason.
                await asyncio.sleep(min(every, RETRY_S))
                await _wait_for_change(changed, self._backoff_s - RETRY_S)
            elif changed is None:
                usual_s = min(every, RETRY_S) if self._configurations.any_missing else every
                await asyncio.sleep(self._backoff_s or usual_s)
            else:
                await _wait_for_change(changed, self._idle_s())

    async def _reconcile_once(self, check: SelfCheck) -> bool:
        """Whether a step succeeded; a failure is logged."""
        try:
            await self.reconcile(check)
        except (KubeError, OSError, ValueError) as error:
            remedy = ""
            if isinstance(error, ForbiddenError) and self._settings.source == "issued":
                remedy = _FORBIDDEN.format(secret=self._settings.secret_name)
            self._log_failure("step", f"{error}{remedy}")
            if not self.loaded.is_set():
                self.problem = f"no certificate yet: {error}"
            elif self._served_until is not None and self._served_until <= self._now():
                self.problem = f"the served certificate has expired: {error}"
            return False
        self._log_failure("step", "")
        return True

    def _log_failure(self, about: str, error: str) -> None:
        """Log a failure when it is new, and repeatedly at long intervals; empty after recovery."""
        logged, logged_at = self._logged_failures.get(about, ("", 0.0))
        now = clock.monotonic()
        if error and (error != logged or now - logged_at > IDLE_S):
            log.warning("certificate_step_failed", error=error)
            self._logged_failures[about] = (error, now)
        elif not error:
            self._logged_failures.pop(about, None)

    @abstractmethod
    async def reconcile(self, check: SelfCheck) -> None:
        """Take each step that is due now.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
        """

    @abstractmethod
    def _next_due_at(self) -> datetime | None:
        """When the next step is due without any change; None if it may be soon."""

    def _idle_s(self) -> float:
        """Seconds until the next step is due without any change."""
        every = self._settings.check_interval
        if self.problem:
            return self._backoff_s
        due_at = self._next_due_at()
        if due_at is None:
            return every
        return min(max((due_at - clock.now()).total_seconds(), every), IDLE_S)

    def _now(self) -> datetime:
        """The time by which certificates are valid or expired."""
        return clock.now()

    async def _read_object(self) -> dict[str, Any] | None:
        """The Secret; None without one."""
        try:
            body = await self._client.get(self._path)
        except NotFoundError:
            return None
        found = msgspec.json.decode(body)
        # Without a resourceVersion, a later write would overwrite changes of others.
        if isinstance(found, dict) and isinstance(found.get("metadata"), dict):
            return found
        raise ValueError(f"GET {self._path}: expected an object with metadata")

    def _serve(self, certificate: bytes, key: bytes, expires_at: datetime) -> None:
        """Load the pair unless it is served already. Open connections continue."""
        if certificate == self._served:
            return
        load_pair(self.context, certificate, key)
        self._served, self._served_until = certificate, expires_at
        self.loaded.set()
        EXPIRY.set(expires_at.timestamp())
        log.info("certificate_rotated", expires_at=rfc3339(expires_at))


async def _wait_for_change(changed: asyncio.Event | None, within_s: float) -> None:
    """Wait for a change, or until the timeout."""
    if changed is None:
        await asyncio.sleep(max(within_s, 0.0))
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(within_s, 0.0)):
            await changed.wait()


class _Object(View, frozen=True):
    """The fields needed of a watched object. The data of a Secret is not decoded."""

    metadata: Meta = Meta()


_decode = msgspec.json.Decoder(_Object).decode


async def watch_secret_and_registrations(
    client: Client, settings: BaseCertificateSettings, changed: asyncio.Event
) -> None:
    """Set `changed` on every event of the Secret and the registrations, until cancelled."""
    targets: list[tuple[Resource, str | None, str]] = [
        (SECRETS, settings.namespace, settings.secret_name)
    ]
    for name, kinds in settings.registrations.items():
        targets += [(resource, None, name) for resource in kinds]
    async with asyncio.TaskGroup() as group:
        for resource, namespace, name in targets:
            informer = Informer(
                client,
                resource,
                _decode,
                on_upsert=lambda _before, _now: changed.set(),
                on_delete=lambda _gone: changed.set(),
                namespace=namespace,
                params={"fieldSelector": f"metadata.name={name}"},
            )
            spawn(group, informer.run(), f"watch {resource.full_name} {name}")
