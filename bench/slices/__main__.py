"""A job that grows and shrinks while it runs, in steps: how fast, at what cost, beside others.

An elastic Indexed Job and an elastic RayCluster go through the same sizes on one control plane
with all services, the Job controller and KubeRay, first with nothing else in the queue, then
beside Workloads that wait for quota. In turns with each, the floor: the same job without a queue,
whose pods carry a foreign gate that a bare patch takes off the moment the pod is seen. It needs no
Workload, so the rest is what slices cost. Writes are counted in the API server's audit log.

Exit code 1: after a step pods without a gate, the Workload's counts and the size differ, or a
slice is left; `rackgate invariants` finds a breach; or a ratio fell below its floor.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.measuring import floors
from bench.measuring.processes import BENCH
from bench.measuring.world import leases_lost, playground, quiet, say, sweep
from bench.slices.steps import Bench, Step
from bench.slices.world import KINDS, LIMIT, OURS, make_world, wait_beside
from bench.slices.writes import AuditLog
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from tests.support.playground import Playground

SECTION = "slices"
FULL = {"sizes": [1, 50, 200, 500, 200, 1], "others": [0, 200, 1_000], "limit": 600.0}
WARM_UP = (1, 4, 1)
SERVICES = ("assigner", "ungater")
MAKERS = {"job": "job-controller", "raycluster": "kuberay-operator"}


@dataclass
class Measured:
    """All steps, and what was wrong."""

    steps: list[Step] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def measure(arguments: argparse.Namespace, started: Playground) -> Measured:
    """All sizes of all kinds in both modes, beside ever more others."""
    found = Measured()
    pids = {name: one["pid"] for name, one in started.components().items()}
    async with started.client() as client:
        nodes = await make_world(client, max(arguments.sizes))
        bench = Bench(client, AuditLog(started.audit_log), pids, arguments.limit, found.wrong)
        say(f"{nodes} nodes, sizes {' '.join(map(str, arguments.sizes))}, warming up")
        for kind in arguments.kinds:
            for mode in (LIMIT, OURS):
                await bench.play(KINDS[kind], mode, WARM_UP, 0)
        present = 0
        for others in sorted(arguments.others):
            await wait_beside(client, present, others, max(arguments.sizes))
            present = others
            for kind in arguments.kinds:
                for mode in (LIMIT, OURS):
                    steps = await bench.play(KINDS[kind], mode, arguments.sizes, others)
                    found.steps += steps
                    say("\n".join([head(kind, mode, others), *map(row, steps)]))
            found.wrong += await asyncio.to_thread(invariants, started)
        await sweep(client, pids)
    return found


def invariants(started: Playground) -> list[str]:
    """Breaches that the checker finds now."""
    try:
        started.run("invariants")
    except AssertionError as error:
        return [str(error)]
    return []


def head(kind: str, mode: str, others: int) -> str:
    """The line above the steps of one job."""
    columns = "  made  sliced  admitted  freed: first   p50   last  settled    gone"
    title = f"{kind}, {mode}, beside {others}"
    return f"{title:32}{columns}  pods/s   writes and CPU ms / replica"


def row(step: Step) -> str:
    """A line about one step; times in seconds since it was asked for."""
    middle = statistics.median(step.releases_s) if step.releases_s else math.nan
    times = [step.made_s, step.sliced_s, step.admitted_s, step.first_s, middle]
    times += [step.released_s, step.settled_s, step.gone_s]
    widths = (6, 8, 10, 14, 6, 7, 9, 8)
    cells = "".join(
        f"{'-' if math.isnan(at) else f'{at:.2f}':>{width}}"
        for at, width in zip(times, widths, strict=True)
    )
    rate = f"{step.replicas / step.done_s:8.1f}"
    return f"  {step.before:>5} -> {step.after:<20}{cells}{rate}   {costs(step)}"


def costs(step: Step) -> str:
    """Writes and CPU per replica, of who has any."""
    users = (*SERVICES, MAKERS[step.kind])
    written = " ".join(
        f"{who} {step.written_by(who) / step.replicas:.1f}" for who in users if who in step.writes
    )
    used = " ".join(
        f"{who} {step.cpu_s[who] / step.replicas * 1e3:.0f}"
        for who in ("kube-apiserver", "kuberay", *SERVICES)
        if step.cpu_s.get(who, 0.0) / step.replicas > 5e-4
    )
    return f"{written} | {used}"


def of(steps: Iterable[Step], kind: str, mode: str, others: int) -> list[Step]:
    """The steps of one job."""
    return [s for s in steps if (s.kind, s.mode, s.others) == (kind, mode, others)]


def ratios(arguments: argparse.Namespace, steps: list[Step]) -> dict[str, float]:
    """Seconds until pods were free while growing, the floor's against ours, by name of record."""
    found = {}
    for kind in arguments.kinds:
        for others in arguments.others:
            bare, ours = (
                sum(step.released_s for step in of(steps, kind, mode, others) if step.grows)
                for mode in (LIMIT, OURS)
            )
            sizes = " ".join(map(str, arguments.sizes))
            found[f"limit / rackgate, {kind}, {sizes}, beside {others}"] = bare / ours
    return found


def cpu_ratios(arguments: argparse.Namespace, steps: list[Step]) -> list[str]:
    """CPU of the whole run of one job, the floor's against ours: what a full machine leaves."""
    lines = []
    for kind in arguments.kinds:
        for others in arguments.others:
            bare, ours = (
                sum(_own_cpu_s(step) for step in of(steps, kind, mode, others))
                for mode in (LIMIT, OURS)
            )
            lines.append(f"limit CPU / our CPU, {kind}, beside {others}: {bare / ours:.2f}")
    return lines


def _own_cpu_s(step: Step) -> float:
    return sum(spent for who, spent in step.cpu_s.items() if who not in (BENCH, "others"))


def writes_table(arguments: argparse.Namespace, steps: list[Step]) -> list[str]:
    """Writes per replica over all steps of ours, by who and what; those that matter."""
    lines = []
    for kind in arguments.kinds:
        for others in arguments.others:
            mine = of(steps, kind, OURS, others)
            for label, some in (
                ("grown", [step for step in mine if step.grows]),
                ("shrunk", [step for step in mine if not step.grows]),
            ):
                lines += _writes(f"{kind}, beside {others}, {label}", some)
    return lines


def _writes(title: str, steps: list[Step]) -> list[str]:
    replicas = sum(step.replicas for step in steps)
    total: dict[str, dict[str, int]] = {}
    for step in steps:
        for who, counts in step.writes.items():
            for what, count in counts.items():
                mine = total.setdefault(who, {})
                mine[what] = mine.get(what, 0) + count
    lines = []
    for who in (*SERVICES, *MAKERS.values()):
        parts = sorted(total.get(who, {}).items(), key=lambda item: -item[1])
        shown = ", ".join(f"{what} {n / replicas:.2f}" for what, n in parts if n / replicas >= 0.01)
        if shown:
            lines.append(f"    {who:18}{shown}")
    return [f"  {title}, writes per replica:", *lines] if replicas else []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="1 to 500 to 1, beside up to 1,000")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 20, 60, 20, 1], metavar="N")
    parser.add_argument("--others", type=int, nargs="+", default=[0, 60], metavar="N")
    parser.add_argument(
        "--kinds", nargs="+", choices=sorted(KINDS), default=sorted(KINDS), metavar="KIND"
    )
    parser.add_argument("--limit", type=float, default=240, help="seconds a step may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    floors.add_options(parser)
    if "--full" in sys.argv:
        parser.set_defaults(**FULL)
    found = parser.parse_args()
    if len(found.sizes) < 2 or min(found.sizes) < 1 or len(set(found.sizes)) < 2:
        parser.error("--sizes: at least two different ones, none below 1")
    if any(before == after for before, after in itertools.pairwise(found.sizes)):
        parser.error("--sizes: each must differ from the one before")
    return found


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    load = os.getloadavg()[0]
    operators = ("kuberay",) if "raycluster" in arguments.kinds else ()
    gates = (ELASTIC_JOBS, ELASTIC_INDEXED_JOBS)
    with playground(operators=operators, gates=gates, audit=True) as started:
        measured = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    found = ratios(arguments, measured.steps)
    if arguments.json:
        document = {"ratios": found, "load": load, "leases_lost": lost, **asdict(measured)}
        arguments.json.write_text(json.dumps(document, indent=1))
    foreign = sum(s.cpu_s["others"] for s in measured.steps)
    share = foreign / sum(sum(s.cpu_s.values()) for s in measured.steps)
    say("\n".join(writes_table(arguments, measured.steps)))
    say("\n".join(f"{name}: {ratio:.2f}" for name, ratio in found.items()))
    say("\n".join(cpu_ratios(arguments, measured.steps)))
    say(f"load {load:.1f} at the start, {share:.0%} of the work foreign, leases lost: {lost}")
    say("\n".join(measured.wrong) or "all invariants hold")
    said, kept = floors.judge(found, SECTION, arguments)
    say("\n".join(said)) if said else None
    return int(bool(measured.wrong) or not kept)


if __name__ == "__main__":
    sys.exit(main())
