"""Reading whole collections of a cluster, with the number of objects shown on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import GoneError
from rackgate.wire.lists import page_items

TRIES: Final = 3
Decode = Callable[[bytes | msgspec.Raw], Any]


class Progress:
    """On a terminal, one line on stderr with the number of objects read."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._counts: dict[str, int] = {}

    def add(self, plural: str, count: int) -> None:
        """Count more objects."""
        self._counts[plural] = self._counts.get(plural, 0) + count
        if self._live:
            words = ", ".join(f"{n} {name}" for name, n in self._counts.items() if n)
            sys.stderr.write(f"\r\x1b[Kreading: {words}")
            sys.stderr.flush()

    def done(self) -> None:
        """Remove the line."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


async def list_objects(
    client: Client, kind: Resource, *, namespace: str | None = None, **params: str
) -> list[dict[str, Any]]:
    """All objects of a kind, or those of a namespace, each with its kind's name."""
    found: list[dict[str, Any]] = []
    async for page in client.list_pages(kind.path(namespace), params):
        found += [{**item, "kind": kind.kind} for item in json.loads(page).get("items") or ()]
    return found


async def list_decoded(
    client: Client,
    kind: Resource,
    decode: Decode,
    *,
    namespace: str | None = None,
    params: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """All objects of a kind, decoded one by one; starts again if the list expired."""
    for attempt in range(TRIES):
        items: list[Any] = []
        try:
            async for page in client.list_pages(kind.path(namespace), params):
                raws = page_items(page)
                items += map(decode, raws)
                if progress is not None:
                    progress.add(kind.plural, len(raws))
        except GoneError:
            if attempt == TRIES - 1:
                raise
        else:
            return items
    return []
