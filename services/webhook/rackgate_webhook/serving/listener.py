"""A listening socket that can be closed without a caller noticing.

What waits in the queue of a listening socket is reset when it is closed, also where other
processes listen on the same port. So before the end it goes deaf: the kernel drops requests for
new connections (callers repeat them after a second, and then another process or nobody is
there), connections that had begun are accepted, and only an empty queue is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import ssl
import struct
import sys
from typing import Final

import structlog

from rackgate.runtime.tasks import start
from rackgate_webhook.serving.connections import CLOSED, Connection, Connections

BACKLOG: Final = 1024
HANDSHAKE_S: Final = 4.0
# Longer than a packet of a caller takes to come back to us.
LAST_PACKET_WAIT_S: Final = 0.05
EXHAUSTED_PAUSE_S: Final = 0.2
FULL_PAUSE_S: Final = 0.02
CLOSE_S: Final = 2.0

log = structlog.get_logger()

_SO_ATTACH_FILTER: Final = 26
# Classic BPF on the TCP header: drop what has SYN and not ACK, pass everything else.
_DROP_SYN_FILTER: Final = (
    (0x30, 0, 0, 13),  # flags
    (0x54, 0, 0, 0x12),  # of them SYN and ACK
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)
_EXHAUSTED_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def drop_new_connections(listening: socket.socket) -> bool:
    """Let the kernel drop requests for new connections; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN_FILTER)
    )
    header = struct.pack("HL", len(_DROP_SYN_FILTER), ctypes.addressof(program))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
    except OSError as error:
        log.warning("listener_filter_failed", error=str(error))
        return False
    return True


class Listener:
    """Accepts connections, and hands those with a finished handshake to a server.

    Attributes:
        port: that it listens on.
    """

    def __init__(self, listening: socket.socket, server: Connections, context: ssl.SSLContext):
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._server = server
        self._context = context
        self._closed = False
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, host: str, port: int, server: Connections, context: ssl.SSLContext, *, shared: bool
    ) -> Listener:
        """Listen and accept.

        Args:
            host: name or address.
            port: 0 for the kernel's choice.
            server: who gets the connections.
            context: holds a certificate.
            shared: other processes may listen on the same port.

        Raises:
            OSError: the address is in use, or is not of this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listening = socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=shared
        )
        listening.setblocking(False)
        listener = cls(listening, server, context)
        listener._resume()
        return listener

    async def close(self) -> None:
        """Accept what has begun, close, and wait until handshakes under way are done."""
        if not self._closed:
            await self._drain_and_close()
        while self._handshakes:
            await asyncio.wait(self._handshakes)

    async def _drain_and_close(self) -> None:
        self._closed = True
        if drop_new_connections(self._listening):
            await asyncio.sleep(LAST_PACKET_WAIT_S)
        self._pause()
        while self._accept():
            pass
        # No await between the last look into the queue and this.
        self._listening.close()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept_all)

    def _pause(self, resume_after_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self._resuming is not None:
            self._resuming.cancel()
        loop.remove_reader(self._listening)
        if resume_after_s is not None and not self._closed:
            self._resuming = loop.call_later(resume_after_s, self._resume)

    def _accept_all(self) -> None:
        for taken in range(BACKLOG):
            # Only the first is known to wait: no room is made for nobody.
            if (taken and self._server.is_full) or not self._accept_if_room():
                return

    def _accept_if_room(self) -> bool:
        """Accept one connection if there is room; whether there was one."""
        if self._server.make_room():
            return self._accept()
        # Callers wait in the queue; answers take milliseconds.
        self._pause(resume_after_s=FULL_PAUSE_S)
        return False

    def _accept(self) -> bool:
        try:
            accepted, _ = self._listening.accept()
        except ConnectionAbortedError:
            return True  # it gave up; another may wait behind it
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _EXHAUSTED_ERRNOS:
                raise
            log.warning("connection_not_accepted", error=str(error))
            self._pause(resume_after_s=EXHAUSTED_PAUSE_S)
            return False
        accepted.setblocking(False)
        task = start(self._handshake(accepted, self._server()), "handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return True

    async def _handshake(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=CLOSE_S,
            )
        except OSError as error:  # ssl.SSLError and time-outs are of them
            CLOSED.labels(reason="handshake").inc()
            log.debug("handshake_failed", error=str(error))
        finally:
            self._server.handshaking.discard(connection)
