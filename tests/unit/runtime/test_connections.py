"""Connections of servers: how they are closed."""

from __future__ import annotations

import asyncio

from rackgate.runtime.serving.connections import abort


class ClosedTwice(asyncio.Transport):
    """TLS, as Python 3.11.2 leaves it after the second `close`."""

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")


class Open(asyncio.Transport):
    """A connection that can be closed."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_a_connection_that_was_closed_twice_is_closed() -> None:
    abort(ClosedTwice())


def test_an_open_connection_is_closed() -> None:
    transport = Open()
    abort(transport)
    assert transport.aborted
