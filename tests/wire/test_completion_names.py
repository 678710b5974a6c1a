"""Names of the cluster that shells complete, from a fake cluster over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish

PROGRAM = Path(sys.executable).parent / "kubectl_complete-rackgate"


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        async with assigner(running):
            for name in ("train", "tune"):
                running.submit(name, 1)
                await eventually(partial(running.admitted, name))
            running.submit("done", 1)
            await eventually(partial(running.admitted, "done"))
            running.complete("done")
            await eventually(running.shows("done", "Finished", "True"))
        yield running


@pytest.fixture
def kubeconfig(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": world.url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def completed(kubeconfig: Path, *words: str) -> set[str]:
    ran = await asyncio.create_subprocess_exec(
        PROGRAM,
        *words,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    out, _ = await ran.communicate()
    return set(out.decode().splitlines()) - {":4"}


async def offered(kubeconfig: Path, *words: str) -> set[str]:
    """What it completes from the cluster; it gives up early, so a busy machine asks again."""
    async with asyncio.timeout(120):
        while not (names := {one for one in await completed(kubeconfig, *words) if one[0] != "-"}):
            pass
    return names


async def test_names_come_from_the_cluster(world: World, kubeconfig: Path) -> None:
    there = ("-n", NAMESPACE)
    assert await offered(kubeconfig, "hold", *there, "") >= {"job/train", "job/tune"}
    assert await offered(kubeconfig, "cancel", *there, "job/tr") == {"job/train"}
    assert await completed(kubeconfig, "hold", *there, "job/d") == set()
    assert await offered(kubeconfig, "get", "queues", *there, "c") == {"cq"}
    assert await offered(kubeconfig, "get", "workloads", *there, "job/tu") == {"job/tune"}
    assert NAMESPACE in await offered(kubeconfig, "logs", "-n", NAMESPACE[:2])
