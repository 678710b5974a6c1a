"""Jobs without a queue label: deploy/unlabelled and manageJobsWithoutQueueName."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.names import QUEUE_LABEL
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, local_queue
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

HOOK = "unlabelled.mutate.rackgate.dev"
SETTING = "RACKGATE_WEBHOOK_MANAGE_JOBS_WITHOUT_QUEUE_NAME"


@pytest.fixture
def told(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A webhook that suspends all jobs without a queue. To be asked for before `cluster`."""
    playground.run("stop", "webhook")
    with monkeypatch.context() as patch:
        patch.setenv(SETTING, "true")
        playground.run("start", "webhook")
        yield
        playground.run("stop", "webhook")
    playground.run("start", "webhook")


@pytest.fixture
async def component(told: None, cluster: Cluster) -> AsyncIterator[None]:
    """The component: its role, and its webhook. No other test of this control plane runs."""
    del told
    folder = deploy_dir() / "unlabelled"
    for document in install.documents(folder / "rbac.yaml"):
        role = document["kind"] == "ClusterRole"
        found = kinds.CLUSTER_ROLES if role else kinds.CLUSTER_ROLE_BINDINGS
        await cluster.create(found, document)
    (added,) = install.documents(folder / "webhooks.yaml")
    (hook,) = added["webhooks"]
    name = added["metadata"]["name"]

    def add(configuration: dict[str, Any]) -> None:
        known = configuration["webhooks"][0]["clientConfig"]
        url = known["url"].rpartition("/")[0] + hook["clientConfig"]["service"]["path"]
        client = {"url": url, "caBundle": known["caBundle"]}
        configuration["webhooks"].append({**hook, "clientConfig": client})

    def remove(configuration: dict[str, Any]) -> None:
        kept = [one for one in configuration["webhooks"] if one["name"] != HOOK]
        configuration["webhooks"] = kept

    await cluster.replace(kinds.MUTATING_CONFIGS, name, add)
    try:
        yield
    finally:
        await cluster.replace(kinds.MUTATING_CONFIGS, name, remove)


@pytest.mark.usefixtures("component")
async def test_a_job_without_a_queue_waits_or_gets_the_default_one(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()

    async def suspended(name: str) -> bool:
        """A dry run until the API server calls the new webhook."""
        await cluster.submit(name, 1, queue=None, required=RACK)
        found = await cluster.get(kinds.JOBS, name)
        return bool(found["spec"]["suspend"])

    probes = iter(range(100))
    await until("the webhook is called", lambda: suspended(f"probe-{next(probes)}"))
    await cluster.submit("waits", 1, queue=None, required=RACK)
    job = await cluster.get(kinds.JOBS, "waits")
    assert job["spec"]["suspend"] is True
    assert QUEUE_LABEL not in job["metadata"].get("labels", {})
    job = await cluster.merge(kinds.JOBS, "waits", {"spec": {"suspend": False}})
    assert job["spec"]["suspend"] is True, "it cannot be started without a queue"
    await cluster.merge(kinds.JOBS, "waits", {"metadata": {"labels": {QUEUE_LABEL: "queue"}}})
    await cluster.bound("waits", 1)

    await cluster.create(kinds.LOCAL_QUEUES, local_queue("default", f"{cluster.pool}-queue"))
    await cluster.submit("train", 2, queue=None, required=RACK)
    job = await cluster.get(kinds.JOBS, "train")
    assert job["metadata"]["labels"][QUEUE_LABEL] == "default"
    await cluster.bound("train", 2)
    pods = await cluster.pods_of("train")
    assert all(names.PODSET_LABEL in pod["metadata"]["labels"] for pod in pods)
