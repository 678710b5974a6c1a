"""Assumed writes: what our own writes changed, until the watch shows it.

Three kinds of writes are assumed. A status write gives an object a value that is charged before
the watch shows it (`AssumedStatus`). Any write makes the version that was decided on outdated
(`AssumedWrites`). A creation makes an object that no watch shows yet (`AssumedCreations`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from rackgate.wire.core import Meta

T = TypeVar("T")

# A watch shows a created object within moments. If it does not, because the object was deleted
# while the watch was disconnected, the object is created again after this time.
ASSUMED_FOR_S: Final = 10.0


def _reached(seen: str, written: str) -> bool:
    """Whether a watch that shows version `seen` has reached version `written`.

    Versions of one object are decimal numbers that grow (KEP-5504); others are only compared
    for equality.
    """
    if seen.isdecimal() and written.isdecimal():
        return int(seen) >= int(written)
    return seen == written


@dataclass(frozen=True, slots=True)
class AssumedStatus(Generic[T]):
    """A value that a status write gives an object.

    Attributes:
        uid: of the object: an object with the same name that is created later is another one.
        judged: resourceVersion of the decision.
        written: resourceVersion in the response to the write, "" while unknown.
    """

    value: T
    uid: str
    judged: str
    written: str = ""

    def with_written_version(self, resource_version: str) -> AssumedStatus[T]:
        """The same, with the version in the response to the write."""
        return replace(self, written=resource_version)

    def is_superseded_by(self, uid: str, resource_version: str, *, shown: bool) -> bool:
        """Whether the watch is used from now on; `shown`: it shows such a value."""
        if uid != self.uid or (shown and resource_version != self.judged):
            return True
        return bool(self.written) and _reached(resource_version, self.written)


class AssumedWrites:
    """Versions that our own writes have made outdated.

    A decision on such a version can only end in a conflict.
    """

    def __init__(self) -> None:
        self._outdated: dict[tuple[str, str], str] = {}

    def is_stale(self, kind: str, meta: Meta) -> bool:
        """Whether the watch still shows the version that our last write changed."""
        return self._outdated.get((kind, meta.key)) == meta.resource_version

    def written(self, kind: str, judged: Meta, answer: Meta) -> None:
        """Record the response to our write: if it changed anything, its version is outdated."""
        if judged.resource_version != answer.resource_version:
            self._outdated[kind, judged.key] = judged.resource_version
        else:
            self._outdated.pop((kind, judged.key), None)

    def forget(self, kind: str, key: str) -> None:
        """The object is gone."""
        self._outdated.pop((kind, key), None)

    def clear(self) -> None:
        """Forget all."""
        self._outdated.clear()


class AssumedCreations(Generic[T]):
    """Objects that were created, by owner and name, and are not in the watch yet.

    Creating one again would only return AlreadyExists. They are assumed before the request is
    sent, because the watch may show the object before the response arrives.
    """

    def __init__(self, for_s: float | None = None) -> None:
        self._for_s = ASSUMED_FOR_S if for_s is None else for_s
        self._by_owner: dict[str, dict[str, tuple[float, T | None]]] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def assume(self, owner: str, now: float, name: str = "", item: T | None = None) -> None:
        """An object of this owner is about to be created, at this monotonic time."""
        self._by_owner.setdefault(owner, {})[name] = (now + self._for_s, item)

    def wait_s(self, owner: str, now: float) -> float:
        """Seconds for which no object may be created for this owner; 0 for none."""
        found = self._by_owner.get(owner, {}).values()
        return max((until - now for until, _ in found if until > now), default=0.0)

    def items(self, owner: str, now: float) -> list[T]:
        """Objects that were created for this owner and are not in the watch yet."""
        found = self._by_owner.get(owner, {}).values()
        return [item for until, item in found if item is not None and until >= now]

    def forget(self, owner: str, name: str = "") -> None:
        """An object was seen or not created."""
        names = self._by_owner.get(owner, {})
        names.pop(name, None)
        if not names:
            self._by_owner.pop(owner, None)

    def forget_all(self, owner: str) -> None:
        """The owner is gone."""
        self._by_owner.pop(owner, None)

    def clear(self) -> None:
        """Forget all."""
        self._by_owner.clear()
