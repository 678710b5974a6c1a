"""All Leases of a namespace, observed by one list and watch, for any number of standbys.

A watch may lag or stall. That is safe: a late observation only makes a standby wait longer, and the
write that takes a Lease requires the observed version, so after a missed renewal it is a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from rackgate.api.resources import LEASES
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.kube.informer import Informer
from rackgate.kube.lease.record import (
    Lease,
    ObservedLease,
    decode_answer,
    decode_lease,
    observe_first,
)
from rackgate.runtime import clock

log = structlog.get_logger()


class LeaseWatch:
    """Observes the Leases of a namespace.

    Args:
        client: for the list, the watch and single reads.
        namespace: namespace of the Leases.
        on_change: called after each change.
        idle_s: seconds without data after which the watch counts as stalled. Renewals are events
            of the watch, so a few intervals without one mean that it is.
    """

    def __init__(
        self, client: Client, namespace: str, on_change: Callable[[], None], *, idle_s: float
    ) -> None:
        self._client, self._namespace, self._on_change = client, namespace, on_change
        self._observations: dict[str, ObservedLease] = {}
        self._informer = Informer(
            client,
            LEASES,
            decode_lease,
            on_upsert=lambda _, lease: self.observe(lease),
            on_delete=self._deleted,
            namespace=namespace,
            idle_s=idle_s,
        )

    @property
    def synced(self) -> asyncio.Event:
        """Set once the Leases have been listed."""
        return self._informer.synced

    def missing(self) -> list[str]:
        """Reasons why this watch is not ready."""
        return self._informer.missing()

    async def run(self) -> None:
        """Follow the Leases until cancelled."""
        await self._informer.run()

    def get(self, name: str) -> ObservedLease | None:
        """The last observation of a Lease; None if there is none."""
        return self._observations.get(name)

    def assume(self, name: str, observation: ObservedLease) -> None:
        """Use `observation` for a Lease until it is observed."""
        self._observations.setdefault(name, observation)

    def observe(self, lease: Lease) -> None:
        """Record a Lease that was watched, read or written; an older state is ignored."""
        name, now = lease.metadata.name, clock.monotonic()
        known = self._observations.get(name)
        if known is None:
            self._set(name, observe_first(lease, now))
        elif known.lease is None or _version(lease) > _version(known.lease):
            self._set(name, known.observe(lease, now))

    async def refresh(self, name: str) -> None:
        """Read one Lease live, after a write was rejected: the observation is outdated."""
        before = self._observations.get(name)
        try:
            path = LEASES.path(self._namespace, name)
            seen = before.lease if before else None
            known = seen.metadata.resource_version if seen else ""
            lease = decode_answer("GET", await self._client.get(path, known=known))
        except NotFoundError:
            lease = None
        except KubeError as error:
            log.warning("lease_not_read", lease=name, error=str(error)[:300])
            return
        if before is not None and self._observations[name] is before:
            self._set(name, before.observe(lease, clock.monotonic()))
        elif lease is not None:
            self.observe(lease)

    def _deleted(self, lease: Lease) -> None:
        name = lease.metadata.name
        known = self._observations[name]
        if known.lease is not None and known.lease.metadata.uid == lease.metadata.uid:
            self._set(name, known.observe(None, clock.monotonic()))

    def _set(self, name: str, observation: ObservedLease) -> None:
        self._observations[name] = observation
        self._on_change()


def _version(lease: Lease) -> int:
    text = lease.metadata.resource_version
    return int(text) if text.isdecimal() else 0
