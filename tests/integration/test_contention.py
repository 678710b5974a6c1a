"""Somebody else keeps writing to the pods that are to be released."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.errors import KubeError
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK

pytestmark = pytest.mark.integration


async def annotate_for_ever(cluster: Cluster, name: str) -> None:
    """Change a pod again and again, as fast as the API server takes it."""
    for number in itertools.count():
        change = {"metadata": {"annotations": {"example.com/counter": str(number)}}}
        try:
            await cluster.merge(kinds.PODS, name, change)
        except KubeError:
            await asyncio.sleep(0.01)


@pytest.mark.requirement("UNG-06", "UNG-17")
async def test_pods_that_others_write_to_are_released_all_the_same(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)

    async def born() -> list[str]:
        names = [pod["metadata"]["name"] for pod in await cluster.pods_of("train")]
        return names if len(names) == 4 else []

    tasks = [
        asyncio.create_task(annotate_for_ever(cluster, name))
        for name in await until("four pods are there", born)
        for _ in range(2)
    ]
    try:
        # Long enough for the batch window: the first patches meet pods that have moved on.
        await asyncio.sleep(2.5)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    places = await cluster.places("train", 4)
    assert len({(block, rack) for block, rack, _ in places}) == 1
