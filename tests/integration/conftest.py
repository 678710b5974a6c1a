"""One control plane with services and operators for each process; own names for each test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS, OSMO_POOLS, RENDER_FOR_KAI
from tests.support import evidence
from tests.support.cluster import Cluster, until
from tests.support.identities import JOB_CONTROLLER, acting_as
from tests.support.playground import Playground, start_playground
from tests.support.rights import Record, audited_requests

# They start control planes of their own; while they are first, that of their process does not run.
OWN_PLANES = (
    "test_operators_day",
    "test_takeover",
    "test_chaos",
    "test_elsewhere",
    "test_restored_etcd",
    "test_scaling",
    "test_demo",
    "test_playground",
    "test_playground_page",
    "test_gates_off",
    "test_gangs",
    "test_gang_jobs",
    "test_linked_kinds",
    "test_gang_pods",
    "test_native_gangs",
    "test_gang_kills",
    "test_pod_groups",
)
LONG = (
    "test_task_pages",
    "test_topology_requests",
    "test_jobset",
    "test_raycluster",
    "test_main_job",
    "test_webhook",
)
# No process is to come to one of these when the others have ended. Alerts compile for minutes once.
FIRST = (*OWN_PLANES, "test_alerts", *LONG)
HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the folder in which a whole run keeps what its services asked for."""
    parser.addoption(
        "--audit-records",
        metavar="DIR",
        help="keep there, for each control plane, the rights that the services used",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, and a test's time is its own: planes that start have limits."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else 99)
    for item in items:
        own = item.get_closest_marker("timeout")
        if item.path.is_relative_to(HERE) and (own is None or "func_only" not in own.kwargs):
            kept = own.args if own else ()
            item.add_marker(pytest.mark.timeout(*kept, func_only=True), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what is in its namespace and what the services said about it."""
    report = yield
    if report.failed and report.when != "teardown":
        report.sections += evidence.sections(getattr(item, "funcargs", {}))
    return report


@pytest.fixture(scope="session")
def playground(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Playground]:
    """The shared playground: all operators, elastic jobs, audit log; no nodes, no queues.

    Jobs go to KAI where their template names it, and only there.
    """
    folder = request.config.getoption("audit_records")
    process = os.environ.get("PYTEST_XDIST_WORKER", "only")
    record = Record.begin(Path(folder), process) if folder else None
    running = start_playground(
        tmp_path_factory.mktemp("playground") / "state",
        nodes=0,
        operators=("jobset", "kuberay", "lws", "kai-crds"),
        gates=(ELASTIC_JOBS, ELASTIC_INDEXED_JOBS, RENDER_FOR_KAI, OSMO_POOLS),
        audit=True,
    )
    try:
        with running.webhooks_port():
            yield running
        if record is not None:
            record.write(audited_requests(running.audit_log))
    finally:
        running.stop()


@pytest.fixture
def webhook_down(playground: Playground) -> Iterator[None]:
    """No webhook answers. To be asked for with `usefixtures`, so that it comes before `cluster`."""
    playground.run("stop", "webhook")
    yield
    playground.run("start", "webhook")


@pytest.fixture
async def cluster(playground: Playground, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """This test's own namespace, node pool and names on the shared control plane."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:19]
    # Namespaces stay until the end of the run: no name may come again.
    pool = f"{name.strip('-')}-{uuid.uuid4().hex[:10]}"
    async with playground.client() as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool}}
        await client.create(kinds.NAMESPACES.path(), json.dumps(namespace).encode())
        cluster = Cluster(client, pool, pool)
        account = partial(cluster.find, kinds.SERVICE_ACCOUNTS, "default")
        await until("pods may be created, as their ServiceAccount exists", account, every_s=0.02)
        yield cluster
        # A service that is gone must not fail all the tests after this one as well.
        ended = await asyncio.to_thread(playground.restart_ended)
        await cluster.leave()
        assert not ended, "\n".join(ended)


@pytest.fixture
async def job_controller(playground: Playground, cluster: Cluster) -> AsyncIterator[Cluster]:
    """The test's cluster as the Job controller sees it, who makes the pods of Jobs."""
    async with acting_as(playground, cluster, JOB_CONTROLLER) as controller:
        yield controller


@pytest.fixture
def assigner_away(playground: Playground) -> Iterator[None]:
    """No assigner: what the API server stores keeps it busy for longer than its lease may last.

    On a full machine it would end itself. To be asked for before `cluster`, with `usefixtures`:
    then it comes back when what was stored is gone.
    """
    playground.run("stop", "assigner")
    yield
    playground.run("start", "assigner")
