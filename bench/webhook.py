"""Cost of one review in process, and its latency over kept-alive TLS at a steady rate.

The served figures come in turns from the real webhook process and from a handler that decides
nothing, so the share of our own work shows. Each request is timed from the moment at which it
was due, so waiting behind a slow one counts.

Run: python -m bench.webhook [--rate N --seconds S]; exit code 1 when the aim is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import aiohttp

from bench.figures import percentile
from bench.samples import review, training_job
from bench.timing import best_us
from bench.world import playground, quiet, say
from rackgate.govern.job import govern_job
from rackgate.kube import resources as kinds
from rackgate_webhook.answer import answer_review
from rackgate_webhook.mutate import mutate
from rackgate_webhook.tls import client_context
from rackgate_webhook.validate import validate
from tests.support.playground import Playground

CALLS: Final = 2_000
CONNECTIONS: Final = 8
ROUNDS: Final = 2
AIM_MS: Final = 20.0


def repeat(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def in_process() -> None:
    """Print microseconds per call of the pure part."""
    job = training_job()
    body = review(job)
    found = best_us(
        {
            "json.loads of the review": repeat(lambda: json.loads(body)),
            "govern_job": repeat(lambda: govern_job(job)),
            "whole mutating review": repeat(lambda: answer_review(body, mutate)),
            "whole validating review": repeat(lambda: answer_review(body, validate)),
        },
        CALLS,
    )
    say(f"in process, a review of {len(body) / 1e3:.1f} KB")
    for name, us in found.items():
        say(f"  {name:26}{us:8.1f} us")


@contextlib.contextmanager
def trivial_handler() -> Iterator[tuple[str, bytes]]:
    """Another process that answers at once; its URL and authority."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.trivial_handler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = json.loads(child.stdout.readline())
        yield f"https://127.0.0.1:{said['port']}/mutate", said["authority"].encode()
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
        path = kinds.MUTATING_CONFIGS.path(None, "rackgate-mutating")
        config = json.loads(await client.get(path))["webhooks"][0]["clientConfig"]
    return config["url"], base64.b64decode(config["caBundle"])


async def serve(url: str, authority: bytes, rate: float, seconds: float) -> list[float]:
    """Milliseconds of each answer, from when its request was due."""
    body = review(training_job())
    connector = aiohttp.TCPConnector(ssl=client_context(authority), limit=CONNECTIONS)
    took: list[float] = []
    async with aiohttp.ClientSession(connector=connector) as session:

        async def post() -> None:
            headers = {"Content-Type": "application/json"}
            async with session.post(url, data=body, headers=headers) as answer:
                assert json.loads(await answer.read())["response"]["allowed"], answer.status

        async def due(at: float) -> None:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            await post()
            took.append((time.perf_counter() - at) * 1e3)

        async with asyncio.TaskGroup() as group:  # connections and their handshakes, untimed
            for _ in range(CONNECTIONS * 4):
                group.create_task(post())
        gc.collect()
        begin = time.perf_counter() + 0.1
        async with asyncio.timeout(seconds * 5 + 30), asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                group.create_task(due(begin + number / rate))
    return took


async def served(started: Playground, rate: float, seconds: float) -> bool:
    """Print latencies of both servers, in turns; returns whether ours meets the aim."""
    with trivial_handler() as trivial:
        targets = {"webhook": await registration(started), "trivial handler": trivial}
        took: dict[str, list[float]] = {name: [] for name in targets}
        for _ in range(ROUNDS):
            for name, (url, authority) in targets.items():
                took[name] += await serve(url, authority, rate, seconds / ROUNDS)
    say(f"over TLS, {CONNECTIONS} kept connections, {rate:g} reviews/s for {seconds:g} s each")
    for name, values in took.items():
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        say(f"  {name:26}p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   max {max(values):6.2f} ms")
    p99 = percentile(took["webhook"], 0.99)
    against = p99 / percentile(took["trivial handler"], 0.99)
    met = p99 < AIM_MS
    say(f"  p99 {against:.2f}x the trivial handler's")
    say(f"  p99 {p99:.1f} ms: aim < {AIM_MS:g} ms {'met' if met else 'MISSED'}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200, help="reviews per second")
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    quiet()
    in_process()
    with playground(("webhook",)) as started:
        met = asyncio.run(served(started, arguments.rate, arguments.seconds))
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
