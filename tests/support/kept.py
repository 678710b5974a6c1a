"""How much an object keeps: the entries of every container that hangs on it, by path."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

_OURS = "rackgate"
_CONTAINERS = (dict, list, set, frozenset, deque, tuple)


def kept(root: object) -> Counter[str]:
    """Entries of all containers below an object, added up for each path.

    A path names classes and attributes, no keys: `Assigner.cache._rows[]`. Only objects of our
    packages are looked into, and each one once.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[object, str]] = deque([(root, type(root).__name__)])
    alive: list[object] = []  # what properties make up must keep its id
    while left:
        item, path = left.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        alive.append(item)
        if isinstance(item, _CONTAINERS):
            found[path] += len(item)
            values = [*item.keys(), *item.values()] if isinstance(item, dict) else list(item)
            left.extend((value, f"{path}[]") for value in values if _is_looked_into(value))
        else:
            left.extend(
                (value, f"{path}.{name}")
                for name, value in _attributes(item)
                if _is_looked_into(value)
            )
    return found


def grown(before: Mapping[str, int], after: Mapping[str, int], least: int) -> dict[str, int]:
    """Paths that have at least so many entries more."""
    more = {path: count - before.get(path, 0) for path, count in after.items()}
    return {path: count for path, count in sorted(more.items()) if count >= least}


def _is_looked_into(value: object) -> bool:
    if isinstance(value, _CONTAINERS):
        return True
    if isinstance(value, type | asyncio.Future):
        return False
    return type(value).__module__.partition(".")[0].startswith(_OURS)


def _attributes(item: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(item, "__dict__", {}).items()
    for kind in type(item).__mro__:
        for name in getattr(kind, "__slots__", ()) or ():
            if name not in ("__dict__", "__weakref__") and hasattr(item, name):
                yield name, getattr(item, name)
