"""`rackgate invariants` on a real control plane: silent on what is right, and it names what is not.

What is broken here is broken by hand, with the rights of a service or an administrator: the
services themselves must never let it come so far.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Collection
from datetime import UTC, datetime

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from rackgate.kube.config import ConnectionSettings, connect
from rackgate_cli.controlplane.services import token_file
from rackgate_cli.controlplane.state import StateFolder
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

LIMIT_S = 180.0


async def start(playground: Playground, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "rackgate_cli", "invariants", "--kubeconfig", str(playground.kubeconfig), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(playground: Playground, *words: str) -> tuple[int | None, str]:
    process = await start(playground, *words)
    out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert err == b"", err.decode()
    return process.returncode, out.decode()


async def take_gate(playground: Playground, pod: Object, host: str) -> None:
    """Release a pod as the ungater might, to a place that nobody assigned."""
    folder = StateFolder(playground.state)
    settings = ConnectionSettings(
        server=playground.server,
        ca_file=folder.pki / "ca.crt",
        token_file=token_file(folder, "ungater"),
    )
    client = await connect(settings, user_agent="somebody/1")
    patch = {
        "spec": {
            "schedulingGates": [{"name": names.TOPOLOGY_GATE, "$patch": "delete"}],
            "nodeSelector": {names.HOSTNAME_LABEL: host},
        }
    }
    meta = pod["metadata"]
    path = kinds.PODS.path(meta["namespace"], meta["name"])
    try:
        await client.patch(path, json.dumps(patch).encode(), PatchType.STRATEGIC)
    finally:
        await client.close()


async def overbook(cluster: Cluster, host: str) -> None:
    """Admit by hand what neither the host nor the quota has room for."""
    container = {
        "name": "c",
        "image": "registry.example/x:1",
        "resources": {"requests": {"cpu": "4"}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    podset = {"name": "main", "count": 3, "template": template}
    workload = {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": "by-hand"},
        "spec": {"queueName": "queue", "active": True, "podSets": [podset]},
    }
    await cluster.create(kinds.WORKLOADS, workload)
    piece = {
        "domainCount": 1,
        "valuesPerLevel": [{"universal": host}],
        "podCounts": {"universal": 3},
    }
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "ByHand",
            "message": "",
            "lastTransitionTime": now,
        }
        for kind in ("QuotaReserved", "Admitted")
    ]
    granted = {
        "name": "main",
        "count": 3,
        "flavors": {"cpu": f"{cluster.pool}-queue"},
        "resourceUsage": {"cpu": "12"},
        "topologyAssignment": {"levels": [names.HOSTNAME_LABEL], "slices": [piece]},
    }
    admission = {"clusterQueue": f"{cluster.pool}-queue", "podSetAssignments": [granted]}
    status = {"status": {"admission": admission, "conditions": conditions}}
    await cluster.merge(kinds.WORKLOADS, "by-hand", status, "status")


async def heard(process: asyncio.subprocess.Process, wanted: Collection[tuple[str, str]]) -> None:
    """Read lines until all these breaches were told."""
    assert process.stdout is not None
    missing = set(wanted)
    while missing:
        line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        assert line, f"ended before it told of {missing}"
        told = json.loads(line)
        missing.discard((told.get("rule"), told.get("object")))


async def test_a_sound_cluster_passes_and_each_breach_is_named(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "20"})
    await cluster.submit("train", 3, required=RACK)
    places = await cluster.places("train", 3)
    code, out = await run(playground, "-n", cluster.namespace)
    assert code == 0, out
    assert "checked 3 pods of 1 managed Job and 1 Workload" in out
    watching = await start(playground, "--watch", "--json", "--interval", "0.2", "--settle", "1")
    try:
        await until("the watch has begun", lambda: _begun(watching))
        planted = await _plant(playground, cluster, places)
        await heard(watching, planted)
        code, out = await run(playground, "--json", "--settle", "1")
        found = {(one["rule"], one["object"]) for one in json.loads(out)["breaches"]}
        assert code == 1
        assert planted - {one for one in planted if one[0] == "gate-taken"} <= found
        watching.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(watching.communicate(), LIMIT_S)
        assert (watching.returncode, err) == (1, b"")
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()


async def _begun(watching: asyncio.subprocess.Process) -> bool:
    assert watching.stdout is not None
    line = await watching.stdout.readline()
    return bool(json.loads(line)["event"] == "watching")


async def _plant(
    playground: Playground, cluster: Cluster, places: list[tuple[str, str, str]]
) -> set[tuple[str, str]]:
    """Break four promises; returns rules and objects."""
    blocks = {place[0] for place in places}
    away = next(
        node["metadata"]["name"]
        for node in await cluster.list_all(kinds.NODES)
        if node["metadata"]["name"].startswith(f"{cluster.pool}-")
        and not set(node["metadata"]["labels"].values()) & blocks
    )
    # One pod more than was granted: it stays gated, until somebody takes the gate.
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 4, "completions": 4}})

    async def surplus() -> list[Object]:
        pods = await cluster.pods_of("train")
        return [pod for pod in pods if pod["spec"].get("schedulingGates")]

    pod = (await until("the surplus pod is there", surplus))[0]
    await take_gate(playground, pod, away)
    await overbook(cluster, places[0][2])
    workload = (await cluster.workload_of("train"))["metadata"]["name"]
    key, queue = f"{cluster.namespace}/{pod['metadata']['name']}", f"{cluster.pool}-queue"
    return {
        ("gate-taken", key),
        ("outside-assignment", key),
        ("over-granted", f"{cluster.namespace}/{workload}/main"),
        ("over-capacity", f"{places[0][2]} cpu"),
        ("over-quota", f"{queue} {queue}/cpu"),
    }
