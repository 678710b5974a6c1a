"""Who asks, and what they may see: users of a cluster, each with a token of their own.

    token -> TokenReview -> user -> SubjectAccessReviews -> rights

The API server knows tokens and rights; here answers are kept for a short time. A token is kept only
as its hash, and is never logged. A user without the right to list Workloads of all namespaces names
those that the page is to show: there is no list of the namespaces that a user may read.

If the API server does not answer, no one sees anything new: requests fail with 503, and open
streams go on for `RIGHTS_S` of `server` at most.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from rackgate.api import resources
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import View
from rackgate_assigner.visibility.answers import review_of
from rackgate_assigner.visibility.front_proxy import User
from rackgate_cli.errors import first_error
from rackgate_console.responses import RejectedError
from rackgate_console.viewers.access import Access
from rackgate_console.viewers.viewer import CLUSTER, Credentials, Viewer

# How long answers are kept.
TOKEN_S: Final = 60.0
INVALID_TOKEN_S: Final = 10.0
RIGHT_S: Final = 30.0
MAX_TOKENS: Final = 4096
MAX_RIGHTS: Final = 32_768
NOT_ACCEPTED: Final = "the API server does not accept the token"
# Requests to the API server at the same time.
MAX_REVIEWS: Final = 16
# Further ones wait; more are rejected.
MAX_WAITING: Final = 512
MAX_TOKEN: Final = 16 * 1024
MAX_NAMESPACES: Final = 20

_BEARER: Final = "Bearer "
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# What a user may list in a namespace whose Workloads the page shows.
_SHOWN: Final = (resources.WORKLOADS, resources.PODS, resources.EVENTS)

T = TypeVar("T")
log = structlog.get_logger()


class _UserInfo(View, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - msgspec copies empty defaults


class _TokenStatus(View, frozen=True):
    authenticated: bool = False
    user: _UserInfo = _UserInfo()


class _TokenReview(View, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(View, frozen=True):
    allowed: bool = False


class _AccessReview(View, frozen=True):
    status: _AccessStatus = _AccessStatus()


_decode_token: Final = msgspec.json.Decoder(_TokenReview).decode
_decode_access: Final = msgspec.json.Decoder(_AccessReview).decode
_encode: Final = msgspec.json.Encoder().encode


class _Kept(Generic[T]):
    """Answers of the API server, each asked for once at a time, and kept for a short time."""

    def __init__(self, kept_s: Callable[[], float], most: int) -> None:
        self._kept_s, self._most = kept_s, most
        self._answers: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()
        self._locks: dict[Hashable, asyncio.Lock] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer for a key."""
        found = self.known(key)
        if found is not None:
            return found[0]
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                found = self.known(key)
                if found is not None:
                    return found[0]
                answer = await ask()
                self.keep(key, answer)
                return answer
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def keep(self, key: Hashable, answer: T) -> None:
        """Keep an answer; the oldest one is dropped."""
        self._answers.pop(key, None)
        self._answers[key] = answer, clock.monotonic() + self._kept_s()
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def known(self, key: Hashable) -> tuple[T, float] | None:
        """The answer that is kept, and until when."""
        found = self._answers.get(key)
        return found if found is not None and clock.monotonic() < found[1] else None


class TokenViewers:
    """Users of a cluster."""

    mode = CLUSTER

    def __init__(self, client: Client) -> None:
        """Prepare.

        Args:
            client: may create TokenReviews and SubjectAccessReviews.
        """
        self._client = client
        self._reviews = asyncio.Semaphore(MAX_REVIEWS)
        self._waiting = 0
        self._users = _Kept[User](lambda: TOKEN_S, MAX_TOKENS)
        # Apart, so that tokens that anyone invents push out no valid one.
        self._invalid = _Kept[bool](lambda: INVALID_TOKEN_S, MAX_TOKENS)
        self._rights = _Kept[bool](lambda: RIGHT_S, MAX_RIGHTS)

    def check_host(self, host: str) -> None:
        """Any name: a page of another name has no token."""

    async def viewer(self, credentials: Credentials) -> Viewer:
        """The user of the token.

        Raises:
            RejectedError: no valid token (401), a wrong namespace (400), or no answer (503).
        """
        token = credentials.authorization.removeprefix(_BEARER)
        if token == credentials.authorization or not token.strip():
            raise RejectedError(401, "send the token of a user: Authorization: Bearer TOKEN")
        if len(token) > MAX_TOKEN:
            raise RejectedError(401, f"the token is longer than {MAX_TOKEN} characters")
        namespaces = _checked(credentials.namespaces)
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if not token.isascii():
            raise RejectedError(401, "the token has characters that no token has")
        if self._invalid.known(digest):
            raise RejectedError(401, NOT_ACCEPTED)
        user = await self._users.get(digest, lambda: self._user_of(token, digest))
        try:
            access = await self._access(user, namespaces)
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        return Viewer(user.name, identity_of(user.name), access)

    async def _access(self, user: User, namespaces: tuple[str, ...]) -> Access:
        async with asyncio.TaskGroup() as group:
            nodes = spawn(group, self._may_list(user, resources.NODES), "nodes")
            queues = spawn(group, self._may_list(user, resources.CLUSTER_QUEUES), "queues")
            everywhere = spawn(group, self._sees(user, ""), "all namespaces")
        if everywhere.result():
            return Access(nodes.result(), queues.result(), None)
        async with asyncio.TaskGroup() as group:
            found = {name: spawn(group, self._sees(user, name), name) for name in namespaces}
        visible = frozenset(name for name, task in found.items() if task.result())
        return Access(nodes.result(), queues.result(), visible)

    async def _sees(self, user: User, namespace: str) -> bool:
        for resource in _SHOWN:
            if not await self._may_list(user, resource, namespace):
                return False
        return True

    async def _may_list(self, user: User, resource: Resource, namespace: str = "") -> bool:
        attributes = {"verb": "list", "group": resource.group, "resource": resource.plural}
        if namespace:
            attributes["namespace"] = namespace
        key = (user, resource.full_name, namespace)
        return await self._rights.get(key, lambda: self._review(review_of(user, attributes)))

    async def _review(self, body: bytes) -> bool:
        answer = await self._ask(resources.SUBJECT_ACCESS_REVIEWS, body)
        return _decode_access(answer).status.allowed

    async def _user_of(self, token: str, digest: bytes) -> User:
        review: dict[str, Any] = {
            "apiVersion": resources.TOKEN_REVIEWS.api_version,
            "kind": resources.TOKEN_REVIEWS.kind,
            "spec": {"token": token},
        }
        status = _decode_token(await self._ask(resources.TOKEN_REVIEWS, _encode(review))).status
        if not status.authenticated:
            self._invalid.keep(digest, answer=True)
            raise RejectedError(401, NOT_ACCEPTED)
        found = status.user
        extra = tuple(sorted(found.extra.items()))
        return User(found.username, found.uid, found.groups, extra)

    async def _ask(self, resource: Resource, body: bytes) -> bytes:
        if self._waiting >= MAX_WAITING:
            raise RejectedError(503, "many others sign in; try again in a second", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._reviews:
                return await self._client.create(resource.path(), body)
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("review_failed", resource=resource.full_name, reason=type(error).__name__)
            raise RejectedError(
                503, "the API server did not review the token or its rights", retry_after_s=5
            ) from error
        finally:
            self._waiting -= 1


def identity_of(name: str) -> str:
    """For whom the limits of a user count: who may create one ServiceAccount may create many."""
    prefix, _, rest = name.partition(":serviceaccount:")
    return f"{name.rpartition(':')[0]}:" if prefix == "system" and ":" in rest else name


def _checked(namespaces: tuple[str, ...]) -> tuple[str, ...]:
    if len(namespaces) > MAX_NAMESPACES:
        raise RejectedError(400, f"at most {MAX_NAMESPACES} namespaces", field="namespaces")
    for name in namespaces:
        if not _NAMESPACE.fullmatch(name):
            raise RejectedError(400, f'"{name[:63]}" is no namespace', field="namespaces")
    return namespaces
