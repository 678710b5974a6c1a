"""New connections that wait for their caller's first byte, and for a slot.

A caller of TLS speaks first. So a silent connection costs a socket here, and no slot and no buffers
of TLS. Connections that have spoken get slots by source address, so that one address with many
connections does not keep others waiting.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Arrival:
    """A connection without a slot.

    Attributes:
        sock: does not block.
        address: source address, without the port.
        closing: closes it if the caller stays silent; None once the first byte is there.
    """

    sock: socket.socket
    address: str
    closing: asyncio.TimerHandle | None = None


class WaitingRoom:
    """Connections without a slot, by source address, the oldest first."""

    def __init__(
        self, on_spoken: Callable[[], None], on_dropped: Callable[[str], None], room: int
    ) -> None:
        """Prepare.

        Args:
            on_spoken: a connection has its first byte.
            on_dropped: a connection was closed; for the reason `silent` or `crowded`.
            room: for so many connections; each costs a socket.
        """
        self._on_spoken, self._on_dropped, self._room = on_spoken, on_dropped, room
        self._arrivals: dict[str, list[Arrival]] = {}
        self._count = 0

    def add(self, sock: socket.socket, address: str, wait_s: float) -> None:
        """Wait for the first byte, for so long at most.

        If the room is full, the address with the most connections loses one: the longest silent
        one, or else the newest.
        """
        loop = asyncio.get_running_loop()
        arrival = Arrival(sock, address)
        arrival.closing = loop.call_later(wait_s, self._drop, arrival, "silent")
        self._arrivals.setdefault(address, []).append(arrival)
        self._count += 1
        loop.add_reader(sock, self._spoken, arrival)
        if self._count > self._room:
            crowd = max(self._arrivals.values(), key=len)
            silent = (found for found in crowd if found.closing is not None)
            self._drop(next(silent, crowd[-1]), "crowded")

    def next(self, slots: Mapping[str, int]) -> Arrival | None:
        """The connection that gets the next slot; it stays here until it is removed.

        Args:
            slots: number of slots by address; an address without slots may be missing.
        """
        spoken = [
            arrival
            for crowd in self._arrivals.values()
            if (arrival := next((one for one in crowd if one.closing is None), None)) is not None
        ]
        return min(spoken, key=lambda found: slots.get(found.address, 0), default=None)

    def remove(self, arrival: Arrival) -> None:
        """It gets a slot, or it is closed."""
        self._stop_listening(arrival)
        crowd = self._arrivals[arrival.address]
        crowd.remove(arrival)
        self._count -= 1
        if not crowd:
            del self._arrivals[arrival.address]

    def clear(self) -> list[Arrival]:
        """Remove all; the oldest of each address first."""
        found = [arrival for crowd in self._arrivals.values() for arrival in crowd]
        for arrival in found:
            self.remove(arrival)
        return found

    def _spoken(self, arrival: Arrival) -> None:
        self._stop_listening(arrival)
        self._on_spoken()

    def _stop_listening(self, arrival: Arrival) -> None:
        if arrival.closing is not None:
            asyncio.get_running_loop().remove_reader(arrival.sock)
            arrival.closing.cancel()
            arrival.closing = None

    def _drop(self, arrival: Arrival, reason: str) -> None:
        self.remove(arrival)
        arrival.sock.close()
        self._on_dropped(reason)
