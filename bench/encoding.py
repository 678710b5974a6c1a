"""Size and time of an encoded assignment of many domains, beside the one-slice form.

Run: python -m bench.encoding [--domains N] [--rounds N]; exit code 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from rackgate.topology.assignment import TopologyAssignment, decode, encode
from rackgate.topology.assignment_slices import common_prefix

DOMAINS: Final = 100_000
STORE_BYTES: Final = 1_572_864  # of one object, unless the store is told otherwise
AIM_BYTES: Final = 1_100_000  # of every style whose names carry no more than a number says
FREE: Final = frozenset({"suffix by rack", "random 63"})  # names that no slices make short enough
WIDTH: Final = 118  # of the table, also where nobody looks
SEED: Final = 20_251_121
_HEX: Final = "0123456789abcdef"
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


def _generated(number: int, noise: random.Random) -> Iterator[str]:
    """Groups of 1,000 with a hash each, hosts with four random letters."""
    pool = ""
    for index in range(number):
        if index % 1000 == 0:
            group = "".join(noise.choices(_HEX, k=8))
            pool = f"gke-train-pool-{index // 5000:02}-{group}"
        yield f"{pool}-{''.join(noise.choices(_LETTERS, k=4))}"


STYLES: Final[dict[str, Callable[[int, random.Random], Iterator[str]]]] = {
    "numbered": lambda number, _: (f"n{i:06}" for i in range(number)),
    "unpadded": lambda number, _: (f"node-{i}" for i in range(number)),
    "block-rack-host": lambda number, _: (
        f"b{i // 4096}-r{i // 16 % 256}-h{i % 16}" for i in range(number)
    ),
    "pool and hash": _generated,
    "by address": lambda number, _: (
        f"ip-10-{i >> 16}-{i >> 8 & 255}-{i & 255}.eu-west-1.compute.internal"
        for i in range(number)
    ),
    "suffix by rack": lambda number, _: (
        f"n{i % 16:02}.rack-{i // 16:04}.dc1.example" for i in range(number)
    ),
    "random 63": lambda number, noise: (
        "".join(noise.choices(_LETTERS, k=63)) for _ in range(number)
    ),
}


def one_slice(names: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    """The form without cuts."""
    head = common_prefix(names)
    rests = [name[len(head) :] for name in names]
    tail = common_prefix([rest[::-1] for rest in rests])[::-1]
    roots = [rest[: len(rest) - len(tail)] for rest in rests]
    alike = len(set(counts)) == 1
    return {
        "levels": ["kubernetes.io/hostname"],
        "slices": [
            {
                "domainCount": len(names),
                "valuesPerLevel": [
                    {"individual": {"prefix": head, "suffix": tail, "roots": roots}}
                ],
                "podCounts": {"universal": counts[0]} if alike else {"individual": counts},
            }
        ],
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes, slices, and CPU milliseconds of one assignment."""

    whole: int
    size: int
    slices: int
    encode_ms: float
    whole_ms: float
    decode_ms: float


def best_ms(call: Callable[[], object], rounds: int) -> float:
    """CPU milliseconds of a call, the best of several."""
    best = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        call()
        best = min(best, (time.process_time() - before) * 1e3)
    return best


def measured(names: Sequence[str], counts: Sequence[int], rounds: int) -> Figures:
    """Figures of one list of hosts."""
    domains = tuple(((name,), count) for name, count in zip(names, counts, strict=True))
    assignment = TopologyAssignment(("kubernetes.io/hostname",), domains)
    wire, whole = encode(assignment), one_slice(names, counts)
    if decode(wire) != assignment or decode(whole) != assignment:
        raise AssertionError("decoding gives something else back")
    return Figures(
        whole=len(msgspec.json.encode(whole)),
        size=len(msgspec.json.encode(wire)),
        slices=len(wire["slices"]),
        encode_ms=best_ms(lambda: encode(assignment), rounds),
        whole_ms=best_ms(lambda: one_slice(names, counts), rounds),
        decode_ms=best_ms(lambda: decode(wire), rounds),
    )


def _row(style: str, counts: str, found: Figures) -> list[str]:
    return [
        style,
        counts,
        f"{found.whole:,}",
        f"{found.size:,}",
        f"{found.size / found.whole:.2f}",
        str(found.slices),
        f"{found.whole_ms:.0f}",
        f"{found.encode_ms:.0f}",
        f"{found.decode_ms:.0f}",
        f"{found.size / STORE_BYTES:.0%}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domains", type=int, default=DOMAINS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.domains:,} hosts in one assignment")
    for title in ("names", "pods", "one slice B", "slices B", "ratio", "slices"):
        table.add_column(title, justify="right")
    for title in ("one slice ms", "encode ms", "decode ms", f"of {STORE_BYTES:,} B"):
        table.add_column(title, justify="right")
    missed_targets = []
    for style, make in STYLES.items():
        noise = random.Random(SEED)
        names = list(dict.fromkeys(make(arguments.domains, noise)))
        for title, counts in (
            ("equal", [8] * len(names)),
            ("mixed", [noise.randint(1, 8) for _ in names]),
        ):
            found = measured(names, counts, arguments.rounds)
            table.add_row(*_row(style, title, found))
            if found.size > found.whole:
                missed_targets.append(
                    f"{style}, {title}: {found.size:,} B, one slice {found.whole:,} B"
                )
            if style not in FREE and found.size > AIM_BYTES:
                missed_targets.append(
                    f"{style}, {title}: {found.size:,} B, the aim is {AIM_BYTES:,} B"
                )
    console = Console(width=WIDTH)
    console.print(table)
    for line in missed_targets:
        console.print(f"MISSED {line}")
    return int(bool(missed_targets))


if __name__ == "__main__":
    sys.exit(main())
