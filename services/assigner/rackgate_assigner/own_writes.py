"""Which versions our own writes have outdated, until the watch shows the newer ones."""

from __future__ import annotations

from rackgate.wire.core import Meta


class OwnWrites:
    """Versions that our own writes have outdated.

    Deciding by a version that we changed ourselves can only end in a conflict.
    """

    def __init__(self) -> None:
        self._outdated: dict[tuple[str, str], str] = {}

    def behind(self, kind: str, meta: Meta) -> bool:
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
