"""Pending Workloads kept from plan to plan: what one change costs among 1,500 to 150,000 of them.

No cache and no decisions: `PendingQueues` alone, in which every Workload is inadmissible. CPU
microseconds of each:

- put: one more Workload, of a shape that is parked, or of a new one.
- due: after that, what is to be decided about, and its answer.
- drop: it is deleted.
- wake: quota of one ClusterQueue is released, and all buckets of its Cohort are parked again.

Exit code 1: one change costs more than three times as much among the most as among the fewest.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.queues import objects
from bench.queues.cycles import frozen_heap, stored, view
from bench.queues.decide import mixture
from bench.queues.objects import Queue
from rackgate.api.names import PendingReason
from rackgate.wire import kueue
from rackgate_assigner.quota.queues import cluster_queue_info
from rackgate_assigner.scheduler.cycle import cycle_key
from rackgate_assigner.scheduler.eligibility import Eligible
from rackgate_assigner.scheduler.pending_queues import PendingQueues
from rackgate_assigner.workload.decisions import Requeue
from rackgate_assigner.workload.info import workload_info

PENDING: Final = (1_500, 15_000, 150_000)
QUEUES: Final = 300
ROUNDS: Final = 1_000
MOST: Final = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    """CPU microseconds for each change.

    Attributes:
        fill_us: for each Workload when all are put for the first time.
        put_us: into a parked bucket; `new_us` into a new one, with the plan that parks it.
        buckets: that one wake made active.
    """

    pending: int
    fill_us: float
    put_us: float
    new_us: float
    drop_us: float
    wake_us: float
    buckets: int


class World:
    """Queues full of inadmissible Workloads."""

    def __init__(self, pending: int) -> None:
        """Make them; nothing is put yet."""
        queues = [Queue(index) for index in range(QUEUES)]
        rows = [
            cluster_queue_info(view(kueue.ClusterQueue, objects.cluster_queue_of(queue)))
            for queue in queues
        ]
        cohorts = {row.name: row.cohort for row in rows}
        flavors = {row.name: row.flavors for row in rows}
        self.queues = PendingQueues(
            lambda info: cycle_key(info, {}), cohorts.__getitem__, flavors.__getitem__
        )
        classes = mixture()
        infos = [
            workload_info(stored(objects.workload(f"{of.name}-{index}", queues[index], of), index))
            for index, of in enumerate(classes)
        ]
        self.rows: list[Eligible] = []
        for number in range(pending + 2 * ROUNDS):
            turn, index = divmod(number, QUEUES)
            info = infos[(turn + index) % len(infos)]
            self.rows.append(
                Eligible(
                    replace(
                        info, key=f"{info.key}-{number:07}", queue_timestamp=f"2026-{number:07}"
                    ),
                    rows[index],
                )
            )
        for number in range(1, ROUNDS + 1):
            row = self.rows[-number]
            self.rows[-number] = replace(row, info=replace(row.info, shape=(number, "new")))

    def put(self, row: Eligible) -> None:
        """One more Workload."""
        self.queues.put(row.info, row)

    def park(self) -> int:
        """Answer all that is due; the number of answers."""
        answers = 0
        lines = self.queues.due()
        for line in lines.values():
            while (head := line.head()) is not None:
                reason = PendingReason.WAITING_FOR_QUOTA
                line.park(Requeue(head.info.key, reason, "no quota"), same_shape=True)
                answers += 1
        self.queues.done(lines)
        return answers


def measure(pending: int) -> Found:
    """All figures with so many pending Workloads."""
    world = World(pending)
    waiting, same, new = (
        world.rows[:pending],
        world.rows[pending : pending + ROUNDS],
        world.rows[pending + ROUNDS :],
    )
    with frozen_heap():
        fill_us = _mean_us(waiting, world.put)
        world.park()
        put_us = _mean_us(same, world.put)
        world.park()

        def arrive(row: Eligible) -> None:
            world.put(row)
            world.park()

        new_us = _mean_us(new, arrive)
        drop_us = _mean_us([*same, *new], lambda row: world.queues.drop(row.info.key))
        answers: list[int] = []

        def wake(row: Eligible) -> None:
            world.queues.wake_queue(row.queue.name)
            answers.append(world.park())

        wake_us = _mean_us(waiting[:QUEUES], wake)
    return Found(pending, fill_us, put_us, new_us, drop_us, wake_us, max(answers))


def _mean_us(rows: Sequence[Eligible], change: Any) -> float:
    began = time.process_time()
    for row in rows:
        change(row)
    return (time.process_time() - began) / len(rows) * 1e6


def missed(found: Sequence[Found]) -> list[str]:
    """Changes whose cost grows with what waits."""
    first, last = found[0], found[-1]
    pairs = {
        "put": (first.put_us, last.put_us),
        "put and due": (first.new_us, last.new_us),
        "drop": (first.drop_us, last.drop_us),
    }
    return [
        f"{name}: {few:.1f} us among {first.pending:,}, {many:.1f} us among {last.pending:,}"
        for name, (few, many) in pairs.items()
        if many > MOST * few
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--pending", type=int, nargs="+", default=list(PENDING))


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether the cost stays the same."""
    console = Console()
    found = []
    for pending in arguments.pending:
        found.append(measure(pending))
        gc.collect()
    made = Table(title=f"one change among pending Workloads of {QUEUES} queues (CPU us)")
    for name in ("pending", "fill", "put", "put and due", "drop", "wake", "buckets woken"):
        made.add_column(name, justify="right")
    for one in found:
        made.add_row(
            f"{one.pending:,}",
            *(f"{spent:.1f}" for spent in (one.fill_us, one.put_us, one.new_us, one.drop_us)),
            f"{one.wake_us:,.0f}",
            f"{one.buckets:,}",
        )
    console.print(made)
    lines = missed(found)
    for line in lines:
        console.print(f"missed: {line}")
    return {"pending": [asdict(one) for one in found]}, not lines
