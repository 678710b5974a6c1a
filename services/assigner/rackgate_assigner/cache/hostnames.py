"""Which nodes carry which hostname label: as a rule one each, but nothing enforces that."""

from __future__ import annotations

from collections.abc import Iterator


class Hostnames:
    """Node names by hostname label; a set only where it is needed."""

    def __init__(self) -> None:
        self._nodes: dict[str, str | set[str]] = {}

    def add(self, host: str, name: str) -> None:
        """A node has this hostname now."""
        found = self._nodes.get(host)
        if found is None or found == name:
            self._nodes[host] = name
        elif isinstance(found, str):
            self._nodes[host] = {found, name}
        else:
            found.add(name)

    def drop(self, host: str, name: str) -> None:
        """A node has it no more."""
        found = self._nodes.get(host)
        if found == name:
            del self._nodes[host]
        elif isinstance(found, set):
            found.discard(name)
            if not found:
                del self._nodes[host]

    def nodes(self, host: str) -> Iterator[str]:
        """Names of the nodes that have it."""
        found = self._nodes.get(host)
        if isinstance(found, str):
            yield found
        elif found is not None:
            yield from found
