"""What gangs cost: the same Jobs from create to bound, with and without GangScheduling.

On one control plane, with the admission of gangs installed, the services run in turns with the
gate on and off. Every Job is Indexed, so each is a gang if the gate is on: its Workload of gangs is
made, its pods are held until all exist, and its status is written. The services are started again
between rounds, and warm up with a few Jobs that do not count.

Compared is the CPU of all services per bound pod, pair by pair. The speed of a machine may change
by a third from one round to the next. So that CPU is measured in units of what kube-scheduler,
kube-controller-manager and KWOK use in the same round: their work for a pod is the same with and
without gangs. The CPU times themselves are printed, too, the rest of the control plane, and what
the assigner keeps of 1,000 Workloads of gangs. Exit code 1: the median is more than the aim above,
or a Job is not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.measuring.figures import SERVICES, foreign_share
from bench.measuring.rounds import Observer, Round, play
from bench.measuring.world import GATE, Size, leases_lost, playground, prepare, quiet, say, sweep
from bench.placed import look
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.features import GANG_SCHEDULING
from rackgate_assigner.gangs.gang_workload import decode_gang_workload
from rackgate_assigner.gangs.status.gang_status import TYPES
from tests.support.playground import Playground

AIM: Final = 0.10
WARM_UP_JOBS: Final = 10
KEPT: Final = 1_000
# Their CPU for each pod says how fast the machine is.
SAME_WORK: Final = ("kube-scheduler", "kube-controller-manager", "kwok")
AT: Final = "2026-01-01T00:00:00Z"


def restart(started: Playground, *, gangs: bool) -> dict[str, int]:
    """Start the services with the gate on or off; process ids of everything."""
    gates = json.dumps({GANG_SCHEDULING: gangs})
    os.environ.update({f"RACKGATE_{name.upper()}_FEATURE_GATES": gates for name in SERVICES})
    for name in SERVICES:
        started.run("stop", name)
    for name in SERVICES:
        started.run("start", name)
    return {name: found["pid"] for name, found in started.components().items()}


def services_ms(one: Round) -> float:
    """CPU milliseconds of all services per pod."""
    return sum(one.cpu_s[name] for name in SERVICES) / one.pods * 1e3


def in_units(one: Round) -> float:
    """CPU of all services, in units of that of the components whose work is the same."""
    return services_ms(one) * one.pods / 1e3 / sum(one.cpu_s[name] for name in SAME_WORK)


def control_plane_ms(one: Round) -> float:
    """CPU milliseconds per pod of the control plane, the services included."""
    spent = sum(cpu for name, cpu in one.cpu_s.items() if name not in ("others", "bench"))
    return spent / one.pods * 1e3


async def measure(
    arguments: argparse.Namespace, started: Playground
) -> tuple[dict[bool, list[Round]], list[str]]:
    """All rounds, by whether the gate was on, and what is not where it belongs."""
    size = Size(arguments.nodes, arguments.rack, arguments.jobs, arguments.pods)
    found: dict[bool, list[Round]] = {False: [], True: []}
    wrong: list[str] = []
    async with started.client() as client:
        await prepare(client, size)
        for turn in range(arguments.rounds):
            for gangs in (turn % 2 == 0, turn % 2 == 1):
                pids = await asyncio.to_thread(restart, started, gangs=gangs)
                few = Size(size.nodes, size.rack, min(WARM_UP_JOBS, size.jobs), size.pods)
                await play(client, "rackgate", few, pids, arguments.limit)
                await sweep(client, pids)
                observer = Observer(size.total, GATE)
                one = await play(client, "rackgate", size, pids, arguments.limit, observer=observer)
                misplaced, _ = await look(client, observer.assigned, jobs=size.jobs, pods=size.pods)
                wrong += misplaced
                found[gangs].append(one)
                say(describe(turn + 1, one, gangs=gangs))
                await sweep(client, pids)
    return found, wrong


def describe(turn: int, one: Round, *, gangs: bool) -> str:
    """A line about one round."""
    each = "  ".join(f"{name} {one.cpu_s[name] / one.pods * 1e3:.2f}" for name in SERVICES)
    return (
        f"  round {turn}  gangs {'on ' if gangs else 'off'}  {one.rate:6.1f} pods/s"
        f"  CPU ms/pod: services {services_ms(one):.2f} ({each}),"
        f" all {control_plane_ms(one):.1f}  foreign {foreign_share(one):.0%}"
    )


def kept_mib(count: int) -> float:
    """Python memory of the assigner's store of as many Workloads of gangs, of running Jobs."""
    texts = [_workload_text(number) for number in range(count)]
    decode_gang_workload(texts[0])
    gc.collect()
    tracemalloc.start()
    store = {found.metadata.key: found for found in map(decode_gang_workload, texts)}
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store) == count
    return size / 2**20


def _workload_text(number: int) -> bytes:
    job = f"train-{number}"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "controller": True}
    conditions = [
        {
            "type": name,
            "status": "True",
            "reason": "Enforced",
            "message": "the topology requests decide the placement",
            "lastTransitionTime": AT,
            "observedGeneration": 1,
        }
        for name in TYPES
    ]
    made = {
        "apiVersion": GANG_WORKLOADS.api_version,
        "kind": GANG_WORKLOADS.kind,
        "metadata": {
            "name": f"job-{job}-a1b2c",
            "namespace": "team-a",
            "uid": f"{number:08x}-4444-4222-8333-444455556666",
            "resourceVersion": str(3_000_000 + number),
            "generation": 1,
            "creationTimestamp": AT,
            "ownerReferences": [{**owner, "uid": f"{number:08x}-3333-4222-8333-444455556666"}],
        },
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": job},
            "gangGroups": [{"name": "gg", "minCount": 64}],
        },
        "status": {
            "observedGeneration": 1,
            "phase": "Running",
            "members": "64/64",
            "conditions": conditions,
        },
    }
    return json.dumps(made).encode()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=640)
    parser.add_argument("--rack", type=int, default=32, help="nodes of a rack")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--pods", type=int, default=32, help="pods of a Job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240, help="seconds a round may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    with playground(gates=(GANG_SCHEDULING,)) as started:
        found, wrong = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    pairs = list(zip(found[True], found[False], strict=True))
    times = [services_ms(on) / services_ms(off) - 1 for on, off in pairs]
    shares = [in_units(on) / in_units(off) - 1 for on, off in pairs]
    whole = [control_plane_ms(on) / control_plane_ms(off) - 1 for on, off in pairs]
    more = statistics.median(shares)
    if arguments.json:
        rounds = {str(gangs): [asdict(one) for one in of] for gangs, of in found.items()}
        arguments.json.write_text(json.dumps({"more": shares, "rounds": rounds}, indent=1))
    say(f"services with gangs, CPU time: {', '.join(f'{one:+.0%}' for one in sorted(times))}")
    units = ", ".join(f"{one:+.0%}" for one in sorted(shares))
    say(f"services with gangs, in units of {', '.join(SAME_WORK)}: {units}")
    say(f"control plane with gangs: {', '.join(f'{one:+.0%}' for one in sorted(whole))}")
    say(f"median {more:+.0%}: aim {AIM:+.0%} at most {'met' if more <= AIM else 'MISSED'}")
    say(f"{KEPT:,} Workloads of gangs in the assigner's store: {kept_mib(KEPT):.1f} MiB")
    if lost:
        say(f"a service lost its Lease {lost} times: it began again then")
    say("\n".join(wrong or ["every pod is bound, in its Job's one rack, by its rank"]))
    return 0 if more <= AIM and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
