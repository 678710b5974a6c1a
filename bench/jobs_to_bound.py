"""Jobs to bound pods, against two baselines on the same control plane in the same run.

- plain: the same Jobs without a queue and without gates: what kube-scheduler and KWOK alone do.
- limit: Jobs whose pods carry a foreign gate, released by bare patches as fast as they appear:
  what any gate-based way can reach at best.
- rackgate: queued Jobs with a required rack.

The three take turns over several rounds, each in every place of the order; the ratio is taken
per round and its median quoted. Exit code 1 when it is below the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.figures import foreign_share, summary, table, verdict
from bench.processes import pss_mib
from bench.rounds import Round, play
from bench.world import MODES, Size, leases_lost, playground, prepare, quiet, say, sweep
from tests.support.objects import HOST
from tests.support.playground import SERVICES, Playground

WARM_UP_JOBS = 10


def describe(turn: int, one: Round) -> str:
    """A line about one round."""
    marks = "  ".join(f"{name} {at:.1f}" for name, at in one.marks_s.items())
    return (
        f"  round {turn}  {one.mode:9}{one.rate:7.1f} pods/s   last at s: {marks}"
        f"   foreign {foreign_share(one):.0%}"
    )


async def measure(
    arguments: argparse.Namespace, started: Playground
) -> tuple[list[Round], dict[str, float]]:
    """All rounds of all modes, and the services' memory after the last round of ours."""
    size = Size(arguments.nodes, arguments.rack, arguments.jobs, arguments.pods)
    pids = {name: found["pid"] for name, found in started.components().items()}
    services = {name: pid for name, pid in pids.items() if name.rpartition("-")[0] in SERVICES}
    rounds: list[Round] = []
    memory: dict[str, float] = {}
    async with started.client() as client:
        await prepare(client, size)
        say(f"{size.nodes} nodes ({HOST} lowest), {size.jobs} Jobs x {size.pods} pods, warming up")
        few = Size(size.nodes, size.rack, min(WARM_UP_JOBS, size.jobs), size.pods)
        for mode in MODES:
            await play(client, mode, few, pids, arguments.limit)
            await sweep(client, pids)
        for turn in range(arguments.rounds):
            for place in range(len(MODES)):
                mode = MODES[(turn + place) % len(MODES)]
                one = await play(client, mode, size, pids, arguments.limit)
                say(describe(turn + 1, one))
                rounds.append(one)
                if mode == "rackgate":
                    memory = pss_mib(services)
                await sweep(client, pids)
    return rounds, memory


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=640)
    parser.add_argument("--rack", type=int, default=32, help="nodes of a rack")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--pods", type=int, default=32, help="pods of a Job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=180, help="seconds a round may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 below the floor."""
    arguments = parse()
    quiet()
    with playground() as started:
        rounds, memory = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    found = {**summary(rounds, memory), "leases_lost": lost}
    if arguments.json:
        document = {"summary": found, "rounds": [asdict(one) for one in rounds]}
        arguments.json.write_text(json.dumps(document, indent=1))
    lines, holds = verdict(found)
    say("\n".join([*table(found), "", *lines]))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
