"""Time from the data of an OSMO workflow to the objects for KAI, beside what nobody can leave out.

10,000 tasks of one group at four levels, as `read_workflow` and `build_podgroups` take them from
a parsed file: every task validated, every rule checked, the tree built, every object made. Beside
them the same document and the same objects through Python's own JSON, which decides nothing; and
for 1,000 tasks the oracle of the property tests, written from the rules alone.

Run: python -m bench.osmo [--tasks N]; exit code 1 when 10,000 tasks take a second of CPU or more,
or a ratio fell below its floor.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.measuring import floors
from rackgate_osmo import Built, Profile, build_podgroups, read_pool, read_workflow
from tests.support import osmo_oracle

SECTION: Final = "osmo"
TASKS: Final = 10_000
ORACLE_TASKS: Final = 1_000
LIMIT_S: Final = 1.0
ROUNDS: Final = 7
TRIES: Final = 3
WIDTH: Final = 100  # of the table, also where nobody looks
# Tasks of one resource and so of one leaf: a resource each, nodes of one NVLink domain, a run.
PER_LEAF: Final = (1, 18, 1_000)
POOL: Final = {
    "name": "bench",
    "backend": "bench",
    "scheduler": "kai",
    "topology_keys": [
        {"key": key, "label": f"example.com/{key}"} for key in ("zone", "spine", "rack", "clique")
    ],
}


def document(tasks: int, per_leaf: int) -> dict[str, Any]:
    """A workflow in which every requirement branches: 8 leaves to a rack, 8 racks to a spine."""
    resources = {
        f"model-{leaf}": {
            "gpu": 4,
            "cpu": 64,
            "memory": "480Gi",
            "topology": [
                {"key": "clique", "group": f"clique-{leaf}"},
                {"key": "rack", "group": f"rack-{leaf // 8}", "requirementType": "preferred"},
                {"key": "spine", "group": f"spine-{leaf // 64}"},
                {"key": "zone", "group": f"zone-{leaf // 512}"},
            ],
        }
        for leaf in range(-(-tasks // per_leaf))
    }
    listed = [
        {
            "name": f"shard-{index}",
            "resource": f"model-{index // per_leaf}",
            "image": "registry.example/train:1",
            "command": ["python", "train.py"],
            "environment": {"SHARD": str(index)},
        }
        for index in range(tasks)
    ]
    return {"workflow": {"name": "w", "groups": [{"name": "g", "tasks": listed}]}} | {
        "resources": resources
    }


def ours(data: dict[str, Any], profile: Profile = Profile.SEED) -> Built:
    """From data to objects."""
    pool = read_pool(POOL)
    return build_podgroups(pool, read_workflow(data, pool), profile=profile)


def through_json(data: dict[str, Any], built: Built) -> Callable[[], object]:
    """The document in, the objects and marks out, as text."""
    text = json.dumps(data)
    marks = [(task, mark.annotations, mark.labels) for (_, task), mark in built.pods.items()]

    def call() -> object:
        return json.loads(text), json.dumps([built.topology, built.pod_groups, marks])

    return call


def by_oracle(data: dict[str, Any]) -> Callable[[], object]:
    """The objects by the property tests' oracle."""
    return partial(osmo_oracle.answer, POOL, data, data["workflow"]["groups"][0])


def rounds(calls: Mapping[str, Callable[[], object]], number: int) -> dict[str, list[float]]:
    """CPU seconds of each call, in turns, collections that fall due included."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(number):
        for name, call in calls.items():
            gc.collect()
            before = time.process_time()
            call()
            found[name].append(time.process_time() - before)
    return found


class Bench:
    """Times and ratios, measured again where one seems lost."""

    def __init__(self, tasks: int, recorded: Mapping[str, floors.Range]) -> None:
        self.tasks = tasks
        self.recorded = recorded
        self.seconds: dict[str, float] = {}
        self.ratios: dict[str, float] = {}

    def run(self) -> None:
        """Measure everything."""
        for per_leaf in PER_LEAF:
            data = document(self.tasks, per_leaf)
            calls: dict[str, Callable[[], object]] = {
                "json": through_json(data, ours(data)),
                "read": partial(read_workflow, data, read_pool(POOL)),
                "seed": partial(ours, data),
                "robust": partial(ours, data, Profile.ROBUST),
            }
            self._measure(calls, "json", ROUNDS, f"{self.tasks} tasks, {per_leaf} to a leaf")
        data = document(ORACLE_TASKS, PER_LEAF[1])
        calls = {"oracle": by_oracle(data), "seed": partial(ours, data)}
        self._measure(calls, "oracle", TRIES, f"{ORACLE_TASKS} tasks, {PER_LEAF[1]} to a leaf")

    def _measure(
        self, calls: Mapping[str, Callable[[], object]], base: str, number: int, name: str
    ) -> None:
        ratio = f"{base} / rackgate, {name}"
        for _ in range(TRIES):
            found = rounds(calls, number)
            times = {call: statistics.median(spent) for call, spent in found.items()}
            better = statistics.median(
                left / right for left, right in zip(found[base], found["seed"], strict=True)
            )
            self.ratios[ratio] = max(better, self.ratios.get(ratio, 0.0))
            for call, seconds in times.items():
                key = f"{call}, {name}"
                self.seconds[key] = min(seconds, self.seconds.get(key, seconds))
            lost = floors.losses({ratio: self.ratios[ratio]}, self.recorded)
            if not lost and not self.slow():
                return

    def slow(self) -> list[str]:
        """What took longer than a workflow of this size may."""
        return [
            f"{name}: {seconds:.2f} s, the limit is {LIMIT_S:g} s"
            for name, seconds in self.seconds.items()
            if name.startswith(("seed", "robust")) and seconds >= LIMIT_S * self.tasks / TASKS
        ]

    def table(self) -> Table:
        """Milliseconds across, sizes down."""
        table = Table(title="workflow to objects, median CPU ms, four levels")
        for column in ("", "base", "base ms", "read ms", "seed ms", "robust ms", "base / seed"):
            table.add_column(column, justify="right")
        for title, ratio in self.ratios.items():
            base, _, name = title.partition(" / rackgate, ")
            cells = [
                self.seconds.get(f"{call}, {name}") for call in (base, "read", "seed", "robust")
            ]
            shown = ["" if cell is None else f"{cell * 1e3:.0f}" for cell in cells]
            table.add_row(name, base, *shown, f"{ratio:.2f}")
        return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks of the one group")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything found")
    floors.add_options(parser)
    arguments = parser.parse_args()
    kept = arguments.record or arguments.widen
    bench = Bench(arguments.tasks, {} if kept else floors.read(section=SECTION))
    bench.run()
    console = Console(width=WIDTH)
    console.print(bench.table())
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cpu_s": bench.seconds, "ratios": bench.ratios}, indent=1)
        )
    lines, held = floors.judge(bench.ratios, SECTION, arguments)
    slow = bench.slow()
    for line in (*lines, *(f"MISSED {one}" for one in slow)):
        console.print(line)
    return int(bool(slow) or not held)


if __name__ == "__main__":
    sys.exit(main())
