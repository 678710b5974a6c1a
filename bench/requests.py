"""What a Job costs the API server: requests of the services, from its creation to its deletion.

Jobs come at a steady rate, run shortly and are deleted some seconds after they have succeeded. The
requests of the services are counted in the API server's audit log, by service, verb and resource;
patches of pods, lists and watches are told apart, Leases are left out.

- free: each Job is admitted at once.
- waiting: the quota is short, so most Jobs wait, and their messages change.

Exit code 1 when a free Job takes more than 8 requests or 2 Events, a waiting one more than 10
requests or 3 Events, or a Job is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.measuring.requests_counted import RequestLog, per_job, side_by_side
from bench.measuring.world import NAMESPACE, Size, create, playground, prepare, quiet, say
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from tests.support.objects import RACK, cluster_queue, job, local_queue
from tests.support.playground import Playground

NARROW: Final = "narrow"
LIMITS: Final = {"free": (8.0, 2.0), "waiting": (10.0, 3.0)}
QUEUES: Final = {"free": "bench", "waiting": NARROW}
# Requests that follow the last deletion: the services look once more, queues count again.
REST_S: Final = 3.0


@dataclass
class Flow:
    """Jobs on their way.

    Attributes:
        waited: Workloads that said once why they wait.
        most: Jobs that were there at the same time.
    """

    finished: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    known: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    waited: set[str] = field(default_factory=set)
    most: int = 0
    workloads: int = 0

    def job_seen(self, _before: Job | None, found: Job) -> None:
        name = found.metadata.name
        self.there.add(name)
        self.most = max(self.most, len(self.there))
        done = any(
            c.type in ("Complete", "Failed") and c.status == "True" for c in _reason_of(found)
        )
        if done and name not in self.known:
            self.known.add(name)
            self.finished.put_nowait(name)

    def job_gone(self, found: Job) -> None:
        self.there.discard(found.metadata.name)

    def workload_seen(self, before: Workload | None, found: Workload) -> None:
        self.workloads += before is None
        if any(c.type == "QuotaReserved" and c.status == "False" for c in found.status.conditions):
            self.waited.add(found.metadata.uid)

    def workload_gone(self, _found: Workload) -> None:
        self.workloads -= 1


def _reason_of(found: Job) -> tuple[Any, ...]:
    return tuple(found.status.conditions)


@dataclass(frozen=True, slots=True)
class ArrivalRate:
    """How Jobs come."""

    jobs: int
    pods: int
    rate: float
    run_s: float
    keep_s: float
    limit_s: float


async def play(client: Client, part: str, course: ArrivalRate) -> Flow:
    """Create all Jobs at their rate, delete each that has ended; return when nothing is left."""
    flow = Flow()
    jobs = Informer(
        client,
        kinds.JOBS,
        msgspec.json.Decoder(Job).decode,
        namespace=NAMESPACE,
        on_upsert=flow.job_seen,
        on_delete=flow.job_gone,
    )
    workloads = Informer(
        client,
        kinds.WORKLOADS,
        msgspec.json.Decoder(Workload).decode,
        namespace=NAMESPACE,
        on_upsert=flow.workload_seen,
        on_delete=flow.workload_gone,
    )
    async with asyncio.timeout(course.limit_s), asyncio.TaskGroup() as group:
        tasks = [group.create_task(jobs.run()), group.create_task(workloads.run())]
        await jobs.synced.wait()
        await workloads.synced.wait()
        deleting = group.create_task(_delete(client, flow, course))
        begin = time.monotonic()
        for number in range(course.jobs):
            await asyncio.sleep(max(0.0, begin + number / course.rate - time.monotonic()))
            wanted = job(
                f"{part}-{number:05}",
                course.pods,
                queue=QUEUES[part],
                cpu="1",
                required=RACK,
                run_seconds=course.run_s,
            )
            group.create_task(create(client, kinds.JOBS, wanted))
        await deleting
        while flow.there or flow.workloads:
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
    await asyncio.sleep(REST_S)
    return flow


async def _delete(client: Client, flow: Flow, course: ArrivalRate) -> None:
    """Delete Jobs some time after they ended, as `ttlSecondsAfterFinished` does."""
    options = json.dumps({"propagationPolicy": "Background"}).encode()

    async def one(name: str) -> None:
        await asyncio.sleep(course.keep_s)
        await client.delete(kinds.JOBS.path(NAMESPACE, name), options)

    async with asyncio.TaskGroup() as group:
        for _ in range(course.jobs):
            group.create_task(one(await flow.finished.get()))


async def measure(
    arguments: argparse.Namespace, started: Playground
) -> dict[str, dict[str, float]]:
    """Figures of each part."""
    course = ArrivalRate(
        arguments.jobs,
        arguments.pods,
        arguments.rate,
        arguments.run_seconds,
        arguments.keep_seconds,
        arguments.limit,
    )
    found: dict[str, dict[str, float]] = {}
    async with started.client() as client:
        await prepare(client, Size(arguments.nodes, 16, 0, 0))
        # Half of what the Jobs ask for at this rate.
        quota = max(course.pods, int(course.pods * course.rate * (course.run_s + 2) / 2))
        await create(
            client, kinds.CLUSTER_QUEUES, cluster_queue(NARROW, "bench", {"cpu": f"{quota}"})
        )
        await create(client, kinds.LOCAL_QUEUES, local_queue(NARROW, NARROW))
        for part in arguments.parts:
            await play(client, part, ArrivalRate(5, course.pods, 5.0, 1.0, 1.0, course.limit_s))
            log = RequestLog(started.audit_log)
            flow = await play(client, part, course)
            found[part] = per_job(log.take(), course.jobs)
            say(
                f"{part}: {course.jobs} Jobs x {course.pods} pods, {course.rate:g} a second,"
                f" {len(flow.waited)} waited, {flow.most} there at most"
            )
    return found


def judge(found: dict[str, dict[str, float]]) -> tuple[list[str], bool]:
    """Whether each part keeps its limits, as lines and as a whole."""
    lines, holds = [], True
    for part, figures in found.items():
        for name, limit in zip(("requests", "Events"), LIMITS[part], strict=True):
            kept = figures[name] <= limit
            holds &= kept
            told = "kept" if kept else "BROKEN"
            lines.append(f"{part}: {figures[name]:.2f} {name} per Job, limit {limit:g} {told}")
    return lines, holds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--pods", type=int, default=4, help="pods of a Job")
    parser.add_argument("--rate", type=float, default=1.0, help="Jobs created in a second")
    parser.add_argument("--run-seconds", type=float, default=5.0, help="how long a pod runs")
    parser.add_argument(
        "--keep-seconds", type=float, default=5.0, help="how long a Job that has ended is kept"
    )
    parser.add_argument("--limit", type=float, default=1200, help="seconds a part may take")
    parser.add_argument("--parts", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--against", type=Path, metavar="FILE", help="of --json, to print beside")
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    with playground(audit=True) as started:
        found = asyncio.run(measure(arguments, started))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    for part, figures in found.items():
        columns = {"before": before[part]} if part in before else {}
        say("\n".join(["", part, *side_by_side({**columns, "now": figures})]))
    lines, holds = judge(found)
    say("\n".join(["", *lines]))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
