"""An explanation for a user with rights in one namespace. Pure.

It keeps everything about the cluster that decides: domains, what is free in them, quota and the
position. Names of Workloads and pods of other namespaces are replaced, wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    return with_names_replaced(found, _foreign(msgspec.to_builtins(found), namespace), HIDDEN)


def with_names_replaced(found: Explanation, names: Iterable[str], by: str) -> Explanation:
    """The explanation with another text for these names, wherever they stand."""
    hidden = sorted(set(names), key=len, reverse=True)
    if not hidden:
        return found
    either = "|".join(map(re.escape, hidden))
    pattern = re.compile(rf"(?<![-.a-z0-9])(?:{either})(?![-.a-z0-9])")
    return msgspec.convert(_replaced(msgspec.to_builtins(found), pattern, by), Explanation)


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


def _replaced(value: Any, pattern: re.Pattern[str], by: str) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda _: by, value)
    if isinstance(value, list | tuple):
        return [_replaced(entry, pattern, by) for entry in value]
    if isinstance(value, dict):
        return {key: _replaced(entry, pattern, by) for key, entry in value.items()}
    return value
