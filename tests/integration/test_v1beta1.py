"""v1beta1 on a real control plane: the manifests of tests/compat/v1beta1, applied unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.conversion import OLD_API_VERSION, convert
from rackgate.api.resources import Resource
from rackgate.kube.client import PatchType
from rackgate.kube.errors import ConflictError, KubeError, UnprocessableError
from rackgate_webhook.settings import CONVERTED_CRDS
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, RACK, Object, node
from tests.support.playground import Playground

pytestmark = [pytest.mark.integration, pytest.mark.requirement("OPS-04")]

MANIFESTS = Path(__file__).parents[1] / "compat" / "v1beta1"
EXPECTED: list[Object] = yaml.safe_load((MANIFESTS / "expected.yaml").read_text())
KINDS = {
    kind.kind: kind
    for kind in vars(kinds).values()
    if isinstance(kind, Resource) and kind.group == names.GROUP
}
NODE_GROUP = {"cloud.provider.com/node-group": "old-tas-node-group"}


def older(kind: Resource) -> Resource:
    return replace(kind, version=names.OLD_VERSION)


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """Paths of what was expected and is not there."""
    if isinstance(want, dict) and isinstance(got, dict):
        return [
            found for key in want for found in differences(want[key], got.get(key), f"{path}.{key}")
        ]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [found for i, (a, b) in pairs for found in differences(a, b, f"{path}[{i}]")]
    return [] if want == got else [f"{path}: expected {want!r}, found {got!r}"]


@pytest_asyncio.fixture
async def kubectl(playground: Playground, cluster: Cluster) -> AsyncIterator[Any]:
    """kubectl in the test's namespace; what it applied is deleted at the end."""
    applied: list[str] = []

    async def run(*arguments: str) -> str:
        if arguments[:2] == ("apply", "-f"):
            applied.append(arguments[2])
        where = ("-n", cluster.namespace)
        return await asyncio.to_thread(playground.run, "kubectl", *arguments, *where)

    yield run
    for path in reversed(dict.fromkeys(applied)):
        await run("delete", "-f", path, "--ignore-not-found", "--wait=false")


def test_the_table_names_every_manifest_and_every_kind() -> None:
    files = {path.name for path in MANIFESTS.glob("*.yaml")}
    jobs = {"tas-sample-job.yaml"}
    assert {row["file"] for row in EXPECTED} == files - {"expected.yaml"} - jobs
    shown = {found["kind"] for row in EXPECTED for found in row.get("objects", ())}
    assert shown == set(KINDS)


@pytest.mark.requirement("OPS-04")
async def test_old_manifests_apply_unchanged_and_are_read_in_both_versions(
    cluster: Cluster, kubectl: Any
) -> None:
    for row in EXPECTED:
        path = str(MANIFESTS / row["file"])
        if "rejected" in row:
            with pytest.raises(AssertionError) as error:
                await kubectl("apply", "-f", path)
            assert row["rejected"] in str(error.value)
            continue
        await kubectl("apply", "-f", path)
        for found in row["objects"]:
            kind = KINDS[found["kind"]]
            for version in (kind, older(kind)):
                stored = await cluster.get(version, found["name"])
                assert differences(found[version.version], stored) == [], row["file"]
        # Another apply of the same manifest, as GitOps does every few minutes, changes nothing.
        kept = [found for found in row["objects"] if "respelled" not in found]
        before = await generations(cluster, kept)
        await kubectl("apply", "-f", path)
        assert await generations(cluster, kept) == before


async def generations(cluster: Cluster, rows: list[Object]) -> list[int | None]:
    found = [await cluster.get(KINDS[row["kind"]], row["name"]) for row in rows]
    return [one["metadata"].get("generation") for one in found]


@pytest.mark.requirement("OPS-04", "TAS-30")
async def test_a_job_in_an_old_queue_is_admitted_and_its_domains_are_read_in_the_old_shape(
    cluster: Cluster, kubectl: Any
) -> None:
    nodes = [
        node(cluster.pool, "b1", rack, f"{rack}-{i}", labels=NODE_GROUP)
        for rack in ("r1", "r2")
        for i in (1, 2)
    ]
    await cluster.add_nodes(nodes)
    await kubectl("apply", "-f", str(MANIFESTS / "priorities.yaml"))
    await kubectl("apply", "-f", str(MANIFESTS / "topology.yaml"))
    await cluster.wait_queues_seen()
    job = yaml.safe_load((MANIFESTS / "tas-sample-job.yaml").read_text())
    name = (await cluster.create(kinds.JOBS, job))["metadata"]["name"]
    await cluster.bound(name, 3)
    workload = await cluster.condition(name, "Admitted")
    old = await cluster.get(older(kinds.WORKLOADS), workload["metadata"]["name"])
    assert old["spec"]["priorityClassName"] == "old-sample-priority"
    assert old["spec"]["priorityClassSource"] == "kueue.x-k8s.io/workloadpriorityclass"
    (of_podset,) = old["status"]["admission"]["podSetAssignments"]
    assignment = of_podset["topologyAssignment"]
    assert set(assignment) == {"levels", "domains"}
    assert assignment["levels"] == [BLOCK, RACK]
    assert {tuple(domain["values"]) for domain in assignment["domains"]} <= {
        ("b1", "r1"),
        ("b1", "r2"),
    }
    assert sum(domain["count"] for domain in assignment["domains"]) == 3
    listed = await cluster.list_all(older(kinds.WORKLOADS))
    assert [one["status"]["admission"] for one in listed] == [old["status"]["admission"]]

    # A client of v1beta1 writes what it read, and nothing of the admission is lost.
    path = older(kinds.WORKLOADS).path(cluster.namespace, workload["metadata"]["name"])

    async def written() -> bool:
        read = await cluster.client.get(path)
        try:
            found = await cluster.client.replace(path, read)
            await cluster.client.replace(f"{path}/status", found)
        except ConflictError:
            return False
        return True

    await until("the Workload is written through v1beta1", written)
    after = await cluster.get(kinds.WORKLOADS, workload["metadata"]["name"])
    assert after["status"]["admission"] == workload["status"]["admission"]
    # What is fixed in one version is fixed in the other.
    for change, field in (
        ({"spec": {"queueName": "another"}}, "spec.queueName"),
        (
            {"spec": {"priorityClassSource": "scheduling.k8s.io/priorityclass"}},
            "spec.priorityClassName",
        ),
        ({"spec": {"podSets": None}}, "spec.podSets"),
    ):
        body = json.dumps(change).encode()
        with pytest.raises(UnprocessableError) as error:
            await cluster.client.patch(path, body, PatchType.MERGE, {"dryRun": "All"})
        assert field in error.value.message


async def old_queue(cluster: Cluster, name: str) -> Object:
    """A ClusterQueue created in v1beta1, so that its fields have a manager of that version."""
    manifest = {
        "apiVersion": OLD_API_VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{cluster.pool}-{name}"},
        "spec": {"cohort": cluster.pool, "namespaceSelector": {}},
    }
    return await cluster.create(older(kinds.CLUSTER_QUEUES), manifest)


async def read_old(cluster: Cluster, name: str) -> str:
    """Empty if the ClusterQueue is read in v1beta1, else what the API server says."""
    try:
        found = await cluster.get(older(kinds.CLUSTER_QUEUES), name)
    except KubeError as error:
        return error.message
    assert found["spec"]["cohort"] == cluster.pool
    return ""


async def test_without_a_webhook_the_stored_version_is_read_and_written(
    playground: Playground, cluster: Cluster
) -> None:
    stored = await old_queue(cluster, "down")
    name = stored["metadata"]["name"]
    await asyncio.to_thread(playground.run, "stop", "webhook")
    try:
        said = await read_old(cluster, name)
        assert "conversion webhook" in said, said
        found = await cluster.get(kinds.CLUSTER_QUEUES, name)
        assert found["spec"]["cohortName"] == cluster.pool
        await cluster.merge(kinds.CLUSTER_QUEUES, name, {"spec": {"stopPolicy": "Hold"}})
        await cluster.create(
            kinds.CLUSTER_QUEUES,
            convert({**stored, "metadata": {"name": f"{name}-new"}}, names.API_VERSION),
        )
        assert await cluster.list_all(kinds.CLUSTER_QUEUES)
    finally:
        await asyncio.to_thread(playground.run, "start", "webhook")

    async def converts() -> bool:
        return not await read_old(cluster, name)

    await until("v1beta1 is served again", converts)


@pytest.mark.requirement("HOOK-13")
async def test_a_ca_bundle_that_somebody_removes_comes_back(cluster: Cluster) -> None:
    name = (await old_queue(cluster, "bundle"))["metadata"]["name"]
    crd = CONVERTED_CRDS[0]
    before = await cluster.get(kinds.CRDS, crd)
    client = before["spec"]["conversion"]["webhook"]["clientConfig"]
    gone = [{"op": "remove", "path": "/spec/conversion/webhook/clientConfig/caBundle"}]
    body = json.dumps(gone).encode()
    await cluster.client.patch(kinds.CRDS.path(name=crd), body, PatchType.JSON)

    async def back() -> bool:
        found = await cluster.get(kinds.CRDS, crd)
        return bool(found["spec"]["conversion"]["webhook"]["clientConfig"] == client)

    await until("the CA bundle is in the CRD", back)

    async def converts() -> bool:
        return not await read_old(cluster, name)

    await until("v1beta1 is served", converts)
