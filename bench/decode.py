"""Cost of a pod event from the watch's line to what a service keeps, beside `json.loads`.

Run: python -m bench.decode [--events N]; exit code 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.measuring.samples import pod_event
from bench.measuring.timing import best_us
from rackgate.kube.stream import WatchEvent
from rackgate.wire.core import Pod
from rackgate_assigner import watches
from rackgate_ungater.state_machine import gated_objects as rows

EVENTS: Final = 10_000
# Times faster than `json.loads`; DESIGN's table has 5 for a view that reads ten fields.
AIMS: Final = {"ungater row": 2.0, "assigner view": 2.0}

_event = msgspec.json.Decoder(WatchEvent).decode
_whole = msgspec.json.Decoder(Pod).decode

Decode = Callable[[bytes], object]

DECODERS: Final[dict[str, Decode]] = {
    "json.loads": json.loads,
    "event alone": _event,
    "wire.core.Pod": lambda line: _whole(_event(line).object),
    "assigner view": lambda line: watches.decode_pod(_event(line).object),
    "ungater row": lambda line: rows.decode_pod(_event(line).object),
}


def over(decode: Decode, lines: list[bytes]) -> Callable[[], None]:
    """A call that decodes all lines and keeps nothing."""

    def call() -> None:
        for line in lines:
            decode(line)

    return call


def kept(decode: Decode, lines: list[bytes]) -> tuple[float, float]:
    """Bytes that one result holds, and milliseconds of a full collection with all of them."""
    held = [decode(line) for line in lines]  # tables that all results share have grown then
    del held
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    # Each line is a copy: a result that keeps its line alive has to account for it.
    held = [decode(bytes(bytearray(line))) for line in lines]
    size = (tracemalloc.get_traced_memory()[0] - before) / len(held)
    tracemalloc.stop()
    gc.collect()
    started = time.process_time()
    gc.collect()
    return size, (time.process_time() - started) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    lines = [pod_event(index) for index in range(parser.parse_args().events)]
    mean = sum(map(len, lines)) / len(lines)
    times = best_us({name: over(decode, lines) for name, decode in DECODERS.items()}, len(lines))
    title = f"{len(lines):,} pod events of {mean / 1e3:.1f} KB"
    table = Table(title=title)
    for name in ("decoded to", "us / event", "json.loads / this", "bytes kept", "full GC ms"):
        table.add_column(name, justify="right")
    missed_targets = []
    for name, decode in DECODERS.items():
        ratio = times["json.loads"] / times[name]
        size, pause = kept(decode, lines) if name != "event alone" else (0.0, 0.0)
        memory = (f"{size:,.0f}", f"{pause:.1f}") if size else ("", "")
        table.add_row(name, f"{times[name]:.1f}", f"{ratio:.1f}x", *memory)
        if ratio < AIMS.get(name, 0.0):
            missed_targets.append(f"{name}: {ratio:.1f}x json.loads, the aim is {AIMS[name]:g}x")
    console = Console()
    console.print(table)
    for line in missed_targets:
        console.print(f"MISSED {line}")
    return int(bool(missed_targets))


if __name__ == "__main__":
    sys.exit(main())
