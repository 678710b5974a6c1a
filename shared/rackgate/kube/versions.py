"""Detect that etcd was restored from a backup, by resourceVersions that went back.

The versions of one resource are increasing integers (KEP-5504), and every consistent response is at
least as new as what was seen before the request. An older response proves that the store was
restored: cached state is invalid, and versions are reused for other contents. Then the client stops
sending requests, and the process ends and restarts.

Proof, for any of several API servers and any lag of their watch caches, is

- a list with an earlier version than one seen before the request: it has the store's version;
- a write that changed an object, and got an earlier version than one seen before the request;
- a live read of an object that is earlier than its known version.

A list at a given version (`resourceVersion=0`) and a bookmark prove nothing: both may come from a
watch cache that lags. Resources may be in separate stores (`--etcd-servers-overrides`), so each
resource is compared only with itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rackgate.api.resources import split_path
from rackgate.kube.errors import RewoundError
from rackgate.kube.stream import is_earlier

_VERSION_TEST: Final = "/metadata/resourceVersion"


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


_decode: Final = msgspec.json.Decoder(_Versioned).decode


def version_in(body: bytes) -> str:
    """The resourceVersion of an object or list; "" if there is none."""
    try:
        return _decode(body).metadata.resource_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def precondition_version(body: bytes | None) -> str:
    """The resourceVersion that is a precondition of a write, or "".

    `body` is an object, a merge or strategic patch, or a JSON patch that tests the version.
    """
    try:
        found: Any = msgspec.json.decode(body or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if isinstance(found, list):
        tested = (op for op in found if isinstance(op, dict) and op.get("op") == "test")
        found = {op.get("path"): op.get("value") for op in tested}.get(_VERSION_TEST)
    else:
        found = found.get("metadata") if isinstance(found, dict) else None
        found = found.get("resourceVersion") if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def collection(path: str) -> str:
    """`plural.group` of the objects under a path, for any served version."""
    group, rest = split_path(path)
    return f"{rest[0]}.{group}" if rest else ""


class Versions:
    """Latest versions seen of one API server; shared by all clients of a session.

    Attributes:
        on_rewind: called once, when versions go back.
    """

    def __init__(self) -> None:
        self.on_rewind: Callable[[], None] = lambda: None
        self._highest: dict[str, int] = {}
        self._error: RewoundError | None = None
        self._rewind_seen = asyncio.Event()

    def highest(self, path: str) -> int:
        """The latest version seen of the resource under `path`; 0 if none."""
        return self._highest.get(collection(path), 0)

    def observe(self, path: str, version: str) -> None:
        """Record a version that was seen."""
        if version.isdecimal():
            key, number = collection(path), int(version)
            if number > self._highest.get(key, 0):
                self._highest[key] = number

    def missing(self) -> list[str]:
        """Reasons why a service is not ready: lines for /readyz."""
        return [str(self._error)] if self._error is not None else []

    def check(self) -> None:
        """Call it before each request.

        Raises:
            RewoundError: versions went back.
        """
        if self._error is not None:
            raise self._error

    async def wait_rewound(self) -> None:
        """Wait until versions go back.

        Raises:
            RewoundError: versions went back.
        """
        await self._rewind_seen.wait()
        self.check()

    def record_rewind(self, verb: str, path: str, version: str, known: str) -> RewoundError:
        """Record that `version` came after `known`; return the error to raise."""
        if self._error is None:
            text = f"version {version} after {known}: restored from a backup?"
            self._error = RewoundError(verb, path, reason="Rewound", message=text)
            self._rewind_seen.set()
            self.on_rewind()
        return self._error

    def check_list(
        self, path: str, params: Mapping[str, str], version: str, min_version: int
    ) -> None:
        """Check that a list is at least as new as what was seen before the request.

        Args:
            path: path of the collection.
            params: query of the request.
            version: version of the list.
            min_version: latest version seen before the request.

        Raises:
            RewoundError: it is older.
        """
        if "resourceVersion" in params or not version.isdecimal():
            return
        if int(version) < min_version:
            raise self.record_rewind("GET", path, version, str(min_version))
        self.observe(path, version)

    def check_write(
        self, verb: str, path: str, answer: bytes, min_version: int, body: bytes | None
    ) -> None:
        """Check that a write that changed an object got a later version than any before.

        Raises:
            RewoundError: it got an earlier version.
        """
        version = version_in(answer)
        if not version.isdecimal():
            return
        if int(version) <= min_version:
            # The response to a write that changes nothing is the object as it is.
            precondition = "0" if verb == "POST" else precondition_version(body)
            if precondition and precondition != version and int(version) < min_version:
                raise self.record_rewind(verb, path, version, str(min_version))
            return
        self.observe(path, version)

    def check_read(self, path: str, answer: bytes, known: str) -> None:
        """Check that a live read is not earlier than the known version of the object.

        Raises:
            RewoundError: it is earlier.
        """
        version = version_in(answer)
        if is_earlier(version, known):
            raise self.record_rewind("GET", path, version, known)
