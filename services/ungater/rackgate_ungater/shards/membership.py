"""The list of replicas: one Lease in which each replica has its own annotation.

Earlier versions elected a single active replica with this Lease. Now the group holds it, under a
name of no replica and without expiry. So a replica of an earlier version never becomes active while
one of this version runs. While a replica of an earlier version holds the Lease, no replica of this
version acts. The last replica to leave releases the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import LEASES
from rackgate.api.timestamps import rfc3339_micro
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, KubeError, NotFoundError
from rackgate.kube.lease.record import (
    Lease,
    LeaseMeta,
    LeaseSpec,
    ObservedLease,
    decode_answer,
    encode_lease,
)
from rackgate.kube.lease.watch import LeaseWatch
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate_ungater.shards.handover import (
    MEMBERS_LEASE,
    Members,
    annotation_value,
    member_annotation,
)

RENEWALS_PER_DURATION: Final = 3
GROUP_IDENTITY: Final = "rackgate-ungater-replicas"
NO_EXPIRY_S: Final = 2**31 - 1

log = structlog.get_logger()


class Membership:
    """Keeps this replica on the list and reads the other entries.

    Args:
        client: for patches of the group's Lease.
        watch: shows the Lease, and observes what is written.
        namespace: of the Lease.
        identity: this replica.
        duration_s: of a Lease; a replica that is silent for this long does not count as live.
        request_timeout_s: maximum time that a request may be under way.
    """

    def __init__(
        self,
        client: Client,
        watch: LeaseWatch,
        namespace: str,
        identity: str,
        *,
        duration_s: float,
        request_timeout_s: float,
    ) -> None:
        self.members = Members(
            identity, live_within_s=duration_s, remove_after_s=duration_s + request_timeout_s
        )
        # Whether the group holds its Lease, and no replica of an earlier version is active.
        self.group_holds_lease = False
        self._client, self._watch, self._namespace, self._identity = (
            client,
            watch,
            namespace,
            identity,
        )
        self._duration_s, self._request_timeout_s = duration_s, request_timeout_s
        self._path = LEASES.path(namespace, MEMBERS_LEASE)
        self._key = member_annotation(identity)
        self._period_s = duration_s / RENEWALS_PER_DURATION
        self._last_sighting: ObservedLease | None = None
        self._earlier_version_logged = False
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing

    def update(self) -> None:
        """Update from the Lease as the watch shows it."""
        sight = self._watch.get(MEMBERS_LEASE)
        if sight is None or sight is self._last_sighting:
            return
        self._last_sighting = sight
        self.members.update(
            sight.lease.metadata.annotations if sight.lease else None, clock.monotonic()
        )
        # It was released meanwhile: a replica of an earlier version may acquire it.
        self.group_holds_lease = sight.spec.holder_identity == GROUP_IDENTITY

    async def run(self, changed: Callable[[float], Awaitable[None]]) -> None:
        """Update the entry of this replica regularly until cancelled.

        Args:
            changed: returns when the watch shows a change, or after so many seconds.
        """
        backoff = Backoff(base_s=self._duration_s / 32, cap_s=self._period_s)
        while True:
            pause_s = self._period_s * (0.9 + self._rng.random() / 5)
            try:
                await self._renew()
                backoff.reset()
            except KubeError as error:
                log.info("membership_not_written", error=str(error)[:300])
                pause_s = backoff.next()
                if isinstance(error, ConflictError | NotFoundError):
                    await self._watch.refresh(MEMBERS_LEASE)
            until = clock.monotonic() + pause_s
            await asyncio.sleep(self._duration_s / 32)
            while (left_s := until - clock.monotonic()) > 0 and not self._must_renew_now():
                await changed(left_s)

    async def leave(self) -> None:
        """Remove the entry, so that no replica waits for this one. `run` has ended."""
        try:
            await self._annotate({self._key: None})
        except KubeError as error:
            log.info("membership_not_left", error=str(error)[:300])

    async def release_group_lease(self) -> None:
        """Release the Lease of the group if this is the last replica; no shard is held any more."""
        with contextlib.suppress(KubeError):
            for _ in range(2):
                lease = self._group_lease()
                if lease is None or not self.members.is_alone():
                    return
                try:
                    await self._write_lease(lease, holder="", duration_s=1, annotations={})
                except ConflictError:
                    await self._watch.refresh(MEMBERS_LEASE)

    async def _renew(self) -> None:
        sight = self._watch.get(MEMBERS_LEASE)
        if self._group_lease() is not None:
            stamp = rfc3339_micro(clock.now())
            entries: dict[str, str | None] = dict.fromkeys(self.members.expired(clock.monotonic()))
            await self._annotate({**entries, self._key: annotation_value(self._identity, stamp)})
        elif self._may_acquire():
            await self._acquire(sight.lease if sight else None)
        elif sight is not None and not self._earlier_version_logged:
            self._earlier_version_logged = True
            log.info("earlier_version_active", holder=sight.spec.holder_identity)

    def _group_lease(self) -> Lease | None:
        """The Lease, if it exists and the group holds it."""
        sight = self._watch.get(MEMBERS_LEASE)
        return sight.lease if sight and sight.spec.holder_identity == GROUP_IDENTITY else None

    def _may_acquire(self) -> bool:
        sight = self._watch.get(MEMBERS_LEASE)
        if sight is None or sight.spec.holder_identity == GROUP_IDENTITY:
            return True  # never created, or deleted
        free_since = sight.free_since(self._request_timeout_s, self._duration_s)
        return clock.monotonic() >= free_since

    def _must_renew_now(self) -> bool:
        """Whether the entry was removed, or the Lease has no holder."""
        lease = self._group_lease()
        return self._may_acquire() if lease is None else self._key not in lease.metadata.annotations

    async def _acquire(self, lease: Lease | None) -> None:
        """Make the group the holder, and add the entry of this replica."""
        mine = {self._key: annotation_value(self._identity, rfc3339_micro(clock.now()))}
        await self._write_lease(
            lease, holder=GROUP_IDENTITY, duration_s=NO_EXPIRY_S, annotations=mine
        )
        log.info("membership_created")

    async def _write_lease(
        self, lease: Lease | None, *, holder: str, duration_s: int, annotations: dict[str, str]
    ) -> None:
        known = lease or Lease(LeaseMeta(name=MEMBERS_LEASE, namespace=self._namespace))
        stamp = rfc3339_micro(clock.now())
        spec = LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=duration_s,
            acquire_time=stamp,
            renew_time=stamp,
            lease_transitions=(known.spec.lease_transitions or 0) + 1,
        )
        meta = msgspec.structs.replace(
            known.metadata, annotations={**known.metadata.annotations, **annotations}
        )
        body = encode_lease(Lease(meta, spec))
        if lease is None:
            answer = await self._client.create(LEASES.path(self._namespace), body)
        else:
            answer = await self._client.replace(self._path, body)
        self._apply_answer(answer)

    async def _annotate(self, entries: dict[str, str | None]) -> None:
        body = msgspec.json.encode({"metadata": {"annotations": entries}})
        self._apply_answer(await self._client.patch(self._path, body, PatchType.MERGE))

    def _apply_answer(self, answer: bytes) -> None:
        self._watch.observe(decode_answer("PATCH", answer))
        self.update()
