"""The playground itself: side by side, after kills, and when a part does not start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate.api.names import TOPOLOGY_GATE
from rackgate.kube.client import Client
from rackgate_cli.controlplane import compose
from rackgate_cli.controlplane.ports import await_free
from rackgate_cli.controlplane.processes import start_time
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.locations import deploy_dir
from tests.support.composed import composed
from tests.support.deadlines import WaitedTooLongError, until
from tests.support.objects import BLOCK, HOST, RACK, job
from tests.support.playground import LEASE_S, Playground, rackgate, start_playground

pytestmark = pytest.mark.integration

BARE: tuple[str, ...] = ()
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
ROOT = deploy_dir().parent
SCHEMA_MODULE = "github.com/compose-spec/compose-go/v2"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Playground, Playground]]:
    """Two playgrounds side by side: a bare one, and one with 8 nodes and an audit log."""
    folder = tmp_path_factory.mktemp("pair")
    first = start_playground(folder / "first", services=BARE)
    try:
        second = start_playground(folder / "second", nodes=8, services=BARE, audit=True)
        try:
            yield first, second
        finally:
            second.stop()
    finally:
        if first.state.exists():  # the last test with it removes it
            first.stop()


def ports(playground: Playground) -> list[int]:
    record = json.loads((playground.state / "playground.json").read_text())
    return list(record["ports"].values())


async def names(client: Client, kind: kinds.Resource) -> list[str]:
    listed = json.loads(await client.get(kind.path()))
    return [item["metadata"]["name"] for item in listed["items"]]


async def all_ready(playground: Playground) -> bool:
    found = await asyncio.to_thread(playground.components)
    return all(component["ready"] for component in found.values())


async def test_two_playgrounds_run_side_by_side(pair: tuple[Playground, Playground]) -> None:
    first, second = pair
    for playground in pair:
        assert list(playground.components()) == list(CONTROL_PLANE)
        # Each is asked for 2 s, and a full machine may be slower.
        await until("all components are ready", partial(all_ready, playground))
    assert set(ports(first)).isdisjoint(ports(second))
    async with first.client() as ours, second.client() as theirs:
        assert await names(ours, kinds.NODES) == []
        assert len(await names(theirs, kinds.NODES)) == 8
        assert await names(ours, kinds.CLUSTER_QUEUES) == []
        assert await names(theirs, kinds.CLUSTER_QUEUES) == ["default"]


def test_one_playground_rejects_the_credentials_of_another(
    pair: tuple[Playground, Playground], tmp_path: Path
) -> None:
    first, second = pair
    config = yaml.safe_load(first.kubeconfig.read_text())
    other = yaml.safe_load(second.kubeconfig.read_text())
    config["clusters"] = other["clusters"]
    mixed = tmp_path / "kubeconfig"
    mixed.write_text(yaml.safe_dump(config))
    binaries = json.loads((first.state / "playground.json").read_text())["binaries"]
    done = subprocess.run(
        [binaries["kubectl"], "--kubeconfig", str(mixed), "get", "nodes"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Unauthorized" in done.stderr or "must be logged in" in done.stderr


def test_only_the_playground_that_was_asked_writes_an_audit_log(
    pair: tuple[Playground, Playground],
) -> None:
    first, second = pair
    assert not first.audit_log.exists()
    entry = json.loads(second.audit_log.read_text().splitlines()[0])
    assert entry["level"] == "Metadata"


def test_the_version_is_that_of_a_release(pair: tuple[Playground, Playground]) -> None:
    version = json.loads(pair[0].run("kubectl", "version", "-o", "json"))
    for part in ("clientVersion", "serverVersion"):
        assert version[part]["gitVersion"] == "v1.36.3"
        assert (version[part]["major"], version[part]["minor"]) == ("1", "36")


def processes(playground: Playground) -> dict[str, tuple[object, object]]:
    found = playground.components()
    return {name: (component["pid"], component["log"]) for name, component in found.items()}


async def test_up_on_a_running_playground_changes_nothing(
    pair: tuple[Playground, Playground],
) -> None:
    folder = StateFolder(pair[0].state)
    before, remembered = processes(pair[0]), folder.load()
    assert remembered is not None
    assert remembered.lease_duration == LEASE_S
    await asyncio.to_thread(pair[0].run, "up", "--nodes", "0", "--services", "none")
    assert processes(pair[0]) == before
    await until("all components are ready", partial(all_ready, pair[0]))
    assert folder.load() == remembered


async def test_simulated_pods_end_as_their_annotations_say(
    pair: tuple[Playground, Playground],
) -> None:
    marks = {
        "runs": {},
        "succeeds": {"rackgate.dev/run-seconds": "1"},
        "fails": {"rackgate.dev/fail-after-seconds": "1"},
    }
    async with pair[1].client() as client:
        for name, annotations in marks.items():
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "none"}],
                },
            }
            await client.create(kinds.PODS.path("default"), json.dumps(pod).encode())
        wanted = {"runs": "Running", "succeeds": "Succeeded", "fails": "Failed"}
        deadline = time.monotonic() + 180
        phases: dict[str, str] = {}
        while phases != wanted:
            assert time.monotonic() < deadline, phases
            await asyncio.sleep(0.1)
            listed = json.loads(await client.get(kinds.PODS.path("default")))["items"]
            phases = {item["metadata"]["name"]: item["status"]["phase"] for item in listed}


def test_a_stopped_component_comes_back_where_it_was(pair: tuple[Playground, Playground]) -> None:
    playground = pair[0]
    (before,) = playground.pids("kube-apiserver")
    playground.run("stop", "kube-apiserver")
    assert playground.pids("kube-apiserver") == []
    playground.run("start", "kube-apiserver")
    playground.run("start", "kube-apiserver")
    (after,) = playground.pids("kube-apiserver")
    assert after != before
    assert playground.run("kubectl", "get", "--raw", "/readyz") == "ok"


@pytest.mark.requirement("OPS-10")
async def test_what_compose_starts_ungates_a_job_from_end_to_end(
    pair: tuple[Playground, Playground], tmp_path: Path
) -> None:
    """Its steps, commands, files and health checks, on a control plane with exactly its flags."""
    playground = pair[0]
    with composed(ROOT / "docker-compose.yaml", tmp_path / "state") as system:
        system.step("pki")
        assert (system.state / "kubeconfigs" / "admin.kubeconfig").is_file()
        system.adapt(playground.server, playground.state / "pki" / "ca.crt")
        async with playground.client() as client:
            await compose.install_all(client, system.state, system.webhook_url, system.visibility)
            assert len(await names(client, kinds.NODES)) == compose.NODES
            assert await names(client, kinds.LOCAL_QUEUES) == ["default"]
            with system.running() as processes:
                for name in processes:
                    await until(f"{name} is healthy", partial(soon, system.healthy, name))
                try:
                    await follow_a_job(client)
                except WaitedTooLongError as error:
                    raise AssertionError(system.logs()) from error
            assert {name: one.returncode for name, one in processes.items()} == dict.fromkeys(
                processes, 0
            )


async def soon(question: Callable[..., bool], *arguments: str) -> bool:
    return await asyncio.to_thread(question, *arguments)


async def follow_a_job(client: Client) -> None:
    """A Job of the queue that comes with it is stored suspended, gated, placed and released."""
    made = job("train", 4, queue="default", required=RACK, cpu="1")
    stored = json.loads(await client.create(kinds.JOBS.path("default"), json.dumps(made).encode()))
    assert stored["spec"]["suspend"] is True, "the webhook was asked"

    async def all_bound() -> list[dict[str, Any]]:
        listed = json.loads(
            await client.get(kinds.PODS.path("default"), {"labelSelector": "job-name=train"})
        )["items"]
        return listed if sum("nodeName" in pod["spec"] for pod in listed) == 4 else []

    pods = await until("all pods of the Job are bound", all_bound)
    nodes = json.loads(await client.get(kinds.NODES.path()))["items"]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    hosts = [pod["spec"]["nodeName"] for pod in pods]
    assert len({(labels[host][BLOCK], labels[host][RACK]) for host in hosts}) == 1
    for pod in pods:
        assert pod["spec"]["nodeSelector"][HOST] == pod["spec"]["nodeName"]
        assert not pod["spec"].get("schedulingGates")
    started = json.loads(await client.get(kinds.JOBS.path("default", "train")))
    gates = started["spec"]["template"]["spec"]["schedulingGates"]
    assert gates == [{"name": TOPOLOGY_GATE}]
    await client.delete(kinds.JOBS.path("default", "train"), b'{"propagationPolicy":"Background"}')


def test_up_fails_when_a_component_exits_and_leaves_nothing_running(tmp_path: Path) -> None:
    state = tmp_path / "state"
    broken = tmp_path / "assets" / "etcd"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo etcd v3.6.8 && exit\necho disk is on fire; exit 7\n"
    )
    broken.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "rackgate_cli", "up", "--state", str(state), "--nodes", "0"],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(broken.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert '"etcd" exited with code 7' in done.stderr
    assert done.stderr.endswith("\n  disk is on fire\n")
    components = json.loads(rackgate("status", "--state", str(state), "--json"))["components"]
    assert [name for name, part in components.items() if part["pid"] is not None] == []
    rackgate("down", "--state", str(state), "--purge")


def test_the_environment_of_the_user_does_not_reach_the_components(
    pair: tuple[Playground, Playground],
) -> None:
    (pid,) = pair[0].pids("etcd")
    names = {
        entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")
    }
    assert "HOME" in names
    assert not {name for name in names if name.startswith(("ETCD", "PYTEST", "RACKGATE"))}


# These two end what all tests above look at.
async def test_a_playground_that_went_down_comes_up_with_its_objects(
    pair: tuple[Playground, Playground],
) -> None:
    playground = pair[1]
    async with playground.client() as client:
        before = await names(client, kinds.NODES)
    playground.run("down")
    again = start_playground(playground.state, services=BARE)
    async with again.client() as client:
        assert len(before) == 8
        assert await names(client, kinds.NODES) == before


def test_down_after_kills_leaves_no_process_and_no_port(
    pair: tuple[Playground, Playground],
) -> None:
    playground = pair[0]
    pids = [pid for name in CONTROL_PLANE for pid in playground.pids(name)]
    used = ports(playground)
    assert len(pids) == len(CONTROL_PLANE)
    for name in ("etcd", "kube-scheduler"):
        os.kill(playground.pids(name)[0], signal.SIGKILL)
    playground.run("down")
    assert [pid for pid in pids if start_time(pid) is not None] == []
    # Somebody else may connect from one of them meanwhile.
    assert await_free(used, limit_s=60) == []
    playground.run("down")
    playground.stop()
    assert not playground.state.exists()


@pytest.mark.requirement("OPS-10")
def test_the_compose_file_fits_the_published_schema() -> None:
    """The schema is a file of a Go module, pinned by go.sum beside this test."""
    done = subprocess.run(
        [shutil.which("go") or "go", "mod", "download", "-json", SCHEMA_MODULE],
        cwd=Path(__file__).parent / "compose_schema",
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    folder = Path(json.loads(done.stdout)["Dir"])
    schema = json.loads((folder / "schema" / "compose-spec.json").read_text())
    document = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    jsonschema.validate(document, schema)
    document["services"]["etcd"]["comand"] = []
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(document, schema)
