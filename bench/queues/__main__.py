"""Queues that share: cohorts, borrowing and preemption, with and without a topology.

- load: Kueue's own load on a real API server, compared with the same writes undecided.
- decide: a scheduling cycle alone, against the number of queues, pending Workloads and nodes.
- pending: what one change costs among pending Workloads that are kept from plan to plan.
- preempt: a cycle that chooses preemption targets among many candidates.
- backfill: a StrictFIFO queue with and without backfill, in simulated time.
- disruption: what preemption for a rack stops, with RackgateSmallestDisruption and without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measuring.world import quiet
from bench.queues import backfill, decide, disruption, load, pending, preempt

PARTS = {
    "load": load,
    "decide": decide,
    "pending": pending,
    "preempt": preempt,
    "backfill": backfill,
    "disruption": disruption,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.queues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for name, module in PARTS.items():
        part = parts.add_parser(
            name,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(part)
        part.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    arguments = parser.parse_args(argv)
    quiet()
    figures, holds = PARTS[arguments.part].run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
