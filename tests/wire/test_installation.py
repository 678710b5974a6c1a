"""A second installation, and Kueue beside Rackgate, are refused with words and exit code 3."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from rackgate.api.resources import (
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    LEASES,
    MUTATING_CONFIGS,
    SECRETS,
)
from rackgate.installation.marker import KUEUE_CONFIGURATION, MARK
from rackgate.runtime import clock
from rackgate.runtime.pki import make_authority
from rackgate_assigner.visibility.front_proxy import CONFIG_MAP, CONFIG_MAP_NAMESPACE
from rackgate_cli.controlplane import ports
from rackgate_ungater.shards.handover import SHARDS, lease_name
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.task_pages import FOLDER
from tests.support.waiting import until
from tests.wire.test_ungater_process import ready

OWN, OTHER = "rackgate-system", "team-infra"
SERVICES = ["assigner", "ungater"]
API_SERVICE_NAMES = ("v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as found:
        yield found


def binding(service: str, *namespaces: str) -> dict[str, Any]:
    name = f"rackgate-{service}"
    accounts = [
        {"kind": "ServiceAccount", "name": name, "namespace": namespace} for namespace in namespaces
    ]
    return {"metadata": {"name": MARK}, "subjects": accounts}


class Run:
    """One service as a process; what it says about its end."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def ended(self) -> tuple[int | None, str]:
        """Exit code, and the error of the last log line."""
        async with asyncio.timeout(60):
            _, err = await self.process.communicate()
        lines = [json.loads(line) for line in err.splitlines()]
        (last,) = (line for line in lines if line["event"] == "service_failed")
        return self.process.returncode, last["error"]


@pytest.fixture
async def start(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Any]:
    """Start a service of the installation in a namespace."""
    running: list[asyncio.subprocess.Process] = []
    with ports.reserved({OWN: None, OTHER: None}) as held:

        async def begin(service: str, namespace: str) -> Run:
            document = {
                "apiVersion": "config.rackgate.dev/v1alpha1",
                "kind": f"{service.capitalize()}Configuration",
                "connection": {"server": server.url, "requestTimeout": 5},
                "health": {"host": "127.0.0.1", "port": held[namespace]},
                "leaderElection": {"leaseDuration": 12, "namespace": namespace},
            }
            if service == "assigner":
                document["visibility"] = {"host": "127.0.0.1", "port": 0}
            if service == "webhook":
                document["serving"] = {"host": "127.0.0.1", "port": 0}
                document["certificates"] = {"namespace": namespace}
            path = tmp_path / f"{namespace}.yaml"
            path.write_text(yaml.safe_dump(document))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"rackgate_{service}", "--config", str(path)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            running.append(process)
            return Run(process, held[namespace])

        yield begin
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.communicate()


def holders(server: FakeApiServer) -> set[str]:
    """Namespaces in which anybody holds a Lease."""
    names = ("rackgate-assigner", "rackgate-ungater", *map(lease_name, range(SHARDS)))
    return {
        namespace
        for namespace in (OWN, OTHER)
        for name in names
        if (server.get(LEASES, name, namespace) or {"spec": {}})["spec"].get("holderIdentity")
    }


async def until_ready(run: Run) -> None:
    async with asyncio.timeout(60):
        while not await ready(run.port):
            assert run.process.returncode is None
            await asyncio.sleep(0.05)


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize("service", SERVICES)
async def test_of_two_that_start_at_once_one_acts_and_the_other_is_reported(
    server: FakeApiServer, start: Any, service: str
) -> None:
    server.put(CLUSTER_ROLE_BINDINGS, binding(service, OWN))
    first, second = await asyncio.gather(start(service, OWN), start(service, OTHER))
    code, error = await second.ended()
    assert code == 3
    assert error.startswith(
        f"Rackgate is installed in namespace {OWN} (ClusterRoleBinding rackgate), and "
        f"this service belongs to an installation in namespace {OTHER}."
    )
    await until_ready(first)
    await until(lambda: holders(server) == {OWN})


@pytest.mark.parametrize("service", SERVICES)
async def test_who_acts_ends_when_another_installation_takes_its_binding(
    server: FakeApiServer, start: Any, service: str
) -> None:
    server.put(CLUSTER_ROLE_BINDINGS, binding(service, OWN))
    first = await start(service, OWN)
    await until_ready(first)
    await until(lambda: holders(server) == {OWN})
    server.put(CLUSTER_ROLE_BINDINGS, binding(service, OTHER))
    code, error = await first.ended()
    assert (code, "is installed in namespace team-infra" in error) == (3, True)
    # Leases of the ungater run out: it ends as it does when it fails.
    assert service == "ungater" or holders(server) == set()


@pytest.mark.requirement("OPS-06")
async def test_where_both_are_named_neither_acts(server: FakeApiServer, start: Any) -> None:
    server.put(CLUSTER_ROLE_BINDINGS, binding("assigner", OWN, OTHER))
    runs = await asyncio.gather(*(start("assigner", name) for name in (OWN, OTHER)))
    assert [code for code, _ in [await run.ended() for run in runs]] == [3, 3]
    assert holders(server) == set()


@pytest.mark.parametrize("service", SERVICES)
async def test_kueue_beside_it_is_reported_before_and_while_it_acts(
    server: FakeApiServer, start: Any, service: str
) -> None:
    server.put(CLUSTER_ROLE_BINDINGS, binding(service, OWN))
    acting = await start(service, OWN)
    await until_ready(acting)
    server.put(MUTATING_CONFIGS, {"metadata": {"name": KUEUE_CONFIGURATION}})
    code, error = await acting.ended()
    assert (code, error.startswith("Kueue is installed in this cluster")) == (3, True)
    late = await start(service, OWN)
    code, error = await late.ended()
    assert (code, error.startswith("Kueue is installed in this cluster")) == (3, True)


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize("other", ["Rackgate", "Kueue"])
async def test_the_webhook_ends_too(server: FakeApiServer, start: Any, other: str) -> None:
    """Two sets of webhooks would mutate the same jobs; without one, policies go on."""
    if other == "Kueue":
        server.put(MUTATING_CONFIGS, {"metadata": {"name": KUEUE_CONFIGURATION}})
    else:
        server.put(CLUSTER_ROLE_BINDINGS, binding("assigner", OTHER))
    code, error = await (await start("webhook", OWN)).ended()
    assert (code, error.startswith(f"{other} is installed")) == (3, True)


async def test_without_the_right_to_know_it_waits_unready(
    server: FakeApiServer, start: Any
) -> None:
    """As the earlier installation does when it restarts: the binding granted it that right."""
    server.put(CLUSTER_ROLE_BINDINGS, binding("assigner", OTHER))
    server.faults.append(Fault.status(403, path="clusterrolebindings", times=1000))
    waits = await start("assigner", OWN)
    wanted = f"; ClusterRoleBinding rackgate must name namespace {OWN}, see "
    said = ""
    async with asyncio.timeout(60):
        while wanted not in said or "403" not in said:
            said = await missing(waits.port)
            await asyncio.sleep(0.05)
    assert holders(server) == set()


def put_visibility(server: FakeApiServer) -> None:
    """The APIServices, and an API server that has a front proxy."""
    for name in API_SERVICE_NAMES:
        server.put(API_SERVICES, {"metadata": {"name": name}, "spec": {"service": {}}})
    made = make_authority("front-proxy-ca", validity=timedelta(days=1), now=clock.now())
    metadata = {"name": CONFIG_MAP, "namespace": CONFIG_MAP_NAMESPACE}
    data = {
        "requestheader-client-ca-file": made.certificate_pem.decode(),
        "requestheader-username-headers": '["X-Remote-User"]',
    }
    server.put(CONFIG_MAPS, {"metadata": metadata, "data": data})


def bundles(server: FakeApiServer) -> list[str]:
    """The CA bundle of each APIService."""
    found = [server.get(API_SERVICES, name) or {"spec": {}} for name in API_SERVICE_NAMES]
    return [one["spec"].get("caBundle", "") for one in found]


@pytest.mark.parametrize(("namespace", "writes"), [(OWN, True), (OTHER, False)])
async def test_only_the_sole_installation_writes_the_api_services(
    server: FakeApiServer, start: Any, namespace: str, writes: bool
) -> None:
    """They have one name in all installations."""
    put_visibility(server)
    server.put(CLUSTER_ROLE_BINDINGS, binding("assigner", OWN))
    run = await start("assigner", namespace)
    if writes:
        await until(lambda: all(bundles(server)))
        return
    code, _ = await run.ended()
    assert code == 3
    assert bundles(server) == ["", ""]
    assert server.get(SECRETS, "rackgate-visibility-tls", OWN) is None


@pytest.mark.parametrize("service", ["assigner", "ungater", "webhook"])
async def test_each_service_keeps_as_many_watches_as_the_page_for_operators_says(
    server: FakeApiServer, start: Any, service: str
) -> None:
    put_visibility(server)
    page = " ".join((FOLDER / "configure.md").read_text().split())
    told = re.search(
        r"each assigner has (?P<assigner>\d+) watches, one more each for JobSets, RayClusters and "
        r"RayJobs if they are installed, .* Each ungater has (?P<ungater>\d+) watches, .* "
        r"each webhook (?P<webhook>\d+)\.",
        page,
    )
    assert told is not None
    # Here all of them are served.
    wanted = int(told[service]) + (3 if service == "assigner" else 0)
    server.put(CLUSTER_ROLE_BINDINGS, binding(service, OWN))
    run = await start(service, OWN)
    await until(lambda: len(server.streams) >= wanted)
    if service != "webhook":  # which nobody can call here
        await until_ready(run)
    assert len(server.streams) == wanted, sorted(one.target.full_name for one in server.streams)


async def missing(port: int) -> str:
    """What /readyz says is missing; "" while nobody listens."""
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return await answer.text()
    except aiohttp.ClientError:
        return ""
