"""Nodes that come and go under the load: cordoned, or not ready, for a few seconds each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError
from rackgate.runtime.tasks import start

# At any moment this share of the nodes is away, each for this long: far below the time after
# which pods leave a node, far above what the services take to notice.
SHARE: Final = 0.02
AWAY_S: Final = 3.0
SEED: Final = 1
TRIES: Final = 5


@dataclass
class Flaps:
    """What was done so far.

    Attributes:
        count: times a node went away.
    """

    count: int = 0
    away: set[str] = field(default_factory=set)


def patch(node: str, *, ready: bool, by_cordon: bool) -> tuple[str, dict[str, Any]]:
    """Path and body that take a node away, or bring it back."""
    if by_cordon:
        return kinds.NODES.path(None, node), {"spec": {"unschedulable": None if ready else True}}
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "KubeletReady" if ready else "BenchFlaps",
        "message": "the bench",
    }
    return kinds.NODES.path(None, node, "status"), {"status": {"conditions": [condition]}}


async def _set(client: Client, node: str, *, ready: bool, by_cordon: bool) -> None:
    path, body = patch(node, ready=ready, by_cordon=by_cordon)
    for attempt in range(TRIES):
        try:
            await client.patch(path, json.dumps(body).encode(), PatchType.STRATEGIC)
        except KubeError:
            if attempt == TRIES - 1:
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def _flap(client: Client, nodes: Sequence[str], flaps: Flaps) -> None:
    """One node after the other, every other one by its Ready condition, until cancelled."""
    order = list(nodes)
    random.Random(SEED).shuffle(order)
    for number, node in enumerate(itertools.cycle(order)):
        by_cordon = number % 2 == 0
        try:
            await _set(client, node, ready=False, by_cordon=by_cordon)
            flaps.count += 1
            await asyncio.sleep(AWAY_S)
        finally:
            # Also when cancelled: the next round needs every node.
            await asyncio.shield(_set(client, node, ready=True, by_cordon=by_cordon))


@contextlib.asynccontextmanager
async def flapping(client: Client, nodes: Sequence[str]) -> AsyncIterator[Flaps]:
    """Let nodes flap while the block runs; all are back afterwards."""
    flaps = Flaps()
    lanes = max(1, round(len(nodes) * SHARE)) if nodes else 0
    tasks = [
        start(_flap(client, nodes[lane::lanes], flaps), f"flap {lane}") for lane in range(lanes)
    ]
    try:
        yield flaps
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one
