"""Kueue's own load for its scheduler on a real API server, beside the same writes undecided.

5 cohorts of 6 ClusterQueues, 500 Workloads each, of three sizes and priorities. Workloads are
created without jobs, as Kueue's runner does, and end when their run time is over; kube-scheduler,
kube-controller-manager and KWOK are stopped. Then the assigner is stopped, too, and one process
repeats its writes for each Workload as soon as that is created: what the API server and this
machine give without any decision. With --kueue, Kueue itself, with its own CRDs, then
admits the same load on a control plane of its own.

Exit code 1: a Workload has not finished in time, a cohort used more than its quota, or the share of
the bare rate fell below its floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.measuring import floors
from bench.measuring.figures import FOREIGN_SHARE
from bench.measuring.processes import BENCH, cpu_seconds, machine_busy_seconds
from bench.measuring.scrape import requests
from bench.measuring.speed import Speed
from bench.measuring.world import create, leases_lost, make_nodes, playground, say, settle
from bench.queues import kueue, objects
from bench.queues.bare import READY, Order, Replay
from bench.queues.ideal import WRITES_PER_WORKLOAD, ideal_to_admission
from bench.queues.kueue_load import (
    COHORTS,
    NODES_PER_RACK,
    NOMINAL_CPU,
    PUBLISHED,
    QUEUES_PER_COHORT,
    RACKS,
    Published,
    creation_s,
    quota_s,
    streams,
)
from bench.queues.objects import Queue
from bench.queues.recorder import (
    Record,
    Round,
    binding,
    foreign_share,
    own_cpu_s,
    queue_use,
    times_to_admission,
)
from bench.queues.runner import Runner
from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ServerError, TransportError
from rackgate.wire.kueue import Admission
from tests.support.playground import Playground

OURS: Final = "rackgate"
BARE: Final = "bare"
KUEUE: Final = "kueue"
ASSIGNER: Final = "assigner"
SECTION: Final = "queues"
COHORT_CPU: Final = NOMINAL_CPU * QUEUES_PER_COHORT
# In this order: without nodes' heartbeats, the first would taint all nodes.
STANDS_STILL: Final = ("kube-controller-manager", "kube-scheduler", "kwok")
READY_LIMIT_S: Final = 120.0
# Until then, an API server that has just started makes half as many writes.
WARM_UP_SCALE: Final = 0.1
AIM_RATE: Final = 100.0
AIM_RATIO: Final = 0.8
# Of Kueue's mean time to admission.
AIM_SHARE: Final = 0.5


def ratio_name(*, topology: bool, scale: float) -> str:
    """What the ratio is recorded under."""
    return f"admissions/s, assigner / bare, {'racks' if topology else 'plain'}, scale {scale:g}"


async def make_world(client: Client, queues: Sequence[Queue], *, topology: bool) -> None:
    """Nodes, flavor and queues; returns when the nodes are ready."""
    if topology:
        await make_nodes(client, objects.nodes(RACKS * NODES_PER_RACK))
    levels, flavor = objects.flavor_objects(topology=topology)
    if levels is not None:
        await create(client, kinds.TOPOLOGIES, levels)
    await create(client, kinds.FLAVORS, flavor)
    for queue in queues:
        await create(client, kinds.CLUSTER_QUEUES, objects.cluster_queue_of(queue))
        await create(client, kinds.NAMESPACES, objects.namespace_of(queue))
        made = json.dumps(objects.local_queue_of(queue)).encode()
        await client.create(kinds.LOCAL_QUEUES.path(queue.name), made)


async def convert_nothing(client: Client) -> None:
    """Serve v1beta1 without conversion, as Kueue's runner does.

    No webhook runs here. The API server would list all Workloads again and again for its cache of
    v1beta1, and fail each time.
    """
    without = json.dumps({"spec": {"conversion": {"strategy": "None", "webhook": None}}}).encode()
    for found in json.loads(await client.get(kinds.CRDS.path()))["items"]:
        if found["spec"]["conversion"]["strategy"] == "Webhook":
            path = kinds.CRDS.path(name=found["metadata"]["name"])
            await client.patch(path, without, PatchType.MERGE)


async def active(client: Client, count: int) -> None:
    """Wait until the controller says that all LocalQueues, and so their ClusterQueues, are active.

    Raises:
        TimeoutError: one stays inactive; carries its message.
    """
    inactive: list[str] = []
    for _ in range(int(READY_LIMIT_S * 2)):
        found = json.loads(await client.get(kinds.CLUSTER_QUEUES.path()))["items"]
        shown = [
            (one["status"], one["message"])
            for item in found
            for one in item.get("status", {}).get("conditions", [])
            if one["type"] == "Active"
        ]
        inactive = [message for status, message in shown if status != "True"]
        if len(shown) == count and not inactive:
            return
        await asyncio.sleep(0.5)
    raise TimeoutError(f"not all ClusterQueues are active: {inactive[:1]}")


async def sweep(client: Client, queues: Iterable[Queue]) -> None:
    """Delete all Workloads; returns when none is left."""
    for queue in queues:
        path = kinds.WORKLOADS.path(queue.name)
        while json.loads(await client.get(path, {"limit": "1"}))["items"]:
            try:
                await client.delete(path)
            except (ServerError, TransportError):
                await asyncio.sleep(1.0)  # many take longer than one request may


def replays(records: Mapping[str, Record]) -> dict[str, Replay]:
    """What to repeat for each Workload that was admitted."""
    return {
        key: Replay(
            record.pending_writes,
            record.evictions,
            msgspec.json.decode(record.admission, type=Admission),
        )
        for key, record in records.items()
        if record.admission
    }


@asynccontextmanager
async def replaying(started: Playground, order: Order) -> AsyncIterator[int]:
    """A process that repeats writes; gives its id, and ends it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.queues.bare",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(order))
        child.stdin.write_eof()
        async with asyncio.timeout(READY_LIMIT_S):
            said = await child.stdout.readline()
        if said.decode().strip() != READY:
            raise RuntimeError("the bare process ended before it watched")
        yield child.pid
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


class Bench:
    """Plays the load in turns on one control plane."""

    def __init__(self, started: Playground, client: Client, arguments: argparse.Namespace) -> None:
        self._started, self._client = started, client
        self._limit_s: float = arguments.limit
        self._queues = [Queue(index) for index in range(COHORTS * QUEUES_PER_COHORT)]
        self._parts = streams(topology=arguments.topology, scale=arguments.scale)
        self._topology: bool = arguments.topology
        self._warm_up = streams(
            topology=arguments.topology, scale=min(WARM_UP_SCALE, arguments.scale)
        )
        self.least_s = {"creating": creation_s(self._parts), "the quota": quota_s(self._parts)}

    async def prepare(self, *, releases: bool = False) -> None:
        """Make the world, play a short round, which is not counted."""
        await convert_nothing(self._client)
        await make_world(self._client, self._queues, topology=self._topology)
        for name in STANDS_STILL:
            await self._run("stop", name)
        await active(self._client, len(self._queues))
        runner = Runner(self._client, self._queues, self._warm_up, releases=releases)
        await runner.play(self._limit_s)

    async def ours(self) -> tuple[Round, dict[str, Replay]]:
        """The load with the assigner; also what it wrote."""
        await sweep(self._client, self._queues)
        (pid,) = self._started.pids(ASSIGNER)
        one, records = await self._play(OURS, {ASSIGNER: pid}, self._runner())
        return one, replays(records)

    async def bare(self, found: Mapping[str, Replay], ours: Round) -> Round:
        """The load with the same writes as in our round from a process that does not decide."""
        await sweep(self._client, self._queues)
        await self._run("stop", ASSIGNER)
        order = Order(str(self._started.state), dict(found), ours.events, ours.statuses)
        try:
            async with replaying(self._started, order) as pid:
                evictions = {key: replay.evictions for key, replay in found.items()}
                one, _ = await self._play(BARE, {BARE: pid}, self._runner(evictions))
        finally:
            await self._run("start", ASSIGNER)
        return one

    async def kueue(self, pid: int) -> Round:
        """The load with Kueue, which runs as this process."""
        await sweep(self._client, self._queues)
        one, _ = await self._play(KUEUE, {KUEUE: pid}, self._runner(releases=True))
        return one

    def _runner(
        self, evictions: Mapping[str, int] | None = None, *, releases: bool = False
    ) -> Runner:
        return Runner(self._client, self._queues, self._parts, evictions, releases=releases)

    async def _run(self, *arguments: str) -> None:
        await asyncio.to_thread(self._started.run, *arguments)

    async def _play(
        self, mode: str, pids: Mapping[str, int], runner: Runner
    ) -> tuple[Round, Mapping[str, Record]]:
        components = self._started.components()
        planes = {name: components[name]["pid"] for name in ("kube-apiserver", "etcd")}
        watched = {**pids, **planes}
        parts = self._parts
        await settle(watched)
        asked = await self._requests()
        busy, before = machine_busy_seconds(), cpu_seconds(watched)
        speed = Speed()
        timing = asyncio.create_task(speed.run())
        await runner.play(self._limit_s)
        end = time.perf_counter()
        timing.cancel()
        after, busy = cpu_seconds(watched), machine_busy_seconds() - busy
        asked = await self._requests() - asked
        records = runner.recorder.records
        # All have ended when the last one was seen to end.
        ends = [record.finished for record in records.values() if record.finished is not None]
        total = len(self._queues) * sum(part.count for part in parts)
        if len(ends) == total:
            end = max(ends)
        wall_s = end - runner.began
        cpu_s = {name: after[name] - before[name] for name in after}
        cpu_s["others"] = max(0.0, busy - sum(cpu_s.values()))
        nominal = NOMINAL_CPU * len(self._queues)
        found = Round(
            mode=mode,
            workloads=total,
            finished=len(ends),
            wall_s=wall_s,
            use=queue_use(records.values(), nominal, wall_s, end),
            ran=quota_s(parts) / wall_s,
            peak=max(runner.recorder.peaks.values(), default=0.0) / COHORT_CPU,
            evictions=sum(record.evictions for record in records.values()),
            pending_writes=sum(record.pending_writes for record in records.values()),
            to_admission_s=times_to_admission(records, objects.class_name),
            cpu_s=cpu_s,
            events=asked["POST", "events"],
            statuses=asked["APPLY", "clusterqueues/status"] + asked["APPLY", "localqueues/status"],
            loop_ms=speed.mean_ms,
        )
        return found, records

    async def _requests(self) -> Counter[tuple[str, str]]:
        return requests((await self._client.get("/metrics")).decode())


async def measure(arguments: argparse.Namespace, started: Playground) -> list[Round]:
    """The assigner and the bare process in turns."""
    rounds: list[Round] = []
    async with started.client() as client:
        bench = Bench(started, client, arguments)
        await bench.prepare()
        for _ in range(arguments.rounds):
            one, written = await bench.ours()
            rounds.append(one)
            say("\n".join(describe(one, bench.least_s)))
            rounds.append(await bench.bare(written, one))
            say("\n".join(describe(rounds[-1], bench.least_s)))
    return rounds


async def measure_kueue(
    arguments: argparse.Namespace, started: Playground, program: Path
) -> list[Round]:
    """As many rounds with Kueue."""
    rounds: list[Round] = []
    async with started.client() as client:
        await kueue.install(client, program)
        bench = Bench(started, client, arguments)
        async with kueue.running(started, program, topology=arguments.topology) as pid:
            await bench.prepare(releases=True)
            for _ in range(arguments.rounds):
                rounds.append(await bench.kueue(pid))
                say("\n".join(describe(rounds[-1], bench.least_s)))
    return rounds


def describe(one: Round, least_s: Mapping[str, float]) -> list[str]:
    """One round, as lines for people."""
    cpu = ", ".join(f"{name} {spent:.1f}" for name, spent in one.cpu_s.items())
    lines = [
        f"{one.mode}: {one.finished:,} of {one.workloads:,} Workloads in {one.wall_s:.1f} s,"
        f" {one.rate:.1f} admissions/s",
        f"  queue use {one.use:.1%}, of it run times {one.ran:.1%}, {one.peak:.0%} of a cohort at"
        f" most; {one.evictions} evictions,"
        f" {one.pending_writes} writes of pending reasons, {one.statuses} of statuses of queues,"
        f" {one.events} Events",
        f"  CPU seconds: {cpu} ({BENCH} creates, watches and ends the Workloads);"
        f" the machine: {one.loop_ms:.2f} ms for a loop",
        f"  bound by {binding(one, cores=os.cpu_count() or 1, least_s=least_s)}",
    ]
    lines += [
        f"  to admission, {name:18} mean {waits['mean']:7.2f} s  p50 {waits['p50']:7.2f} s"
        f"  p99 {waits['p99']:7.2f} s"
        for name, waits in one.to_admission_s.items()
    ]
    return lines


def published_lines(*, topology: bool) -> list[str]:
    """Kueue's figures for the whole load, as published."""
    found = PUBLISHED[topology]
    waits = ", ".join(f"{name} {mean_s:.1f} s" for name, mean_s in found.to_admission_s.items())
    return [
        f"Kueue, as published for 15,000 Workloads on another machine: {found.wall_s:.0f} s,"
        f" {15_000 / found.wall_s:.0f} admissions/s, queue use {found.use:.1%}",
        f"  mean time to admission: {waits}",
    ]


def ratio(rounds: Sequence[Round]) -> float:
    """Our rate against the bare one: the median over rounds."""
    return statistics.median(ours.rate / bare.rate for ours, bare in _pairs(rounds))


def work_ratio(rounds: Sequence[Round]) -> float:
    """The bare CPU time against ours: the ratio of rates of a full machine, median over rounds.

    Foreign work changes it far less than it changes the rates.
    """
    return statistics.median(own_cpu_s(bare) / own_cpu_s(ours) for ours, bare in _pairs(rounds))


def _pairs(rounds: Sequence[Round]) -> Iterator[tuple[Round, Round]]:
    """Our round and the bare one of each turn."""
    ours = [one for one in rounds if one.mode == OURS]
    return zip(ours, [one for one in rounds if one.mode == BARE], strict=True)


def aims(rounds: Sequence[Round], *, topology: bool, scale: float) -> list[str]:
    """How the aims fared: those against Kueue's published figures need the whole load."""
    ours = [one for one in rounds if one.mode == OURS]
    rate, share = statistics.median(one.rate for one in ours), ratio(rounds)
    met = rate >= AIM_RATE or share >= AIM_RATIO
    lines = [
        f"assigner / bare {share:.2f}, {rate:.0f} admissions/s:"
        f" aim {AIM_RATE:.0f}/s or {AIM_RATIO} of bare {_met(met)}",
        f"bare CPU / our CPU {work_ratio(rounds):.2f}",
    ]
    kueues = {"Kueue's": here} if (here := measured(rounds)) is not None else {}
    if scale >= 1:
        kueues["Kueue's as published"] = PUBLISHED[topology]
    if not kueues:
        return lines
    use = statistics.median(one.use for one in ours)
    for name, found in kueues.items():
        lines.append(f"queue use {use:.1%}: aim {name}, {found.use:.1%} {_met(use >= found.use)}")
    ideal = ideal_to_admission(streams(topology=topology, scale=scale), writes_per_s(rounds))
    for size, ideal_s in ideal.items():
        waits_s = statistics.median(mean_to_admission(one, size) for one in ours)
        line = f"to admission, {size} {waits_s:.1f} s, {ideal_s:.1f} s without delays but of writes"
        for name, found in kueues.items():
            aim = found.to_admission_s[size] * AIM_SHARE
            line += f"; aim half of {name}, {aim:.1f} s {_met(waits_s <= aim)}"
        lines.append(line)
    return lines


def measured(rounds: Sequence[Round]) -> Published | None:
    """Kueue's figures on this machine, medians over rounds; None if it did not run."""
    found = [one for one in rounds if one.mode == KUEUE]
    if not found:
        return None
    sizes = {name.partition("-")[0] for one in found for name in one.to_admission_s}
    return Published(
        statistics.median(one.wall_s for one in found),
        statistics.median(one.use for one in found),
        {size: statistics.median(mean_to_admission(one, size) for one in found) for size in sizes},
    )


def writes_per_s(rounds: Sequence[Round]) -> float:
    """Writes of Workloads that the API server made in bare rounds: the median.

    Creations, admissions and ends. What else was written made the rounds longer.
    """
    return statistics.median(WRITES_PER_WORKLOAD * one.rate for one in rounds if one.mode == BARE)


def mean_to_admission(one: Round, size: str) -> float:
    """Mean seconds to admission of the Workloads of a size; classes of one size are alike."""
    found = one.to_admission_s
    return statistics.fmean(
        waits["mean"] for name, waits in found.items() if name.partition("-")[0] == size
    )


def _met(met: bool) -> str:
    return "met" if met else "MISSED"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--scale", type=float, default=1.0, help="share of the counts: 0.1")
    parser.add_argument("--topology", action="store_true", help="with racks, on 640 nodes")
    parser.add_argument("--rounds", type=int, default=1, help="of each mode")
    parser.add_argument(
        "--kueue", action="store_true", help="Kueue itself, too; it is built with Go once"
    )
    parser.add_argument("--limit", type=float, default=1800, help="seconds a round may take")
    floors.add_options(parser)


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether everything holds."""
    topology: bool = arguments.topology
    gates = objects.TOPOLOGY_GATES if topology else ()
    program = kueue.minimalkueue() if arguments.kueue else None
    with playground((ASSIGNER,), gates=gates) as started:
        rounds = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    if program is not None:
        with playground(()) as started:
            rounds += asyncio.run(measure_kueue(arguments, started, program))
    share = ratio(rounds)
    lines = [
        *published_lines(topology=topology),
        *aims(rounds, topology=topology, scale=arguments.scale),
    ]
    foreign = max(map(foreign_share, rounds))
    if foreign > FOREIGN_SHARE:
        lines.append(f"other programs took up to {foreign:.0%} of the work: do not trust the rates")
    if lost:
        lines.append(f"the assigner lost its Lease {lost} times: it began again then")
    found = {ratio_name(topology=topology, scale=arguments.scale): share}
    said, kept = floors.judge(found, SECTION, arguments)
    say("\n".join([*lines, *said]))
    complete = all(one.finished == one.workloads for one in rounds)
    within = all(one.peak <= 1 for one in rounds if one.mode == OURS)
    if not within:
        say("WRONG: a cohort used more than its quota")
    figures = {
        "rounds": [one.as_json() for one in rounds],
        "assigner / bare": share,
        "bare CPU / our CPU": work_ratio(rounds),
    }
    return figures, complete and within and kept
