"""The versions that an API server has shown, and whether they went back.

Versions of one resource are whole numbers that grow (KEP-5504), and every consistent answer is at
least as new as what was seen before it was asked for. One that is not proves that the store was
restored from an older copy: what is remembered of it is void, and versions are given out anew for
other contents. From then on nothing is sent any more, and the process ends to start anew.

What proves it, whichever of several API servers answers, and however far its watch cache lags:

- a list that began after a later version was seen: it carries the version of the store;
- a write that changed an object, and was given an earlier version than was seen before;
- an object read live that is earlier than it was known to be.

A list at a version of the caller's choice (`resourceVersion=0`) proves nothing, nor does a
bookmark, which may come from a cache that lags. Resources may live in stores of their own
(`--etcd-servers-overrides`), so each is compared with itself alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rackgate.kube.errors import RewoundError

_VERSION_TEST: Final = "/metadata/resourceVersion"


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


_decode: Final = msgspec.json.Decoder(_Versioned).decode


def version_in(body: bytes) -> str:
    """The resourceVersion of the object or list in an answer; "" when there is none."""
    try:
        return _decode(body).metadata.resource_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def precondition_version(body: bytes | None) -> str:
    """The version that a write is bound to, "" when it is bound to none.

    Args:
        body: an object, a merge or strategic patch, or a JSON patch that tests the version.
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
    """Group and plural of the objects under a path; the served version does not matter."""
    parts = path.strip("/").split("/")
    group, rest = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    return f"{rest[0]}.{group}" if rest else ""


class Versions:
    """What was seen of one API server. Shared by all clients of one session.

    Attributes:
        on_rewind: called once, when versions go back.
    """

    def __init__(self) -> None:
        self.on_rewind: Callable[[], None] = lambda: None
        self._highest: dict[str, int] = {}
        self._error: RewoundError | None = None
        self._rewind_seen = asyncio.Event()

    def highest(self, path: str) -> int:
        """The latest version that was seen of the resource under `path`; 0 before any."""
        return self._highest.get(collection(path), 0)

    def observe(self, path: str, version: str) -> None:
        """A version was seen: the store has reached it."""
        if version.isdecimal():
            key, number = collection(path), int(version)
            if number > self._highest.get(key, 0):
                self._highest[key] = number

    def missing(self) -> list[str]:
        """What keeps a service from being ready: lines for /readyz."""
        return [str(self._error)] if self._error is not None else []

    def check(self) -> None:
        """Nothing may be sent once versions went back.

        Raises:
            RewoundError: they did.
        """
        if self._error is not None:
            raise self._error

    async def wait_rewound(self) -> None:
        """Wait until versions go back, which ends the process.

        Raises:
            RewoundError: they did.
        """
        await self._rewind_seen.wait()
        self.check()

    def record_rewind(self, verb: str, path: str, version: str, known: str) -> RewoundError:
        """Note that `version` came after `known`; returns the error that says so."""
        if self._error is None:
            text = f"version {version} after {known}: restored from a backup?"
            self._error = RewoundError(verb, path, reason="Rewound", message=text)
            self._rewind_seen.set()
            self.on_rewind()
        return self._error

    def check_list(
        self, path: str, params: Mapping[str, str], version: str, min_version: int
    ) -> None:
        """A list came: it is at least as new as what was seen before it was asked for.

        Args:
            path: of the collection.
            params: its query.
            version: of the list.
            min_version: the latest version that was seen before.

        Raises:
            RewoundError: it is not.
        """
        if "resourceVersion" in params or not version.isdecimal():
            return
        if int(version) < min_version:
            raise self.record_rewind("GET", path, version, str(min_version))
        self.observe(path, version)

    def check_write(
        self, verb: str, path: str, answer: bytes, min_version: int, body: bytes | None
    ) -> None:
        """A write was answered: if it changed anything, it has a later version than any before.

        Raises:
            RewoundError: it has an earlier one.
        """
        version = version_in(answer)
        if not version.isdecimal():
            return
        if int(version) <= min_version:
            # A write that changes nothing is answered with the object as it is.
            precondition = "0" if verb == "POST" else precondition_version(body)
            if precondition and precondition != version and int(version) < min_version:
                raise self.record_rewind(verb, path, version, str(min_version))
            return
        self.observe(path, version)

    def check_read(self, path: str, answer: bytes, known: str) -> None:
        """An object was read live: it is no earlier than it was known to be.

        Raises:
            RewoundError: it is.
        """
        version = version_in(answer)
        if version.isdecimal() and known.isdecimal() and int(version) < int(known):
            raise self.record_rewind("GET", path, version, known)
