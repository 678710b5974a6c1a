"""The CustomResourceDefinitions before a real API server: what it stores, refuses, lets change."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.topology.assignment import TopologyAssignment, decode, encode
from tests.support.bad_manifests import BAD, Bad
from tests.support.changes import CHANGES, Change
from tests.support.cluster import Cluster
from tests.support.good_manifests import GOOD, Good
from tests.support.manifests import (
    BLOCK,
    HOSTNAME,
    RACK,
    Manifest,
    assigned,
    path_of,
    topology,
    workload,
)

pytestmark = pytest.mark.integration

DRY_RUN = {"dryRun": "All"}
TRIES = 20  # another writer of the status may come between; each try starts anew


def _lost(want: Any, got: Any, path: str = "") -> list[str]:
    """Paths of what was sent and did not come back."""
    if isinstance(want, dict) and isinstance(got, dict):
        return [found for key in want for found in _lost(want[key], got.get(key), f"{path}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [found for i, (a, b) in pairs for found in _lost(a, b, f"{path}[{i}]")]
    return [] if want == got and type(want) is type(got) else [f"{path}: {want!r} became {got!r}"]


def _body(manifest: Manifest, status: Manifest | None = None) -> bytes:
    return json.dumps(manifest if status is None else {**manifest, "status": status}).encode()


@asynccontextmanager
async def _stored(client: Client, manifest: Manifest, namespace: str) -> AsyncIterator[Manifest]:
    """The manifest as stored under a name of its own; gone afterwards."""
    name = f"{manifest['metadata']['name']}-{uuid4().hex[:8]}"
    mine = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
    stored: Manifest = json.loads(await client.create(path_of(mine, namespace), _body(mine)))
    try:
        yield stored
    finally:
        await _remove(client, path_of(mine, namespace, named=True))


async def _remove(client: Client, path: str) -> None:
    try:
        await client.delete(path)
        await client.patch(path, b'{"metadata":{"finalizers":null}}', PatchType.MERGE)
    except NotFoundError:
        return


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
@pytest.mark.requirement("OPS-04", "TAS-10", "TAS-11")
async def test_good_manifests_are_stored_whole(cluster: Cluster, case: Good) -> None:
    async with _stored(cluster.client, case.manifest, cluster.namespace) as stored:
        sent = {key: value for key, value in case.manifest.items() if key != "metadata"}
        assert _lost(sent, stored) == []
        if case.status is not None:
            path = path_of(stored, cluster.namespace, named=True)
            # Without a resourceVersion: other writers of the object do not matter here.
            patched = json.loads(
                await cluster.client.patch(
                    f"{path}/status", _body({"status": case.status}), PatchType.MERGE
                )
            )
            assert _lost({"status": case.status}, patched) == []


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
@pytest.mark.requirement("TAS-01", "TAS-02", "TAS-12", "VAL-01", "VAL-11")
async def test_bad_manifests_are_rejected_by_their_path(cluster: Cluster, case: Bad) -> None:
    client, namespace = cluster.client, cluster.namespace
    if case.status is None:
        with pytest.raises(UnprocessableError) as refused:
            await client.create(path_of(case.manifest, namespace), _body(case.manifest), DRY_RUN)
    else:
        async with _stored(client, case.manifest, namespace) as stored:
            path = path_of(stored, namespace, named=True)
            with pytest.raises(UnprocessableError) as refused:
                await client.patch(
                    f"{path}/status", _body({"status": case.status}), PatchType.MERGE, DRY_RUN
                )
    assert case.path in refused.value.message


@pytest.mark.parametrize("case", CHANGES, ids=lambda case: case.name)
async def test_changes_follow_the_rules(cluster: Cluster, case: Change) -> None:
    for _ in range(TRIES):
        try:
            message = await _try_change(cluster.client, case, cluster.namespace)
        except ConflictError:
            continue
        break
    else:
        pytest.fail(f"another writer came between {TRIES} times")
    if case.path is None:
        assert message is None
    else:
        assert message is not None
        assert case.path in message


async def _try_change(client: Client, case: Change, namespace: str) -> str | None:
    """Try the change against exactly the version that was set up; the refusal, or None."""
    async with _stored(client, case.manifest, namespace) as stored:
        path = path_of(stored, namespace, named=True)
        if case.status is not None:
            body = _body({"status": case.status})
            current = json.loads(await client.patch(f"{path}/status", body, PatchType.MERGE))
            return await _refusal(client, path, case, current)
        for _ in range(TRIES):
            # Others write finalizers and conditions, which matter to no rule about the spec.
            current = json.loads(await client.get(path))
            with contextlib.suppress(ConflictError):
                return await _refusal(client, path, case, current)
        pytest.fail(f"another writer came between {TRIES} times")


async def _refusal(client: Client, path: str, case: Change, current: Manifest) -> str | None:
    change = {
        **case.patch,
        "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
    }
    try:
        await client.patch(path, _body(change), PatchType.MERGE, DRY_RUN)
    except UnprocessableError as error:
        return error.message
    return None


async def test_levels_are_fixed_through_the_older_version(cluster: Cluster) -> None:
    before = topology(BLOCK, HOSTNAME, version="v1beta1")
    after = {"spec": topology(RACK, HOSTNAME)["spec"]}
    async with _stored(cluster.client, before, cluster.namespace) as stored:
        path = path_of(stored, named=True)
        with pytest.raises(UnprocessableError) as refused:
            await cluster.client.patch(path, _body(after), PatchType.MERGE, DRY_RUN)
        newer = path.replace("v1beta1", "v1beta2")
        await cluster.client.patch(newer, _body(after), PatchType.MERGE, DRY_RUN)
    assert "spec.levels" in refused.value.message


async def test_workloads_are_selected_by_their_cluster_queue(cluster: Cluster) -> None:
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{cluster.namespace}/workloads"
    params = {"fieldSelector": "status.admission.clusterQueue=nobody-has-this"}
    assert json.loads(await cluster.client.get(path, params))["items"] == []


@pytest.mark.requirement("TAS-30")
@pytest.mark.usefixtures("assigner_away")
async def test_a_hundred_thousand_domains_are_stored(cluster: Cluster) -> None:
    domains = tuple(((f"node-{i:06d}.example",), 1 + i % 2) for i in range(100_000))
    assignment = TopologyAssignment(levels=(HOSTNAME,), domains=domains)
    status = assigned(encode(assignment), count=assignment.count)
    async with _stored(cluster.client, workload(), cluster.namespace) as stored:
        path = path_of(stored, cluster.namespace, named=True)
        answer = await cluster.client.patch(
            f"{path}/status", _body({"status": status}), PatchType.MERGE
        )
    found = json.loads(answer)["status"]["admission"]["podSetAssignments"][0]
    assert decode(found["topologyAssignment"]) == assignment


async def test_a_null_where_nothing_is_meant_is_no_error(cluster: Cluster) -> None:
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "nulls"},
        "spec": {"cohortName": None, "preemption": None, "stopPolicy": None},
    }
    answer = json.loads(await cluster.client.create(path_of(queue), _body(queue), DRY_RUN))
    assert answer["spec"]["stopPolicy"] == "None"
    assert "namespaceSelector" not in answer["spec"]
