"""One control plane with services and operators for the whole session; own names for each test."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from rackgate.kube import resources as kinds
from rackgate.runtime.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from tests.support.cluster import Cluster
from tests.support.playground import Playground, start_playground


@pytest.fixture(scope="session")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """The shared playground: all operators, elastic jobs, audit log; no nodes, no queues."""
    running = start_playground(
        tmp_path_factory.mktemp("playground") / "state",
        nodes=0,
        operators=("jobset", "kuberay"),
        gates=(ELASTIC_JOBS, ELASTIC_INDEXED_JOBS),
        audit=True,
    )
    yield running
    running.stop()


@pytest.fixture
async def cluster(playground: Playground, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """This test's own namespace, node pool and names on the shared control plane."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:24]
    pool = f"{name.strip('-')}-{uuid.uuid4().hex[:5]}"
    async with playground.client() as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool}}
        await client.create(kinds.NAMESPACES.path(), json.dumps(namespace).encode())
        cluster = Cluster(client, pool, pool)
        yield cluster
        await cluster.clean()
        await client.delete(kinds.NAMESPACES.path(None, pool))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The comparison of rights and uses comes last: by then the run has shown every use."""
    last = ("every_use_of_a_right", "every_right_of_a_service")
    items.sort(key=lambda item: item.name.startswith(tuple(f"test_{name}" for name in last)))
