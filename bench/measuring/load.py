"""Requests at a steady rate over kept TLS connections, from a process of its own.

Open loop: a request is due at its time whether or not others were answered, and is timed from
then, so waiting for a free connection behind a slow answer counts. Reads one `Order` as JSON from
its input and prints one `Outcome`; `Load` starts several that share a rate.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

import msgspec

from rackgate.certificates.tls import client_context

DUE_AHEAD_S: Final = 0.5
SPARE_S: Final = 60.0


class Order(msgspec.Struct, frozen=True):
    """What one process is to send.

    Attributes:
        authority: PEM that signed the server's certificate.
        bodies: sent in turns.
        rate: requests per second of this process.
        begin: wall clock time of the first one.
        connections: kept open all the time.
        timeout_s: after which a request counts as timed out.
    """

    host: str
    port: int
    path: str
    authority: str
    bodies: tuple[str, ...]
    rate: float
    seconds: float
    begin: float
    connections: int = 8
    timeout_s: float = 5.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        took_ms: of each answered request, from when it was due.
        late_ms: how long after its time each was begun: the generator's own fault.
        timed_out: requests without an answer in time.
        failed: answers other than an allowing 200, and broken connections.
        cpu_s: used by the process while it sent.
    """

    took_ms: list[float]
    late_ms: list[float]
    timed_out: int
    failed: int
    cpu_s: float


class _BadAnswerError(Exception):
    pass


class Connection:
    """One kept connection, one request at a time. No more HTTP than a webhook speaks."""

    def __init__(self, order: Order, context: ssl.SSLContext) -> None:
        self._order, self._context = order, context
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, request: bytes) -> None:
        """Send a whole request and read its whole answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._order.host, self._order.port, ssl=self._context, server_hostname="localhost"
            )
        assert self._reader is not None
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        body = await self._reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.drop()
        if not head.startswith(b"HTTP/1.1 200") or b'"allowed":true' not in body.replace(b" ", b""):
            raise _BadAnswerError(f"{head[:40]!r} {body[:200]!r}")

    def drop(self) -> None:
        """Forget the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Generator:
    """Sends what an order says."""

    def __init__(self, order: Order) -> None:
        context = client_context(order.authority.encode())
        self._order = order
        self._all = [Connection(order, context) for _ in range(order.connections)]
        self._free: asyncio.Queue[Connection] = asyncio.Queue()
        self._requests = [_request(order, body.encode()) for body in order.bodies]
        self._took: list[float] = []
        self._late: list[float] = []
        self._timed_out = self._failed = 0

    async def run(self) -> Outcome:
        order = self._order
        # Connections and their handshakes are not timed: an API server keeps them, too.
        async with asyncio.timeout(SPARE_S):
            await asyncio.gather(*(one.post(self._requests[0]) for one in self._all))
        for one in self._all:
            self._free.put_nowait(one)
        begin = time.perf_counter() + max(0.0, order.begin - time.time())
        cpu_s = time.process_time()
        async with asyncio.TaskGroup() as group:
            for number in range(int(order.rate * order.seconds)):
                due = begin + number / order.rate
                if (wait_s := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(self._one(due, self._requests[number % len(self._requests)]))
        cpu_s = time.process_time() - cpu_s
        for one in self._all:
            one.drop()
        return Outcome(self._took, self._late, self._timed_out, self._failed, cpu_s)

    async def _one(self, due: float, request: bytes) -> None:
        self._late.append((time.perf_counter() - due) * 1e3)
        connection: Connection | None = None
        left_s = due + self._order.timeout_s - time.perf_counter()
        try:
            async with asyncio.timeout(left_s):
                connection = await self._free.get()
                await connection.post(request)
        except TimeoutError:
            self._timed_out += 1
            self._give_back(connection, broken=True)
        except (OSError, EOFError, ValueError, KeyError, _BadAnswerError) as error:
            if not self._failed:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            self._failed += 1
            self._give_back(connection, broken=True)
        else:
            self._took.append((time.perf_counter() - due) * 1e3)
            self._give_back(connection, broken=False)

    def _give_back(self, connection: Connection | None, *, broken: bool) -> None:
        if connection is None:
            return
        if broken:
            connection.drop()
        self._free.put_nowait(connection)


def _request(order: Order, body: bytes) -> bytes:
    head = (
        f"POST {order.path} HTTP/1.1\r\nHost: localhost:{order.port}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json, */*\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Several outcomes as one."""
    return Outcome(
        [ms for one in outcomes for ms in one.took_ms],
        [ms for one in outcomes for ms in one.late_ms],
        sum(one.timed_out for one in outcomes),
        sum(one.failed for one in outcomes),
        sum(one.cpu_s for one in outcomes),
    )


class Load:
    """Processes that send one order's rate together; used as a context they never outlive it.

    with Load(order, processes=2) as load:
        outcome = load.wait()
    """

    def __init__(self, order: Order, processes: int) -> None:
        self._order, self._count = order, processes
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Load:
        rate = self._order.rate / self._count
        begin = time.time() + DUE_AHEAD_S + 1.0
        for number in range(self._count):
            # Each sends in the gaps of the others.
            own = msgspec.structs.replace(
                self._order, rate=rate, begin=begin + number / self._order.rate
            )
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.measuring.load"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._children.append(child)
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(own))
            child.stdin.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    def wait(self) -> Outcome:
        """Wait for all of them; every wait of theirs has a limit.

        Raises:
            RuntimeError: one failed, for instance because nobody listens.
        """
        outcomes = []
        for child in self._children:
            assert child.stdout is not None
            said = child.stdout.read()
            if child.wait() != 0:
                raise RuntimeError(f"a generator ended with exit code {child.returncode}")
            outcomes.append(msgspec.json.decode(said, type=Outcome))
        return pooled(outcomes)


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    outcome = asyncio.run(Generator(order).run())
    sys.stdout.buffer.write(msgspec.json.encode(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
