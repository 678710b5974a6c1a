"""Free ports, reserved until their process listens.

A process that restarts leaves its port free for a moment. The system gives ports for outgoing
connections from 32768 on Linux and from 49152 elsewhere, and kube-proxy has 30000 to 32767 for
Services of type NodePort. So ports come from below: no one else is given one in that moment.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RANGE: Final = range(20_000, 30_000)
_TRIES: Final = 200
_POLL_S: Final = 0.02


@contextlib.contextmanager
def reserved(wanted: dict[str, int | None]) -> Iterator[dict[str, int]]:
    """Reserve one free loopback port per name while the block runs.

    A reserved port is bound with SO_REUSEADDR without listening: the system assigns it to no other
    bind(0) or connection, but a process that sets the same option can listen on it.

    Args:
        wanted: name -> preferred port, None for any.

    Yields:
        Name -> port, all different.
    """
    with contextlib.ExitStack() as held:
        ports: dict[str, int] = {}
        for name, preferred in wanted.items():
            holder = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken = preferred is None or preferred in ports.values()
            if taken or preferred is None or not _bind(holder, preferred):
                _bind_any(holder)
            ports[name] = holder.getsockname()[1]
        yield ports


def _bind(holder: socket.socket, port: int) -> bool:
    if not is_free(port):
        return False
    try:
        holder.bind((LOOPBACK, port))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise
    return True


def _bind_any(holder: socket.socket) -> None:
    # Without the option, a bind fails on a port that a reservation or a connection has.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    # By the system's chance: two processes that seed alike would try the same ports in turn.
    for port in random.SystemRandom().sample(RANGE, _TRIES):
        with contextlib.suppress(OSError):
            holder.bind((LOOPBACK, port))
            break
    else:
        holder.bind((LOOPBACK, 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def is_free(port: int) -> bool:
    """Return whether a loopback port has no listener; a reserved one counts as free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this option, so closing connections do not block them either.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def await_free(ports: Iterable[int], limit_s: float) -> list[int]:
    """Wait until every port is free; return those that are not after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    busy = [port for port in ports if not is_free(port)]
    while busy and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        busy = [port for port in busy if not is_free(port)]
    return busy
