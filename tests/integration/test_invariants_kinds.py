"""`rackgate invariants` on a JobSet and a resized RayCluster under their real operators."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from rackgate.kube.config import ConnectionSettings, connect
from rackgate_cli.controlplane.services import token_file
from rackgate_cli.controlplane.state import StateFolder
from tests.integration.test_elastic_raycluster import WORKERS, parent, settled, slices
from tests.integration.test_elastic_raycluster import start as start_cluster
from tests.integration.test_invariants import LIMIT_S, run, start
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.composite_views import bound_pods, jobset_selector, live_pods
from tests.support.objects import RACK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration


async def release(playground: Playground, pod: Object, host: str) -> None:
    """Take both gates off a pod with the ungater's rights, as if it had been granted."""
    folder = StateFolder(playground.state)
    settings = ConnectionSettings(
        server=playground.server,
        ca_file=folder.pki / "ca.crt",
        token_file=token_file(folder, "ungater"),
    )
    client = await connect(settings, user_agent="somebody/1")
    gates = [{"name": gate["name"], "$patch": "delete"} for gate in pod["spec"]["schedulingGates"]]
    spec = {"schedulingGates": gates, "nodeSelector": {names.HOSTNAME_LABEL: host}}
    meta = pod["metadata"]
    path = kinds.PODS.path(meta["namespace"], meta["name"])
    try:
        await client.patch(path, json.dumps({"spec": spec}).encode(), PatchType.STRATEGIC)
    finally:
        await client.close()


async def told(process: asyncio.subprocess.Process) -> dict[str, object]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
    assert line, "it ended"
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.requirement("SLC-14", "TAS-28")
async def test_a_resize_passes_and_a_pod_released_beyond_it_is_named(
    playground: Playground, cluster: Cluster
) -> None:
    ray = await start_cluster(cluster, 1, quota="18.5")  # the head, three workers, the JobSet
    workers = replicated_job("workers", 2, replicas=2, cpu="1", annotations=marks(required=RACK))
    await cluster.create(kinds.JOBSETS, jobset("set", [workers]))
    await bound_pods(cluster, jobset_selector("set"), 4)
    words = ("--watch", "--json", "--interval", "0.2", "--settle", "10", "-n", cluster.namespace)
    watching = await start(playground, *words)
    try:
        first = await told(watching)
        assert first["event"] == "watching"
        assert isinstance(first["checked"], dict)
        numbers = [first["checked"][key] for key in ("pods", "governedJobs", "workloads")]
        assert numbers == [6, 2, 2]
        assert await ray.launch(small=2)
        await bound_pods(cluster, WORKERS, 3)
        assert await ray.terminate(*(await ray.workers("small"))[:2])
        await settled(cluster, 1)
        # The counts follow what was asked; the workers themselves may go a little later.
        await until("the autoscaler may launch again", lambda: ray.launch(small=4))
        await bound_pods(cluster, WORKERS, 3)

        async def waiting() -> list[Object]:
            pods = [
                p for p in await live_pods(cluster, WORKERS) if p["spec"].get("schedulingGates")
            ]
            return pods if len(pods) == 2 and len(await slices(cluster)) == 2 else []

        pods = await until("two workers wait", waiting)
        code, out = await run(playground, "-n", cluster.namespace)
        assert code == 0, out
        host = (await bound_pods(cluster, WORKERS, 3))[0]["spec"]["nodeName"]
        await release(playground, pods[0], host)
        found = await told(watching)
        part = f"{cluster.namespace}/{(await parent(cluster))['metadata']['name']}/small"
        planted = {
            ("gate-taken", f"{cluster.namespace}/{pods[0]['metadata']['name']}"),
            ("over-domain", f"{part} {host}"),
            ("over-granted", part),
            ("over-granted-left", part),
        }
        assert found["event"] == "breach"
        assert (found["rule"], found["object"]) in planted, "nothing before it was one"
        watching.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(watching.communicate(), LIMIT_S)
        assert (watching.returncode, err) == (1, b"")
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()
