"""The webhook's certificate is replaced while Jobs are created: no call fails."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import KubeError
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, job
from tests.support.playground import Playground
from tests.support.standstills import EVERY_S, standstills

pytestmark = pytest.mark.integration


def renamed(playground: Playground, folder: Path) -> Path:
    """The configuration of a replica that wants one more name in the certificate."""
    given = yaml.safe_load((playground.state / "services" / "webhook-0.yaml").read_text())
    given["health"]["port"] = 0
    given["certificates"]["dnsNames"].append("webhook.localhost")
    given["certificates"] |= {"settle": 2, "checkInterval": 0.5}
    path = folder / "renamed.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def start_replica(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """One more webhook process on the playground's port."""
    command = [sys.executable, "-m", "rackgate_webhook", "--config", str(config)]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


async def create_until(cluster: Cluster, done: asyncio.Event) -> int:
    """Create governed Jobs (dry-run) that come unsuspended: without the webhook each is refused."""
    created, loop = 0, asyncio.get_running_loop()
    path = kinds.JOBS.path(cluster.namespace)
    body = json.dumps(job("probe", 1, required=RACK)).encode()
    async with standstills() as still:
        while not done.is_set() or created <= 20:
            begun = loop.time()
            try:
                answer = await cluster.client.create(path, body, {"dryRun": "All"})
            except KubeError:
                await asyncio.sleep(EVERY_S)
                if not still.excuse(begun):
                    raise
                continue
            assert json.loads(answer)["spec"]["suspend"] is True
            created += 1
            await asyncio.sleep(0.01)  # the replicas need the machine, too
    return created


async def convert_until(cluster: Cluster, done: asyncio.Event) -> int:
    """Read a ClusterQueue in v1beta1, which the webhook converts."""
    older = replace(kinds.CLUSTER_QUEUES, version=names.OLD_VERSION)
    name = f"{cluster.pool}-old"
    manifest = {"apiVersion": older.api_version, "kind": older.kind, "metadata": {"name": name}}
    await cluster.create(older, {**manifest, "spec": {"cohort": cluster.pool}})
    converted, loop = 0, asyncio.get_running_loop()
    async with standstills() as still:
        while not done.is_set() or converted <= 20:
            begun = loop.time()
            try:
                found = await cluster.get(older, name)
            except KubeError as error:
                await asyncio.sleep(EVERY_S)
                # A kind whose definition has just changed is not served for a moment.
                if "conversion webhook" in error.message and not still.excuse(begun):
                    raise
                continue
            assert found["spec"]["cohort"] == cluster.pool
            converted += 1
            await asyncio.sleep(0.01)
    return converted


async def served(address: tuple[str, int]) -> str:
    """The certificate that one new connection is shown; "" where none comes about."""
    try:
        return await asyncio.to_thread(ssl.get_server_certificate, address, timeout=10)
    except OSError:
        return ""


@pytest.mark.requirement("HOOK-13")
@pytest.mark.field_note("W5")
async def test_a_certificate_is_replaced_without_a_failed_call(
    playground: Playground, cluster: Cluster, tmp_path: Path
) -> None:
    config = await cluster.get(kinds.MUTATING_CONFIGS, "rackgate-mutating.rackgate-system")
    url = urlsplit(config["webhooks"][0]["clientConfig"]["url"])
    address = (str(url.hostname), int(url.port or 443))
    before = await until("the certificate is served", lambda: served(address))

    async def replaced() -> bool:
        # Connections are shared by both replicas: ask until each must have answered.
        seen = [await served(address) for _ in range(12)]
        return not {before, ""} & set(seen)

    extra = start_replica(renamed(playground, tmp_path), tmp_path / "log")
    done = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(create_until(cluster, done))
            converting = group.create_task(convert_until(cluster, done))
            await until("both replicas serve the new certificate", replaced, timeout_s=180)
            done.set()
        assert creating.result() > 20
        assert converting.result() > 20
    finally:
        extra.terminate()
        assert await asyncio.to_thread(extra.wait, 90) == 0
