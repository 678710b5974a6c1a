"""What our own writes changed, until the watch shows it."""

from __future__ import annotations

from typing import Final

from rackgate.wire.core import Meta

# A watch shows what was created within moments. What it never shows, because it went again while
# the watch was away, is created anew after this.
ASSUMED_FOR_S: Final = 10.0


class AssumedWrites:
    """Versions that our own writes have outdated.

    Deciding by a version that we changed ourselves can only end in a conflict.
    """

    def __init__(self) -> None:
        self._outdated: dict[tuple[str, str], str] = {}

    def is_stale(self, kind: str, meta: Meta) -> bool:
        """Whether the watch still shows the version that our last write changed."""
        return self._outdated.get((kind, meta.key)) == meta.resource_version

    def written(self, kind: str, judged: Meta, answer: Meta) -> None:
        """Our write was answered: what it was judged by is outdated, if it changed anything."""
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


class AssumedCreations:
    """Owners whose object was created, and has yet to appear in the watch.

    Creating it again can only be answered with AlreadyExists. Expected before the request is sent,
    so that the watch may show it before the answer comes.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def assume(self, uid: str, now: float) -> None:
        """An object of this owner is about to be created, at this monotonic time."""
        self._until[uid] = now + ASSUMED_FOR_S

    def wait_s(self, uid: str, now: float) -> float:
        """Seconds for which nothing may be created for this owner; 0 for none."""
        return max(0.0, self._until.get(uid, now) - now)

    def forget(self, uid: str) -> None:
        """The object was seen, was not created, or its owner is gone."""
        self._until.pop(uid, None)

    def clear(self) -> None:
        """Forget all."""
        self._until.clear()
