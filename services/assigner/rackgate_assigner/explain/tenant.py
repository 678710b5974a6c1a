"""An explanation for a user with rights in one namespace. Pure.

It keeps everything about the cluster that decides: domains, what is free in them, quota and the
position. Names of Workloads and pods of other namespaces are replaced, wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rackgate_assigner.explain.explanation import Explanation

HIDDEN: Final = "of another namespace"
# Fields that hold a name of a Workload or pod; texts mention no others.
_NAMES: Final = ("name", "workload", "value")
# A namespace has no dot, as a label key has.
_NAME: Final = re.compile(r"(?P<namespace>[a-z0-9]([-a-z0-9]*[a-z0-9])?)/[a-z0-9][-a-z0-9.]*")


def for_namespace(found: Explanation, namespace: str) -> Explanation:
    """The explanation without names of other namespaces.

    Args:
        found: the whole.
        namespace: of the Workload.
    """
    plain = msgspec.to_builtins(found)
    hidden = sorted(set(_foreign(plain, namespace)), key=len, reverse=True)
    if not hidden:
        return found
    pattern = re.compile("|".join(rf"{re.escape(name)}(?![-.a-z0-9])" for name in hidden))
    return msgspec.convert(_without(plain, pattern), Explanation)


def _foreign(value: Any, namespace: str) -> Iterator[str]:
    """Names of objects of other namespaces."""
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _foreign(entry, namespace)
    elif isinstance(value, dict):
        for key, entry in value.items():
            name = _NAME.fullmatch(entry) if key in _NAMES and isinstance(entry, str) else None
            if name is None:
                yield from _foreign(entry, namespace)
            elif name["namespace"] != namespace:
                yield entry


def _without(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(HIDDEN, value)
    if isinstance(value, list | tuple):
        return [_without(entry, pattern) for entry in value]
    if isinstance(value, dict):
        return {key: _without(entry, pattern) for key, entry in value.items()}
    return value
