"""What a user with `edit` in one namespace does, and what the API server answers.

A write that is refused is an outcome, not an error: it is noted, and the attack goes on. Any other
answer than a refusal, a conflict or "gone already" fails the attack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
    TransportError,
    UnprocessableError,
)
from tests.support.objects import Object
from tests.support.reviewed import reviewed

# Who refused, by the API server's words.
POLICY: Final = "ValidatingAdmissionPolicy"
WEBHOOK: Final = "denied the request"
RIGHTS: Final = re.compile(r'User ".*" cannot ')
TRIES: Final = 20


async def _answered(send: Callable[[], Awaitable[bytes]]) -> bytes:
    """Send again what got no answer: done twice, it is a conflict or gone."""
    try:
        return await reviewed(send)
    except TransportError:
        return await reviewed(send)


@dataclass(frozen=True)
class RejectedWrite:
    """A write that the API server did not accept.

    Attributes:
        what: verb and object.
        words: what it said.
    """

    what: str
    words: str

    @property
    def by(self) -> str:
        """Who refused: policy, webhook, rights, or the API's own validation."""
        if POLICY in self.words:
            return "policy"
        if WEBHOOK in self.words:
            return "webhook"
        return "rights" if RIGHTS.search(self.words) else "validation"


@dataclass
class AttackerClient:
    """Requests of one user in one namespace.

    Attributes:
        client: with that user's credentials.
        refusals: every refusal so far.
        writes: how many were accepted.
    """

    client: Client
    namespace: str
    rejections: list[RejectedWrite] = field(default_factory=list)
    writes: int = 0

    def path(self, kind: Resource, name: str | None = None, sub: str | None = None) -> str:
        """The URL of an object, a collection or a subresource; in the own namespace."""
        return kind.path(self.namespace if kind.namespaced else None, name, sub)

    async def create(self, kind: Resource, obj: Mapping[str, Any]) -> Object | None:
        """Create an object; None when that was refused, or the name is taken."""
        body = json.dumps(obj).encode()
        path = self.path(kind)
        what = f"create {kind.kind} {obj['metadata'].get('name', '')}"
        return await self._write(what, lambda: self.client.create(path, body))

    async def post(self, kind: Resource, name: str, sub: str, obj: Object) -> Object | None:
        """Create a subresource: a binding or an eviction."""
        body = json.dumps(obj).encode()
        path = self.path(kind, name, sub)
        return await self._write(f"{sub} of {name}", lambda: self.client.create(path, body))

    async def merge(
        self, kind: Resource, name: str, change: Mapping[str, Any], sub: str | None = None
    ) -> Object | None:
        """Merge-patch an object."""
        body = json.dumps(change).encode()
        path = self.path(kind, name, sub)
        what = f"patch {kind.kind} {name} {sub or ''}".rstrip()
        return await self._write(what, lambda: self.client.patch(path, body, PatchType.MERGE))

    async def json_patch(
        self, kind: Resource, name: str, operations: Sequence[Mapping[str, Any]]
    ) -> Object | None:
        """JSON-patch an object."""
        body = json.dumps(operations).encode()
        path = self.path(kind, name)
        what = f"patch {kind.kind} {name}"
        return await self._write(what, lambda: self.client.patch(path, body, PatchType.JSON))

    async def patch_at(
        self, path: str, what: str, operations: Sequence[Mapping[str, Any]]
    ) -> Object | None:
        """JSON-patch whatever is served under a path."""
        body = json.dumps(operations).encode()
        return await self._write(what, lambda: self.client.patch(path, body, PatchType.JSON))

    async def replace(
        self, kind: Resource, name: str, edit: Callable[[Object], object]
    ) -> Object | None:
        """Read, edit and replace an object, again after a conflict."""
        for _ in range(TRIES):
            obj = await self.find(kind, name)
            if obj is None:
                return None
            edit(obj)
            before = len(self.rejections)
            found = await self._put(self.path(kind, name), obj)
            if found is not None or len(self.rejections) > before:
                return found
        return None

    async def _put(self, path: str, obj: Object) -> Object | None:
        body = json.dumps(obj).encode()
        return await self._write(f"replace {path}", lambda: self.client.replace(path, body))

    async def delete(
        self,
        kind: Resource,
        name: str,
        *,
        how: str = "Background",
        grace_s: int | None = None,
    ) -> Object | None:
        """Delete an object; `how` is the propagation policy."""
        options: Object = {"propagationPolicy": how}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path, body = self.path(kind, name), json.dumps(options).encode()
        return await self._write(
            f"delete {kind.kind} {name}", lambda: self.client.delete(path, body)
        )

    async def delete_all(self, kind: Resource, how: str = "Background") -> Object | None:
        """Delete a whole collection with one request."""
        path, body = self.path(kind), json.dumps({"propagationPolicy": how}).encode()
        return await self._write(
            f"delete all {kind.plural}", lambda: self.client.delete(path, body)
        )

    async def find(self, kind: Resource, name: str) -> Object | None:
        """Read an object, None when there is none."""
        try:
            return dict(json.loads(await self.client.get(self.path(kind, name))))
        except NotFoundError:
            return None

    async def all(self, kind: Resource, selector: str = "") -> list[Object]:
        """All objects of a kind in the namespace."""
        params = {"labelSelector": selector} if selector else {}
        found: list[Object] = []
        async for page in self.client.list_pages(self.path(kind), params):
            found.extend(json.loads(page)["items"])
        return found

    async def _write(self, what: str, send: Callable[[], Awaitable[bytes]]) -> Object | None:
        try:
            answer = await _answered(send)
        except (ForbiddenError, UnprocessableError, BadRequestError) as error:
            self.rejections.append(RejectedWrite(what, error.message))
            return None
        except (ConflictError, NotFoundError, TooManyRequestsError):
            return None
        except KubeError as error:
            if error.status == 405:  # no such verb for this resource
                self.rejections.append(RejectedWrite(what, error.message))
                return None
            raise
        self.writes += 1
        return dict(json.loads(answer))
