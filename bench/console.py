"""The console with many hosts, and with many viewers.

- Page (needs Chromium): time from opening the link to the first picture of all hosts, and the
  frames while the map is panned for some seconds, each drawn at once after the one before.
- Streams: so many viewers of one console, while hosts change. Memory of the process that serves
  them, and the time until every viewer has a change. The clients are another process.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Page, async_playwright

from rackgate.api import resources as kinds
from rackgate_console.viewers.access import EVERYTHING
from rackgate_console.viewers.viewer import CLUSTER, Credentials
from rackgate_console.viewers.viewer import Viewer as User
from tests.console.pages import Site, chromium, site
from tests.support.console_page import Page as Viewer

PAN_S = 4.0
# Pans the map with each frame, and collects the time between frames and the time to draw one.
PAN = """async (seconds) => {
  const {map} = globalThis.rackgate.view;
  map.zoom(3);
  const gaps = [], draws = [];
  const end = performance.now() + seconds * 1000;
  let last = performance.now(), turn = 0;
  while (performance.now() < end) {
    map.pan(Math.sin(turn / 9) * 14, Math.cos(turn / 13) * 9);
    turn += 1;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - last);
    draws.push(map.frameMs);
    last = now;
  }
  return [gaps, draws];
}"""
FULL_PAN = PAN.replace("map.zoom(3);", "map.fit();")


class AnyViewers:
    """Everyone may see everything, each with a name of their own."""

    mode = CLUSTER

    async def viewer(self, credentials: Credentials) -> User:
        """Whoever they say they are."""
        return User(credentials.authorization, credentials.authorization, EVERYTHING)

    def check_host(self, host: str) -> None:
        """Any."""


async def page_figures(found: Site, hosts: int) -> dict[str, Any]:
    """First picture and frames in a browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        started = time.perf_counter()
        await page.goto(found.link())
        await _drawn(page)
        first_s = time.perf_counter() - started
        whole = await page.evaluate(FULL_PAN, PAN_S)
        near = await page.evaluate(PAN, PAN_S)
        leaves = (await page.evaluate("() => globalThis.rackgate.view.facts()"))["leaves"]
        await browser.close()
    return {
        "hosts": hosts,
        "drawn": leaves,
        "first_picture_s": round(first_s, 2),
        "whole": _frames(*whole),
        "near": _frames(*near),
    }


async def _drawn(page: Page) -> None:
    while True:
        shown = await page.evaluate(
            "() => globalThis.rackgate?.view?.facts?.().leaves > 0 && "
            "globalThis.rackgate.view.facts().frames > 0"
        )
        if shown:
            return
        await asyncio.sleep(0.01)


def _frames(gaps: list[float], draws: list[float]) -> dict[str, float]:
    gaps, draws = sorted(gaps[1:]), sorted(draws[1:])
    return {
        "frames_per_s": round(1000 / statistics.mean(gaps), 1),
        "draw_ms_median": round(statistics.median(draws), 2),
        "draw_ms_p99": round(draws[int(len(draws) * 0.99)], 2),
    }


async def stream_figures(found: Site, viewers: int, changes: int) -> dict[str, Any]:
    """Memory and delay with so many viewers, whose clients are another process."""
    port = found.address.rpartition(":")[2]
    before = _memory()
    clients = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.console", "--follow", port, "--viewers", str(viewers)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        seen = await _least_events(clients)
        opened = _memory()
        delays = []
        for turn in range(changes):
            node = copy.deepcopy(found.api.get(kinds.NODES, f"node-{turn + 1:05d}"))
            assert node is not None
            node["status"]["allocatable"]["cpu"] = str(viewers + turn)
            started = time.perf_counter()
            found.api.put(kinds.NODES, node)
            while (now := await _least_events(clients)) <= seen:
                pass
            seen = now
            delays.append(time.perf_counter() - started)
        after = _memory()
    finally:
        clients.kill()
        await clients.wait()
    return {
        "viewers": viewers,
        "kib_per_viewer": round((opened - before) / viewers, 1),
        "kib_more_after_changes": after - opened,
        "delay_s_median": round(statistics.median(delays), 3),
        "delay_s_max": round(max(delays), 3),
    }


async def _least_events(clients: asyncio.subprocess.Process) -> int:
    assert clients.stdout is not None
    line = await asyncio.wait_for(clients.stdout.readline(), 120)
    if not line:
        raise RuntimeError("the clients ended")
    return int(line)


async def follow(port: int, viewers: int) -> None:
    """Be so many viewers; print how many events the last of them has, whenever that rises."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as http:
        viewer = Viewer(port, http)
        seen = [0] * viewers
        printed = 0

        async def read(number: int) -> None:
            nonlocal printed
            headers = {"Authorization": f"user-{number}"}
            async with viewer.http.get(viewer.address + "/api/stream", headers=headers) as response:
                async for chunk in response.content.iter_any():
                    seen[number] += chunk.count(b"event: tables") + chunk.count(b"event: changes")
                    if seen[number] > printed and min(seen) > printed:
                        printed = min(seen)
                        print(printed, flush=True)

        async with asyncio.TaskGroup() as group:
            for number in range(viewers):
                group.create_task(read(number))


def _memory() -> int:
    """KiB of this process, which serves the page; and a fake API server."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"pages": [], "streams": []}
    for hosts in arguments.hosts:
        async with site(hosts=hosts, racks_of_block=16) as found:
            if chromium() is not None:
                figures["pages"].append(await page_figures(found, hosts))
                print(json.dumps(figures["pages"][-1]), flush=True)
    if arguments.viewers:
        async with site(AnyViewers(), hosts=arguments.stream_hosts) as found:
            for viewers in (1, arguments.viewers):
                figures["streams"].append(await stream_figures(found, viewers, arguments.changes))
                print(json.dumps(figures["streams"][-1]), flush=True)
    return figures


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--viewers", type=int, default=1_000)
    parser.add_argument("--stream-hosts", type=int, default=192)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--follow", type=int, metavar="PORT", help="be the clients of a console")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    if arguments.follow is not None:
        asyncio.run(follow(arguments.follow, arguments.viewers))
        return 0
    figures = asyncio.run(run(arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
