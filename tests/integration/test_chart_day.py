"""A release of the chart, under another name and namespace, on a control plane of its own.

Installed, upgraded, rolled back, uninstalled with a job running, and installed again. As in
test_operators_day.py, the services are processes beside the cluster, with the tokens and the
configurations of the release. Helm's post-renderer lets the API server call them on this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate.installation.uninstall import FINALIZER
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from rackgate_cli.controlplane.ports import reserved
from tests.support.chart.__main__ import CHART
from tests.support.cluster import Cluster, until
from tests.support.elsewhere import Elsewhere
from tests.support.helm import helm
from tests.support.objects import RACK, Object, job
from tests.support.playground import SERVICES, start_playground

# The first test may build Helm.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

RELEASE, NAMESPACE, TEAM = "quota", "batch-infra", "team"
CRD = "workloads.kueue.x-k8s.io"
# Reads objects, lets webhooks and the visibility API be called here, and writes them.
RENDERER = """\
#!{python}
import sys
import yaml
from tests.support.elsewhere import called_here
found = [one for one in yaml.safe_load_all(sys.stdin) if one]
yaml.safe_dump_all(called_here(found, {ports!r}), sys.stdout)
"""


class Release(Elsewhere):
    """A control plane, and a release in it."""

    def helm(self, *arguments: str, values: Object | None = None) -> str:
        """A command of Helm that works."""
        done = self.tried(*arguments, values=values)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    def tried(
        self, *arguments: str, values: Object | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of Helm; with values, one that renders the chart."""
        command = [str(helm()), *arguments, "--namespace", NAMESPACE]
        if values is not None:
            command += [str(CHART), "--values", "-", "--post-renderer", str(self._renderer())]
        home = {name: str(self.folder) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")}
        return subprocess.run(
            command,
            input=yaml.safe_dump(values or {}),
            env={
                **os.environ,
                **home,
                "HELM_DATA_HOME": str(self.folder),
                "KUBECONFIG": str(self.playground.kubeconfig),
                "PYTHONPATH": str(CHART.parents[2]),
            },
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
        )

    def _renderer(self) -> str:
        path = self.folder / "renderer"
        path.write_text(RENDERER.format(python=sys.executable, ports=dict(self.ports)))
        path.chmod(0o755)
        return str(path)

    def kubectl(self, *arguments: str) -> str:
        return self.playground.run("kubectl", *arguments)

    def read(self) -> None:
        """The configurations of the release as it is, and tokens of its ServiceAccounts."""
        text = self.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "json")
        self.configurations = {
            entry["metadata"]["name"].removeprefix("rackgate-"): yaml.safe_load(
                entry["data"]["config.yaml"]
            )
            for entry in json.loads(text)["items"]
            if "config.yaml" in entry["data"]
        }
        for service in SERVICES:
            token = self.kubectl(
                *("create", "token", f"rackgate-{service}", "-n", NAMESPACE, "--duration=24h")
            )
            self.token_file(service).write_text(token.strip())

    def restart(self) -> None:
        """What a rollout does: the services stop, and start with what the release says now."""
        codes = self.stop(*SERVICES)
        assert set(codes.values()) <= {0}
        self.read()
        self.start(*SERVICES)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("release")
    playground = start_playground(folder / "state", nodes=0, services=())
    with reserved(dict.fromkeys((*SERVICES, "reviews", "visibility"))) as ports:
        there = Release(playground, folder, ports, level="info", namespace=NAMESPACE)
        try:
            yield there
        finally:
            there.stop(*SERVICES)
            playground.stop()


@asynccontextmanager
async def team(release: Release) -> AsyncIterator[Cluster]:
    async with release.playground.client() as client:
        yield Cluster(client, TEAM, "chart")


async def ready(release: Release, cluster: Cluster) -> None:
    """Every service is ready, and the API server calls the webhook."""
    for service in SERVICES:

        async def answers(service: str = service) -> bool:
            return await asyncio.to_thread(release.ready, service)

        await until(f"{service} is ready", answers)

    async def suspends() -> bool:
        body = json.dumps(job("probe", 1)).encode()
        try:
            answer = await cluster.client.create(kinds.JOBS.path(TEAM), body, {"dryRun": "All"})
        except (ForbiddenError, UnprocessableError):
            return False
        return json.loads(answer)["spec"].get("suspend") is True

    await until("the API server calls the webhook", suspends)


async def steady(cluster: Cluster, name: str) -> dict[str, Any]:
    """What must not change of a job that runs."""
    found = await cluster.get(kinds.JOBS, name)
    pods = await cluster.pods_of(name)
    return {
        "spec": found["spec"],
        "uid": found["metadata"]["uid"],
        "pods": {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in pods},
    }


def bundles(configuration: Object) -> list[str]:
    return [hook["clientConfig"].get("caBundle", "") for hook in configuration["webhooks"]]


async def installed_jobs_run(release: Release) -> None:
    # What the playground comes with; nobody ever served it.
    delete = ("uninstall", "--yes", "--delete-crds", "--timeout", "120")
    await asyncio.to_thread(release.playground.delete_kinds, *delete)
    said = await asyncio.to_thread(
        release.helm, "install", RELEASE, "--create-namespace", values={}
    )
    assert f"is installed in namespace {NAMESPACE}" in said
    assert f"helm uninstall {RELEASE} --namespace {NAMESPACE}" in said
    release.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
    release.read()
    release.start(*SERVICES)
    async with team(release) as cluster:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
        await cluster.create(kinds.NAMESPACES, space)
        await ready(release, cluster)
        await cluster.add_fx_a()
        await cluster.add_queue()
        await cluster.submit("steady", 4, cpu="1", required=RACK)
        await cluster.bound("steady", 4)
        await cluster.submit("waits", 60, required=RACK)
        await cluster.condition("waits", "QuotaReserved", "False")


async def replicas(release: Release, service: str) -> int:
    found = await asyncio.to_thread(
        release.kubectl,
        *("get", "deployment", f"rackgate-{service}", "-n", NAMESPACE),
        *("-o", "jsonpath={.spec.replicas}"),
    )
    return int(found)


async def an_upgrade_changes_what_the_values_change(release: Release) -> None:
    async with team(release) as cluster:
        before = await steady(cluster, "steady")
        name = f"rackgate-mutating.{NAMESPACE}"
        carried = set(bundles(await cluster.get(kinds.MUTATING_CONFIGS, name)))
        refused = await asyncio.to_thread(
            release.tried, "upgrade", RELEASE, values={"webhook": {"replicas": 0}}
        )
        assert refused.returncode != 0
        assert "'/webhook/replicas'" in refused.stderr
        values = {
            "image": {"tag": "0.2.0"},
            "components": {"pods": True},
            "webhook": {"replicas": 3},
            "assigner": {"config": {"verifyPeriod": 60}},
        }
        await asyncio.to_thread(release.helm, "upgrade", RELEASE, values=values)
        assert await replicas(release, "webhook") == 3
        # What the services wrote is theirs.
        role = await cluster.get(kinds.CLUSTER_ROLES, f"rackgate-assigner.{NAMESPACE}")
        assert FINALIZER in role["metadata"]["finalizers"]
        assert carried <= set(bundles(await cluster.get(kinds.MUTATING_CONFIGS, name)))
        await asyncio.to_thread(release.restart)
        assert release.configurations["assigner"]["verifyPeriod"] == 60
        await ready(release, cluster)
        hooks = (await cluster.get(kinds.MUTATING_CONFIGS, name))["webhooks"]
        assert "plain-pods.mutate.rackgate.dev" in {hook["name"] for hook in hooks}
        assert await steady(cluster, "steady") == before
        await cluster.submit("upgraded", 1, cpu="1")
        await cluster.bound("upgraded", 1)


async def a_rollback_takes_it_back(release: Release) -> None:
    async with team(release) as cluster:
        before = await steady(cluster, "steady")
        await asyncio.to_thread(release.helm, "rollback", RELEASE, "1")
        assert await replicas(release, "webhook") == 2
        await asyncio.to_thread(release.restart)
        assert "verifyPeriod" not in release.configurations["assigner"]
        await ready(release, cluster)
        hooks = await cluster.get(kinds.MUTATING_CONFIGS, f"rackgate-mutating.{NAMESPACE}")
        assert "plain-pods" not in json.dumps(hooks)
        assert await steady(cluster, "steady") == before
        await cluster.submit("rolled-back", 1, cpu="1")
        await cluster.bound("rolled-back", 1)


async def an_uninstall_loses_no_job(release: Release) -> None:
    async with team(release) as cluster:
        before = await steady(cluster, "steady")
        queues = [one["metadata"]["name"] for one in await cluster.list_all(kinds.CLUSTER_QUEUES)]
        said = await asyncio.to_thread(release.helm, "uninstall", RELEASE)
        assert f'release "{RELEASE}" uninstalled' in said
        codes = {
            name: await asyncio.to_thread(release.running.pop(name).wait, 90)
            for name in ("assigner", "ungater")
        }
        assert codes == {"assigner": 0, "ungater": 0}
        await asyncio.to_thread(release.stop, "webhook")
        assert await steady(cluster, "steady") == before
        assert await cluster.get(kinds.CRDS, CRD)
        left = [one["metadata"]["name"] for one in await cluster.list_all(kinds.CLUSTER_QUEUES)]
        assert left == queues
        waits = await cluster.get(kinds.JOBS, "waits")
        assert waits["spec"]["suspend"] is True
        assert "schedulingGates" not in waits["spec"]["template"]["spec"]
        for kind in (kinds.ADMISSION_POLICIES, kinds.MUTATING_CONFIGS, kinds.VALIDATING_CONFIGS):
            names = [one["metadata"]["name"] for one in await cluster.list_all(kind)]
            assert [name for name in names if name.startswith("rackgate")] == []
        assert await cluster.find(kinds.CLUSTER_ROLES, f"rackgate-assigner.{NAMESPACE}") is None
        assert await cluster.get(kinds.CLUSTER_ROLES, f"rackgate-uninstall.{NAMESPACE}")
        assert await cluster.get(kinds.NAMESPACES, NAMESPACE)


async def installed_again_it_goes_on_with_what_runs(release: Release) -> None:
    """By another name, so that what stayed must be taken over."""
    async with team(release) as cluster:
        before = await steady(cluster, "steady")
        refused = await asyncio.to_thread(release.tried, "install", "other", values={})
        assert refused.returncode != 0
        assert "invalid ownership metadata" in refused.stderr
        await asyncio.to_thread(release.helm, "install", "other", "--take-ownership", values={})
        release.read()
        release.start(*SERVICES)
        await ready(release, cluster)
        await cluster.submit("again", 1, cpu="1")
        await cluster.bound("again", 1)
        assert await steady(cluster, "steady") == before


async def the_two_commands_of_the_page_end_it(release: Release) -> None:
    """Also while no service runs; the namespace stays, because it has the record of the release."""
    async with team(release) as cluster:
        before = await steady(cluster, "steady")
        await asyncio.to_thread(release.stop, *SERVICES)
        said = await asyncio.to_thread(
            release.playground.run, "uninstall", "--namespace", NAMESPACE, "--yes"
        )
        assert NAMESPACE in said
        assert await cluster.get(kinds.NAMESPACES, NAMESPACE)
        await asyncio.to_thread(release.helm, "uninstall", "other")
        assert json.loads(await asyncio.to_thread(release.helm, "list", "-o", "json")) == []
        assert await steady(cluster, "steady") == before
        assert await cluster.get(kinds.CRDS, CRD)


STEPS = (
    installed_jobs_run,
    an_upgrade_changes_what_the_values_change,
    a_rollback_takes_it_back,
    an_uninstall_loses_no_job,
    installed_again_it_goes_on_with_what_runs,
    the_two_commands_of_the_page_end_it,
)


@pytest.mark.requirement("OPS-14")
async def test_the_life_of_a_release(release: Release) -> None:
    """Each step begins where the one before it ended."""
    for step in STEPS:
        await step(release)
