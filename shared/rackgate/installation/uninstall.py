"""Uninstall: the services detect the deletion of their installation, and clean up.

`kubectl delete -k deploy` deletes everything at once, while Workloads have finalizers that only the
services remove. So before a service acts, it adds a finalizer to its own ServiceAccount,
ClusterRole and ClusterRoleBinding. When they are deleted, they remain, and with them the service's
token (for about a minute) and its permissions. The service stops its normal work, cleans up, and
removes these finalizers, that of the ServiceAccount last. An installation that never acted has no
such finalizers, so its objects are deleted immediately, and there is nothing to clean up.

An uninstall is the deletion of both the service's own binding and its own ServiceAccount. One alone
is not: a binding may be deleted to be recreated, and a restart or an upgrade deletes neither.

Every replica cleans up, without a Lease, as the Role for Leases is gone. Writes only remove, and
the version that was read is their precondition. See docs/design/adr/0025 for the reasons, and
docs/design/races/uninstall.md for the races.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog

from rackgate.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    SERVICE_ACCOUNTS,
)
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    RewoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
    UnprocessableError,
)
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, MetadataOnly

T = TypeVar("T")

FINALIZER: Final = "rackgate.dev/uninstall"
# After the deletion, the token is valid for a minute, and a Pod runs for its grace period.
CLEAN_UP_S: Final = 50.0
# A command deletes objects one after the other; a service may be stopped in between.
DELETION_GRACE_S: Final = 10.0
POLL_S: Final = 0.5
STOP_READ_S: Final = 2.0
_CONCURRENCY: Final = 32

# Tries to clean up one object. An admission webhook may reject a write with any status: every error
# that is not retriable counts as a rejection.
_TRIES: Final = 20
_REJECTED_TRIES: Final = 3
_RETRIABLE: Final = (ConflictError, ServerError, TooManyRequestsError, TransportError)
# Pauses between tries to add the finalizers.
FINALIZER_RETRY_S: Final = (0.2, 0.5, 1.0)
# Pauses before an object that was changed meanwhile is read again.
_REREAD_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4)

log = structlog.get_logger()


_decode = msgspec.json.Decoder(MetadataOnly).decode


def is_uninstall(binding: Meta | None, account: Meta | None) -> bool:
    """Whether an installation is being deleted, by a service's own binding and ServiceAccount."""
    return (
        binding is not None
        and account is not None
        and binding.deletion_timestamp is not None
        and account.deletion_timestamp is not None
    )


def add_finalizer_patch(found: Meta) -> bytes | None:
    """A JSON patch that adds the finalizer; None if it is there, or the object is deleted."""
    if FINALIZER in found.finalizers or found.deletion_timestamp is not None:
        return None
    return msgspec.json.encode(
        [
            {"op": "test", "path": "/metadata/uid", "value": found.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.resource_version},
            {"op": "add", "path": "/metadata/finalizers", "value": [*found.finalizers, FINALIZER]},
        ]
    )


def remove_finalizer_patch(found: Meta, finalizer: str = FINALIZER) -> bytes | None:
    """A JSON patch that removes a finalizer; None if the object does not have it."""
    if finalizer not in found.finalizers:
        return None
    index = found.finalizers.index(finalizer)
    return msgspec.json.encode(
        [
            {"op": "test", "path": "/metadata/uid", "value": found.uid},
            {"op": "test", "path": f"/metadata/finalizers/{index}", "value": finalizer},
            {"op": "remove", "path": f"/metadata/finalizers/{index}"},
        ]
    )


async def run_concurrently(work: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Run `work` for all items, a few dozen at a time.

    After a failure, no further item starts; the running ones are awaited.

    Raises:
        BaseException: the first failure, in the order of the items.
    """
    gate = asyncio.Semaphore(_CONCURRENCY)
    failed = False

    async def one(item: T) -> None:
        nonlocal failed
        async with gate:
            if failed:
                return
            try:
                await work(item)
            except BaseException:
                failed = True
                raise

    for outcome in await asyncio.gather(*map(one, items), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


@dataclass
class _Failure:
    tries: int = 0
    rejected: int = 0
    message: str = ""


class Failures:
    """Failed writes by object, so that one object does not block the cleanup of others.

    A policy may reject the write of an object, or its webhook may be down. The write is repeated a
    few times; then the object is reported to the operator.

    Attributes:
        count: failures of all objects.
    """

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, _Failure] = defaultdict(_Failure)

    def add(self, key: str, error: KubeError) -> None:
        """Record a failed write of the object `key`.

        Raises:
            KubeError: every other write would fail as well.
        """
        if isinstance(error, UnauthorizedError | RewoundError):
            raise error
        failed = self._of[key]
        failed.tries += 1
        failed.rejected += not isinstance(error, _RETRIABLE)
        failed.message = error.message or str(error)
        self.count += 1

    def is_given_up(self, key: str) -> bool:
        """Whether an object is no longer retried."""
        failed = self._of.get(key)
        if failed is None:
            return False
        return failed.rejected >= _REJECTED_TRIES or failed.tries >= _TRIES

    def message(self, key: str) -> str:
        """The last error message for an object; empty if nothing failed."""
        failed = self._of.get(key)
        return "" if failed is None else failed.message


class Uninstall:
    """Detects that the installation of a service is being deleted, and finishes the deletion.

    Attributes:
        begun: set when an uninstall was detected.
    """

    def __init__(
        self,
        client: Client,
        service: str,
        namespace: str,
        *,
        deletion_grace_s: float = DELETION_GRACE_S,
        clean_up_s: float = CLEAN_UP_S,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            client: client for all requests.
            service: short name, as in `rackgate-<service>`.
            namespace: namespace of the installation.
            deletion_grace_s: how long a stop waits for the rest of a deletion that has started.
            clean_up_s: time limit of the cleanup.
        """
        self.begun = asyncio.Event()
        self._deletion_grace_s, self._clean_up_s = deletion_grace_s, clean_up_s
        self._last_error = ""
        name = f"rackgate-{service}"
        self._full_name = f"{name}.{namespace}"
        self._client = client
        self._binding_path = CLUSTER_ROLE_BINDINGS.path(None, self._full_name)
        self._role_path = CLUSTER_ROLES.path(None, self._full_name)
        self._account_path = SERVICE_ACCOUNTS.path(namespace, name)
        self._namespace_path = NAMESPACES.path(None, namespace)
        self._changed = asyncio.Event()
        self._binding = Informer(
            client,
            CLUSTER_ROLE_BINDINGS,
            _decode,
            on_upsert=lambda _before, _now: self._changed.set(),
            on_delete=lambda _gone: self._changed.set(),
            params={"fieldSelector": f"metadata.name={self._full_name}"},
        )

    async def add_finalizers(self) -> None:
        """Add the finalizers; call it at every start, before the service acts.

        After an upgrade, an old role may forbid this; the service acts anyway. An API server that
        has just started rejects requests that it allows soon after, so they are repeated.
        """
        for pause_s in (*FINALIZER_RETRY_S, None):
            try:
                for path in (self._account_path, self._role_path, self._binding_path):
                    await self._patch(path, add_finalizer_patch)
            except KubeError as error:
                if pause_s is None:
                    log.warning("uninstall_not_guarded", error=str(error)[:300])
                    return
                await asyncio.sleep(pause_s)
            else:
                return

    async def run(self) -> None:
        """Follow the binding until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self._binding.run(), f"watch clusterrolebinding {self._full_name}")
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._confirm_uninstall()

    async def _confirm_uninstall(self) -> None:
        """While the binding is being deleted, check the ServiceAccount."""
        reported = False
        while not self.begun.is_set():
            found = self._binding.store.get(self._full_name)
            if found is None or found.metadata.deletion_timestamp is None:
                return
            account = await self._read(self._account_path)
            if is_uninstall(found.metadata, account):
                log.warning("uninstall_begun", binding=self._full_name)
                self.begun.set()
                return
            if not reported:
                # The finalizer keeps the binding and its permissions; continue.
                log.error("binding_deleted", binding=self._full_name)
                reported = True
            await asyncio.sleep(POLL_S)

    async def is_uninstalling_at_stop(self) -> bool:
        """Whether the stop of this process is part of an uninstall.

        A Pod may be stopped before the rest of the installation is deleted: kubectl begins with the
        namespace and the account, Helm deletes the account last. In a normal restart this costs
        three reads, without an API server up to `STOP_READ_S`.
        """
        if self.begun.is_set():
            return True
        try:
            async with asyncio.timeout(STOP_READ_S):
                leaving = [
                    found is not None and found.deletion_timestamp is not None
                    for found in (
                        await self._read(self._account_path),
                        await self._read(self._namespace_path),
                        await self._read(self._binding_path),
                    )
                ]
        except TimeoutError:
            return False
        if not any(leaving):
            return False
        try:
            async with asyncio.timeout(self._deletion_grace_s):
                await self.begun.wait()
        except TimeoutError:
            log.warning("installation_half_deleted", binding=self._full_name)
            return False
        return True

    async def clean_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Clean up, then remove the finalizers of the installation.

        If another replica was first, permissions are gone and there is nothing to do. Each step is
        repeated until it succeeds, as no service can finish the cleanup without its ServiceAccount.

        Args:
            work: cleans up everything; may be repeated, also concurrently by other replicas.
        """
        try:
            async with asyncio.timeout(self._clean_up_s):
                await self._repeat_until_done(work)
                # The ServiceAccount last: without it the token is invalid.
                for path in (self._binding_path, self._role_path, self._account_path):
                    await self._repeat_until_done(
                        partial(self._patch, path, remove_finalizer_patch)
                    )
        except TimeoutError:
            log.error(  # noqa: TRY400 - a time limit has no stack worth showing
                "uninstall_unfinished",
                binding=self._full_name,
                after_s=self._clean_up_s,
                error=self._last_error,
            )
        except (ForbiddenError, UnauthorizedError) as error:
            log.warning("uninstall_left_to_others", error=str(error)[:300])
        else:
            log.warning("uninstall_done", binding=self._full_name)

    async def _repeat_until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until it succeeds; lost permissions do not come back."""
        while True:
            try:
                return await step()
            except (ForbiddenError, UnauthorizedError):
                raise
            except KubeError as error:
                self._last_error = str(error)[:300]
                log.info("uninstall_step_failed", error=self._last_error)
                await asyncio.sleep(POLL_S)

    async def _patch(self, path: str, wanted: Callable[[Meta], bytes | None]) -> None:
        """Read an object and write the patch for it, if it exists."""
        for pause_s in (*_REREAD_S, None):
            try:
                patch = wanted(_decode(await self._client.get(path)).metadata)
                if patch is not None:
                    await self._client.patch(path, patch, PatchType.JSON)
            except NotFoundError:
                return
            except (ConflictError, UnprocessableError):
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)
            else:
                return

    async def _read(self, path: str) -> Meta | None:
        """The metadata of an object; None if it cannot be read."""
        try:
            return _decode(await self._client.get(path)).metadata
        except KubeError:
            return None
