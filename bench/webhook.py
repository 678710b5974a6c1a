"""Cost of one review: in process, over kept-alive TLS at a steady rate, and to who creates a Job.

Served figures: recorded reviews of a Job and a pod, in turns, posted straight to one replica and
to three that share a port, and to a handler that decides nothing, so the share of our own work
shows. The load is open (see `bench.measuring.load`) and comes from processes of its own. Creates:
Jobs made through a real API server with the webhook called, with the label missing, and with no
webhook registered at all, in turns.

Exit code 1: a request timed out or failed, a ratio fell below its floor, or p99 missed its
aim on a machine where the handler that decides nothing kept it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from yarl import URL

from bench.measuring import floors
from bench.measuring.figures import percentile
from bench.measuring.load import Load, Order, Outcome, pooled
from bench.measuring.processes import cpu_seconds
from bench.measuring.timing import best_us
from bench.measuring.world import playground, quiet, say
from bench.webhook_creates import creates
from rackgate.api import resources as kinds
from rackgate.jobframework.managed import inject
from rackgate.jobframework.registry import JOB
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import answer_review
from rackgate_webhook.admission.validate import validate
from tests.support.playground import Playground

CALLS: Final = 2_000
ROUNDS: Final = 2
GENERATORS: Final = 2
CONNECTIONS: Final = 8
AIMS_MS: Final = {200.0: 20.0, 500.0: 50.0}
TRIVIAL: Final = "handler that decides nothing"
# Above this share of an aim, late sending alone explains a miss.
LATE_SHARE: Final = 0.25
OURS: Final = {1: "webhook, 1 replica", 3: "webhook, 3 replicas"}
SECTION: Final = "webhook"
REVIEWS: Final = Path(__file__).with_name("reviews")


def recorded(kind: str) -> bytes:
    """A review as the API server sent it, in its own compact form."""
    return msgspec.json.encode(json.loads(REVIEWS.joinpath(f"{kind}.json").read_text()))


def repeat(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def in_process() -> dict[str, float]:
    """Print and return microseconds per call of the pure part."""
    job, pod = recorded("job"), recorded("pod")
    manifest = json.loads(job)["request"]["object"]
    found = best_us(
        {
            "json.loads of the Job's review": repeat(lambda: json.loads(job)),
            "inject_job": repeat(lambda: inject(JOB, manifest)),
            "whole mutating review, Job": repeat(lambda: answer_review(job, mutate)),
            "whole mutating review, pod": repeat(lambda: answer_review(pod, mutate)),
            "whole validating review, Job": repeat(lambda: answer_review(job, validate)),
        },
        CALLS,
    )
    say(f"in process; reviews of {len(job) / 1e3:.1f} KB (Job) and {len(pod) / 1e3:.1f} KB (pod)")
    for name, us in found.items():
        say(f"  {name:32}{us:8.1f} us")
    return found


@contextlib.contextmanager
def trivial_handler() -> Iterator[tuple[str, bytes, int]]:
    """Another process that answers at once; its URL, authority and process id."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.trivial_handler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = json.loads(child.stdout.readline())
        url = f"https://127.0.0.1:{said['port']}/mutate"
        yield url, said["authority"].encode(), child.pid
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


async def registration(started: Playground) -> tuple[str, bytes]:
    """Where the API server would call the webhook, and whom it trusts there."""
    async with started.client() as client:
        path = kinds.MUTATING_CONFIGS.path(None, "rackgate-mutating.rackgate-system")
        config = json.loads(await client.get(path))["webhooks"][0]["clientConfig"]
    return config["url"], base64.b64decode(config["caBundle"])


@dataclass
class Target:
    """Who is asked, and what it answered at each rate."""

    name: str
    url: str
    authority: bytes
    pids: dict[str, int]
    outcomes: dict[float, list[Outcome]] = field(default_factory=dict)
    cpu_s: dict[float, float] = field(default_factory=dict)

    def post(self, rate: float, seconds: float) -> None:
        """Post reviews for some seconds."""
        url = URL(self.url)
        order = Order(
            host=url.host or "",
            port=url.port or 0,
            path=url.path,
            authority=self.authority.decode(),
            bodies=tuple(recorded(kind).decode() for kind in ("job", "pod")),
            rate=rate,
            seconds=seconds,
            begin=0.0,
            connections=CONNECTIONS,
        )
        before = self._cpu_s()
        with Load(order, GENERATORS) as load:
            self.outcomes.setdefault(rate, []).append(load.wait())
        self.cpu_s[rate] = self.cpu_s.get(rate, 0.0) + self._cpu_s() - before

    def _cpu_s(self) -> float:
        return sum(seconds for key, seconds in cpu_seconds(self.pids).items() if key != "bench")

    def outcome(self, rate: float) -> Outcome:
        return pooled(self.outcomes[rate])

    def figures(self, rate: float) -> dict[str, float]:
        """Milliseconds, counts and CPU of all rounds at one rate."""
        one = self.outcome(rate)
        sent = len(one.took_ms) + one.timed_out + one.failed
        return {
            "p50": percentile(one.took_ms, 0.5),
            "p99": percentile(one.took_ms, 0.99),
            "max": max(one.took_ms, default=float("nan")),
            "timed_out": one.timed_out,
            "failed": one.failed,
            "late_p99": percentile(one.late_ms, 0.99),
            "server_ms": self.cpu_s[rate] / max(sent, 1) * 1e3,
            "generator_share": one.cpu_s / (sent / rate) / (os.cpu_count() or 1),
        }


def line(name: str, found: dict[str, float]) -> str:
    return (
        f"  {name:30}{found['p50']:9.2f}{found['p99']:9.2f}{found['max']:9.2f}"
        f"{found['timed_out']:11.0f}{found['failed']:8.0f}{found['server_ms']:11.2f}"
        f"{found['late_p99']:14.2f}{found['generator_share']:10.0%}"
    )


HEAD: Final = (
    f"  {'':30}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'timed out':>11}{'failed':>8}"
    f"{'CPU ms/rev':>11}{'sent late p99':>14}{'load uses':>10}"
)


def served(started: Playground, rates: list[float], seconds: float) -> list[Target]:
    """Ask each in turns at each rate; prints what came of it."""
    url, authority = asyncio.run(registration(started))
    targets: list[Target] = []
    with trivial_handler() as (trivial, trusted, pid):
        targets.append(Target(TRIVIAL, trivial, trusted, {TRIVIAL: pid}))
        targets += [Target(name, url, authority, {}) for name in OURS.values()]
        for _ in range(ROUNDS):
            for target, replicas in zip(targets, (0, *OURS), strict=True):
                if replicas:
                    started.run("scale", "webhook", str(replicas))
                    pids = started.pids("webhook")
                    target.pids = {f"webhook-{number}": one for number, one in enumerate(pids)}
                for rate in rates:
                    target.post(rate, seconds / ROUNDS)
    for rate in rates:
        say(
            f"over TLS, {CONNECTIONS * GENERATORS} kept connections, {rate:g} reviews/s for"
            f" {seconds:g} s each, from {GENERATORS} processes"
        )
        say(HEAD)
        for target in targets:
            say(line(target.name, target.figures(rate)))
    return targets


def too_full(base: dict[str, float], found: dict[str, float], aim_ms: float) -> str:
    """Why a missed aim says nothing about the webhook; empty when it does."""
    if base["p99"] >= aim_ms:
        return f", but so did the {TRIVIAL}: the machine is too full"
    if found["late_p99"] > aim_ms * LATE_SHARE:
        return f", but requests were sent {found['late_p99']:.0f} ms late: the machine is too full"
    return ""


def judge(targets: list[Target], rates: list[float]) -> tuple[dict[str, float], bool]:
    """Ratios against the handler that decides nothing, and whether what was promised holds."""
    trivial, *ours = targets
    ratios: dict[str, float] = {}
    holds = True
    for rate in rates:
        base = trivial.figures(rate)
        for target in ours:
            found = target.figures(rate)
            ratios[f"p50 {TRIVIAL} / {target.name}, {rate:g}/s"] = base["p50"] / found["p50"]
            if found["timed_out"] or found["failed"]:
                say(f"{target.name} at {rate:g}/s: requests timed out or failed: FAILED")
                holds = False
            aim = AIMS_MS.get(rate)
            if aim is None:
                continue
            met = found["p99"] < aim
            full = too_full(base, found, aim)
            say(
                f"{target.name} at {rate:g}/s: p99 {found['p99']:.1f} ms,"
                f" {found['p99'] / base['p99']:.2f}x the {TRIVIAL}'s:"
                f" aim < {aim:g} ms {'met' if met else 'MISSED' + full}"
            )
            holds = holds and (met or bool(full))
    return ratios, holds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rate", type=float, nargs="+", default=list(AIMS_MS), help="reviews per second"
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each server at each rate")
    parser.add_argument("--jobs", type=int, default=400, help="creates of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    floors.add_options(parser)
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    quiet()
    document: dict[str, Any] = {"in_process_us": in_process()}
    with playground(("webhook",)) as started:
        targets = served(started, arguments.rate, arguments.seconds)
        ratios, holds = judge(targets, arguments.rate)
        started.run("scale", "webhook", "1")
        found = asyncio.run(creates(started, arguments.jobs))
    for text in found.lines():
        say(text)
    ratios |= found.ratios()
    if arguments.json:
        document["served"] = {
            target.name: {str(rate): target.figures(rate) for rate in arguments.rate}
            for target in targets
        }
        document["creates"] = found.figures
        document["ratios"] = ratios
        arguments.json.write_text(json.dumps(document, indent=1))
    said, kept = floors.judge(ratios, SECTION, arguments)
    say("\n".join(said)) if said else None
    return int(not (holds and kept))


if __name__ == "__main__":
    sys.exit(main())
