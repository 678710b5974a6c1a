"""Jobs to bound pods, against two baselines on the same control plane in the same run.

- plain: the same Jobs without a queue and without gates: what kube-scheduler and KWOK alone do.
- limit: Jobs whose pods carry a foreign gate, released by bare patches as fast as they appear:
  what any gate-based way can reach at best that sends pods to hosts by their label alone.
- rackgate: queued Jobs with a required rack.

The three take turns over several rounds, each in every place of the order; the ratio is taken
per round and its median quoted. After each round of ours every Job must be bound whole, in one
rack, each pod where its rank belongs. Exit code 1 when a Job is not, when the ratio is below the
floor, or when it lost a third of its record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.measuring import floors
from bench.measuring.figures import evaluate_targets, foreign_share, summary, table
from bench.measuring.flapping import flapping
from bench.measuring.processes import pss_mib
from bench.measuring.rounds import Observer, Round, play
from bench.measuring.world import (
    GATE,
    MODES,
    Size,
    leases_lost,
    node_name,
    playground,
    prepare,
    quiet,
    say,
    sweep,
)
from bench.placed import look
from rackgate.kube.client import Client
from tests.support.objects import HOST
from tests.support.playground import SERVICES, Playground

WARM_UP_JOBS = 10
SECTION = "jobs_to_bound"
LARGE = {"nodes": 2_560, "jobs": 120, "pods": 64, "limit": 900.0}


def describe(turn: int, one: Round) -> str:
    """A line about one round."""
    marks = "  ".join(f"{name} {at:.1f}" for name, at in one.marks_s.items())
    return (
        f"  round {turn}  {one.mode:9}{one.rate:7.1f} pods/s   last at s: {marks}"
        f"   foreign {foreign_share(one):.0%}"
    )


async def round_of(
    client: Client, mode: str, size: Size, pids: dict[str, int], *, limit_s: float, flap: bool
) -> tuple[Round, list[str]]:
    """Play one round, nodes flapping or not; returns it and what is not where it belongs."""
    observer = Observer(size.total, GATE)
    nodes = [node_name(number) for number in range(size.nodes)] if flap else []
    async with flapping(client, nodes) as flaps:
        one = await play(client, mode, size, pids, limit_s, observer=observer)
    if flap:
        say(f"           nodes went away {flaps.count} times")
    if mode != "rackgate":
        return one, []
    wrong, replaced = await look(client, observer.assigned, jobs=size.jobs, pods=size.pods)
    if replaced:
        say(f"           {replaced} Jobs had a node replaced")
    return one, wrong


@dataclass
class Measured:
    """All rounds, what went wrong in them, and memory after the last round of ours in MiB."""

    rounds: list[Round] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)


async def measure(arguments: argparse.Namespace, started: Playground) -> Measured:
    """All rounds of all modes."""
    size = Size(arguments.nodes, arguments.rack, arguments.jobs, arguments.pods)
    pids = {name: found["pid"] for name, found in started.components().items()}
    services = {name: pid for name, pid in pids.items() if name.rpartition("-")[0] in SERVICES}
    found = Measured()
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
                one, wrong = await round_of(
                    client, mode, size, pids, limit_s=arguments.limit, flap=arguments.flap
                )
                say(describe(turn + 1, one))
                found.rounds.append(one)
                found.wrong += wrong
                if mode == "rackgate":
                    found.memory = pss_mib(services)
                await sweep(client, pids)
    return found


def ratio_name(arguments: argparse.Namespace) -> str:
    """What this run's ratio is recorded as."""
    under = ", nodes flapping" if arguments.flap else ""
    sizes = f"{arguments.nodes} nodes, {arguments.jobs} x {arguments.pods}"
    gates = f", {arguments.feature_gates}" if arguments.feature_gates else ""
    return f"rackgate / limit, {sizes}{under}{gates}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="2,560 nodes, 120 Jobs x 64 pods")
    parser.add_argument("--flap", action="store_true", help="let nodes come and go under the load")
    parser.add_argument("--nodes", type=int, default=640)
    parser.add_argument("--rack", type=int, default=32, help="nodes of a rack")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--pods", type=int, default=32, help="pods of a Job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240, help="seconds a round may take")
    parser.add_argument(
        "--feature-gates", default="", metavar="NAME=BOOL,...", help="of the services, in all modes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    floors.add_options(parser)
    if "--large" in sys.argv:
        parser.set_defaults(**LARGE)
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    gates = tuple(filter(None, arguments.feature_gates.split(",")))
    with playground(gates=gates) as started:
        measured = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    found = {**summary(measured.rounds, measured.memory), "leases_lost": lost}
    if arguments.json:
        document = {
            "summary": found,
            "wrong": measured.wrong,
            "rounds": [asdict(one) for one in measured.rounds],
        }
        arguments.json.write_text(json.dumps(document, indent=1))
    lines, holds = evaluate_targets(found)
    ratio = {ratio_name(arguments): found["rackgate_against"]["limit"]["median"]}
    said, kept = floors.judge(ratio, SECTION, arguments)
    wrong = measured.wrong or ["every pod of ours is bound, in its Job's one rack, by its rank"]
    say("\n".join([*table(found), "", *lines, *wrong, *said]))
    return 0 if holds and kept and not measured.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
