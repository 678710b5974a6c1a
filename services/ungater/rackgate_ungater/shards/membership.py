"""The list of replicas: one Lease in which each of them keeps an annotation of its own.

It is the Lease by which earlier versions made a single replica active. Now the group holds it,
under a name that is nobody's and for a time that never runs out, so a replica of such a version
never becomes active while one of this version is there. As long as one of those holds it, no
replica of this version acts. The last replica to leave gives it back.
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
from rackgate.kube.lease.record import Lease, LeaseMeta, LeaseSpec, Sighting, answered, encode_lease
from rackgate.kube.lease.watch import LeaseWatch
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate_ungater.shards.assignment import GROUP_LEASE
from rackgate_ungater.shards.members import Members, entry, entry_key

BEATS_PER_DURATION: Final = 3
GROUP: Final = "rackgate-ungater-replicas"
FOR_EVER_S: Final = 2**31 - 1

log = structlog.get_logger()


class Membership:
    """Keeps this replica on the list, and reads who else is.

    Args:
        client: for patches of the group's Lease.
        watch: shows the Lease, and is told of what was written.
        namespace: of the Lease.
        me: this replica.
        duration_s: of a Lease; a replica that is silent for so long counts as away.
        request_timeout_s: longest time that a request may be on its way.
    """

    def __init__(
        self,
        client: Client,
        watch: LeaseWatch,
        namespace: str,
        me: str,
        *,
        duration_s: float,
        request_timeout_s: float,
    ) -> None:
        self.members = Members(me, live_s=duration_s, forget_s=duration_s + request_timeout_s)
        # Whether the group holds its Lease, and no replica of an earlier version is active.
        self.guarded = False
        self._client, self._watch, self._namespace, self._me = client, watch, namespace, me
        self._duration_s, self._request_timeout_s = duration_s, request_timeout_s
        self._path = LEASES.path(namespace, GROUP_LEASE)
        self._key = entry_key(me)
        self._period_s = duration_s / BEATS_PER_DURATION
        self._noted: Sighting | None = None
        self._waiting = False
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing

    def note(self) -> None:
        """Take in what the watch shows of the Lease."""
        sight = self._watch.see(GROUP_LEASE)
        if sight is None or sight is self._noted:
            return
        self._noted = sight
        self.members.note(
            sight.lease.metadata.annotations if sight.lease else None, clock.monotonic()
        )
        # Given back while we came, it is anybody's: one of an earlier version may be next.
        self.guarded = sight.spec.holder_identity == GROUP

    async def run(self, changed: Callable[[float], Awaitable[None]]) -> None:
        """Keep our entry fresh until cancelled.

        Args:
            changed: returns when the watch shows something new, or after so many seconds.
        """
        backoff = Backoff(base_s=self._duration_s / 32, cap_s=self._period_s)
        while True:
            pause_s = self._period_s * (0.9 + self._rng.random() / 5)
            try:
                await self._beat()
                backoff.reset()
            except KubeError as error:
                log.info("membership_not_written", error=str(error)[:300])
                pause_s = backoff.next()
                if isinstance(error, ConflictError | NotFoundError):
                    await self._watch.look(GROUP_LEASE)
            until = clock.monotonic() + pause_s
            await asyncio.sleep(self._duration_s / 32)
            while (left_s := until - clock.monotonic()) > 0 and not self._urgent():
                await changed(left_s)

    async def leave(self) -> None:
        """Take our entry out, so that nobody waits for us; `run` has ended."""
        try:
            await self._annotate({self._key: None})
        except KubeError as error:
            log.info("membership_not_left", error=str(error)[:300])

    async def give_back(self) -> None:
        """Release the group's Lease if no other replica is left; we hold no shard any more."""
        with contextlib.suppress(KubeError):
            for _ in range(2):
                lease = self._ours()
                if lease is None or not self.members.alone():
                    return
                try:
                    await self._write(lease, holder="", duration_s=1, annotations={})
                except ConflictError:
                    await self._watch.look(GROUP_LEASE)

    async def _beat(self) -> None:
        sight = self._watch.see(GROUP_LEASE)
        if self._ours() is not None:
            stamp = rfc3339_micro(clock.now())
            entries: dict[str, str | None] = dict.fromkeys(self.members.expired(clock.monotonic()))
            await self._annotate({**entries, self._key: entry(self._me, stamp)})
        elif self._takeable():
            await self._take(sight.lease if sight else None)
        elif sight is not None and not self._waiting:
            self._waiting = True
            log.info("earlier_version_active", holder=sight.spec.holder_identity)

    def _ours(self) -> Lease | None:
        """The Lease, if it is there and the group holds it."""
        sight = self._watch.see(GROUP_LEASE)
        return sight.lease if sight and sight.spec.holder_identity == GROUP else None

    def _takeable(self) -> bool:
        sight = self._watch.see(GROUP_LEASE)
        if sight is None or sight.spec.holder_identity == GROUP:
            return True  # never there, or deleted under us
        free_since = sight.free_since(self._request_timeout_s, self._duration_s)
        return clock.monotonic() >= free_since

    def _urgent(self) -> bool:
        """Whether somebody took our entry out, or the Lease waits for its holder."""
        lease = self._ours()
        return self._takeable() if lease is None else self._key not in lease.metadata.annotations

    async def _take(self, lease: Lease | None) -> None:
        """Make the group the holder, with our entry as the first."""
        mine = {self._key: entry(self._me, rfc3339_micro(clock.now()))}
        await self._write(lease, holder=GROUP, duration_s=FOR_EVER_S, annotations=mine)
        log.info("membership_founded")

    async def _write(
        self, lease: Lease | None, *, holder: str, duration_s: int, annotations: dict[str, str]
    ) -> None:
        known = lease or Lease(LeaseMeta(name=GROUP_LEASE, namespace=self._namespace))
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
        self._heard(answer)

    async def _annotate(self, entries: dict[str, str | None]) -> None:
        body = msgspec.json.encode({"metadata": {"annotations": entries}})
        self._heard(await self._client.patch(self._path, body, PatchType.MERGE))

    def _heard(self, answer: bytes) -> None:
        self._watch.note(answered("PATCH", answer))
        self.note()
