"""The end of an installation: noticed by its services, and finished by them.

`kubectl delete -k deploy` deletes everything at once, while Workloads carry finalizers that only
our services take off. So a service that is about to hold something puts a finalizer on its own
ServiceAccount, ClusterRole and ClusterRoleBinding: deleted, they stay, and with them the service's
token (for about a minute) and its rights. The service notices, stops its ordinary work, gives back
what it holds, and takes these finalizers off, the ServiceAccount's last. An installation that never
acted has no such finalizer: nothing keeps its objects, and nothing of others is given back.

An uninstall is the deletion of both, the service's own binding and its own ServiceAccount. Either
alone is none: a binding is deleted to be made anew, and a restart or an upgrade deletes neither.

Every replica does the same, without a Lease (its Role is gone): all that is written takes something
away, and is bound to the version that was read. The reasons are in docs/design/adr/0025, the races
in docs/design/races/uninstall.md.
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
from rackgate.kube.informer.informer import Informer
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, View

T = TypeVar("T")

FINALIZER: Final = "rackgate.dev/uninstall"
# After the end of the installation its token lasts for a minute, and a pod for its grace period.
CLEAN_UP_S: Final = 50.0
# Objects of one command are deleted one after the other: a stop may come between two of them.
DELETION_GRACE_S: Final = 10.0
POLL_S: Final = 0.5
STOP_READ_S: Final = 2.0
_CONCURRENCY: Final = 32

# Tries for one object that is given back. An admission webhook may reject a write with any status:
# every other error than these counts as a rejection.
_TRIES: Final = 20
_REJECTED_TRIES: Final = 3
_RETRIABLE: Final = (ConflictError, ServerError, TooManyRequestsError, TransportError)
# Between the tries to put the finalizers on.
FINALIZER_RETRY_S: Final = (0.2, 0.5, 1.0)
# Before an object that somebody else wrote meanwhile is read again.
_REREAD_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4)

log = structlog.get_logger()


class _MetadataOnly(View, frozen=True):
    metadata: Meta = Meta()


_decode = msgspec.json.Decoder(_MetadataOnly).decode


def is_uninstall(binding: Meta | None, account: Meta | None) -> bool:
    """Whether a service's installation is being deleted. Pure.

    Args:
        binding: of its own ClusterRoleBinding; None when there is none.
        account: of its own ServiceAccount; None when there is none.
    """
    return (
        binding is not None
        and account is not None
        and binding.deletion_timestamp is not None
        and account.deletion_timestamp is not None
    )


def add_finalizer_patch(found: Meta) -> bytes | None:
    """A JSON patch that puts the finalizer on the object as read; None where it cannot be. Pure."""
    if FINALIZER in found.finalizers or found.deletion_timestamp is not None:
        return None
    return msgspec.json.encode(
        [
            {"op": "test", "path": "/metadata/uid", "value": found.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.resource_version},
            {
                "op": "add",
                "path": "/metadata/finalizers",
                "value": [*found.finalizers, FINALIZER],
            },
        ]
    )


def remove_finalizer_patch(found: Meta, finalizer: str = FINALIZER) -> bytes | None:
    """A JSON patch that takes a finalizer off the object as read; None without it. Pure."""
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
    """Do the same for all items, side by side, a few dozen at a time.

    After a failure nothing new begins, and what is under way is waited for.

    Raises:
        BaseException: what failed first, in the order of the items.
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
    """Which writes failed how often, so that one object keeps no other from being given back.

    A policy of the cluster may reject the write of one object, or the webhook of such a policy may
    be down. It is tried a few times more, and then named to the operator.

    Attributes:
        count: of all.
    """

    def __init__(self) -> None:
        """None has failed."""
        self.count = 0
        self._of: dict[str, _Failure] = defaultdict(_Failure)

    def add(self, key: str, error: KubeError) -> None:
        """The write of the object `key` failed.

        Raises:
            KubeError: every other write would fail, too.
        """
        if isinstance(error, UnauthorizedError | RewoundError):
            raise error
        failed = self._of[key]
        failed.tries += 1
        failed.rejected += not isinstance(error, _RETRIABLE)
        failed.message = error.message or str(error)
        self.count += 1

    def is_given_up(self, key: str) -> bool:
        """Whether an object is not tried any more."""
        failed = self._of.get(key)
        if failed is None:
            return False
        return failed.rejected >= _REJECTED_TRIES or failed.tries >= _TRIES

    def message(self, key: str) -> str:
        """What the API server said of an object last; empty if nothing failed."""
        failed = self._of.get(key)
        return "" if failed is None else failed.message


class Uninstall:
    """Whether the installation of a service is being deleted, and the last writes then.

    Attributes:
        begun: set once it is.
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
            client: its budget is charged for everything.
            service: short name, as in `rackgate-<service>`.
            namespace: of the installation.
            deletion_grace_s: how long a stop waits for the rest of a deletion that has begun.
            clean_up_s: how long the end of the installation may take.
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
        """Say that the service is about to hold something: before it acts, at every start.

        A role that is older than the service is no reason not to act. An API server that has just
        started refuses what it will allow in a moment, so it is asked again.
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
        """Ask for the ServiceAccount while the binding is being deleted."""
        told = False
        while not self.begun.is_set():
            found = self._binding.store.get(self._full_name)
            if found is None or found.metadata.deletion_timestamp is None:
                return
            account = await self._read(self._account_path)
            if is_uninstall(found.metadata, account):
                log.warning("uninstall_begun", binding=self._full_name)
                self.begun.set()
                return
            if not told:
                # Its rights last as long as the finalizer is there; nothing is given up.
                log.error("binding_deleted", binding=self._full_name)
                told = True
            await asyncio.sleep(POLL_S)

    async def is_uninstalling_at_stop(self) -> bool:
        """Whether a stop that was asked for is the end of the installation.

        Pods are deleted by others than the rest of the installation: the stop may come first. In
        an ordinary restart this costs two reads, and nothing at all without an API server.
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
        """Give back what the service holds, then give up the installation.

        Another replica may be first: then there is no right left, and nothing to do. Each step is
        repeated until it succeeds, and none is left out: an installation whose account is gone
        cannot be finished by its services.

        Args:
            work: gives back everything; it may be repeated, and beside itself.
        """
        try:
            async with asyncio.timeout(self._clean_up_s):
                await self._repeat_until_done(work)
                # The account last: the role that allows this is not deleted, the token is.
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
        """Repeat a step until it succeeds, or is cancelled. Rights that are gone stay gone."""
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
        """Read an object and write the patch that is wanted for it, if it exists.

        Raises:
            KubeError: it is not written.
        """
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
        """The metadata of an object; None when it cannot be read."""
        try:
            return _decode(await self._client.get(path)).metadata
        except KubeError:
            return None
