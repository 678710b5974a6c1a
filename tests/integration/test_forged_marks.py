"""Marks written by hand, gates of others, and namespaces that Rackgate keeps out of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, job

pytestmark = pytest.mark.integration

FOREIGN_GATE = "example.com/wait-for-data"
TEMPLATE = "spec.template"


async def prepare(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()


async def refused(writing: Any, path: str) -> None:
    """The write is refused, and the message starts its advice with that path."""
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert f"{path}: " in caught.value.message, caught.value.message


MARKS: list[tuple[str, str, Any, str]] = [
    ("metadata", "labels", {names.TAS_LABEL: "true"}, f"metadata.labels[{names.TAS_LABEL}]"),
    ("metadata", "labels", {names.PODSET_LABEL: "x"}, f"metadata.labels[{names.PODSET_LABEL}]"),
    (
        "metadata",
        "annotations",
        {names.WORKLOAD_ANNOTATION: "w"},
        f"metadata.annotations[{names.WORKLOAD_ANNOTATION}]",
    ),
    ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}], "spec.schedulingGates"),
    ("spec", "schedulingGates", [{"name": names.ELASTIC_GATE}], "spec.schedulingGates"),
]


@pytest.mark.requirement("HOOK-09")
async def test_a_reserved_mark_in_a_template_is_rejected_with_its_field(cluster: Cluster) -> None:
    for queue in ("queue", None):
        for part, field, value, path in MARKS:
            wish = job("forged", 1, queue=queue)
            wish["spec"]["template"][part][field] = value
            await refused(cluster.create(kinds.JOBS, wish), f"{TEMPLATE}.{path}")
    wish = job("forged", 1, required=RACK)
    wish["spec"]["template"]["metadata"]["labels"] = {names.PODSET_LABEL: "x"}
    path = f"{TEMPLATE}.metadata.labels[{names.PODSET_LABEL}]"
    await refused(cluster.create(kinds.JOBS, wish), path)


@pytest.mark.requirement("HOOK-09")
async def test_a_reserved_mark_on_a_pod_is_rejected_with_its_field(cluster: Cluster) -> None:
    for part, field, value, path in MARKS:
        wish: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "forged"},
            "spec": {"containers": [{"name": "c", "image": "registry.example/train:1"}]},
        }
        wish[part][field] = value
        await refused(cluster.create(kinds.PODS, wish), path)


@pytest.mark.requirement("HOOK-09")
async def test_the_marks_of_a_waiting_job_and_its_pods_are_frozen_with_their_field(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.submit("waiting", 5, required=RACK)
    await cluster.submit("train", 3, required=RACK, indexed=False, completions=9)
    (pod, *_) = await cluster.bound("train", 3)
    for part, field, value, path in MARKS[:3]:
        change = {"spec": {"template": {part: {field: value}}}}
        writing = cluster.merge(kinds.JOBS, "waiting", change)
        await refused(writing, f"{TEMPLATE}.{path}")
        for sub in (None, "status"):
            changed = dict.fromkeys(value, "other")
            writing = cluster.merge(
                kinds.PODS, pod["metadata"]["name"], {part: {field: changed}}, sub
            )
            await refused(writing, path)
    change = {"spec": {"template": {"spec": {"schedulingGates": []}}}}
    await refused(cluster.merge(kinds.JOBS, "waiting", change), f"{TEMPLATE}.spec.schedulingGates")
    # A surplus pod is gated, and stays so whatever its user writes.
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 4}})

    async def gated() -> list[Object]:
        return [p for p in await cluster.pods_of("train") if p["spec"].get("schedulingGates")]

    (surplus,) = await until("the fourth pod is gated", gated)
    ungate: Object = {"spec": {"schedulingGates": []}}
    name = surplus["metadata"]["name"]
    await refused(cluster.merge(kinds.PODS, name, ungate), "spec.schedulingGates")


@pytest.mark.requirement("UNG-08")
async def test_a_foreign_gate_is_neither_touched_nor_waited_for(cluster: Cluster) -> None:
    await prepare(cluster)
    gate = {"name": FOREIGN_GATE}
    await cluster.submit("train", 2, required=RACK, pod={"schedulingGates": [gate]})

    async def placed() -> list[Object]:
        pods = await cluster.pods_of("train")
        ours = [p for p in pods if p["spec"].get("schedulingGates") == [gate]]
        return ours if len(ours) == 2 else []

    for pod in await until("only the foreign gate is left", placed):
        assert pod["spec"]["nodeSelector"][names.HOSTNAME_LABEL]
        assert "nodeName" not in pod["spec"]
        change: Object = {"spec": {"schedulingGates": None}}
        await cluster.merge(kinds.PODS, pod["metadata"]["name"], change)
    await cluster.bound("train", 2)
    workload = (await cluster.workload_of("train"))["spec"]["podSets"][0]
    assert workload["template"]["spec"]["schedulingGates"] == [gate]


async def test_marks_on_the_job_itself_do_not_confuse_it(cluster: Cluster) -> None:
    await prepare(cluster)
    forged = {
        names.WORKLOAD_ANNOTATION: "another",
        names.TOPOLOGY_GATE: "x",
    }
    wish = job("train", 2, required=RACK)
    wish["metadata"]["annotations"] = forged
    wish["metadata"]["labels"] |= {names.TAS_LABEL: "true", names.PODSET_LABEL: "main"}
    await cluster.create(kinds.JOBS, wish)
    await cluster.bound("train", 2)
    # Neither does a running Job stop when its user takes the mark away.
    change = {"metadata": {"annotations": {names.WORKLOAD_ANNOTATION: None}}}
    before = {pod["metadata"]["uid"] for pod in await cluster.pods_of("train")}
    await cluster.merge(kinds.JOBS, "train", change)
    await cluster.submit("other", 1, required=RACK)
    await cluster.bound("other", 1)
    assert {pod["metadata"]["uid"] for pod in await cluster.bound("train", 2)} == before


@pytest.mark.parametrize("namespace", names.UNMANAGED_NAMESPACES)
async def test_labelled_jobs_of_system_namespaces_run_ungoverned(
    cluster: Cluster, namespace: str
) -> None:
    await prepare(cluster)
    system = dataclasses.replace(cluster, namespace=namespace, created=[])
    name = f"{cluster.pool}-job"
    selector = {"nodeSelector": {"test.rackgate.dev/pool": cluster.pool}}
    made = await system.create(kinds.JOBS, job(name, 1, required=RACK, pod=selector))
    try:
        assert made["spec"]["suspend"] is False
        assert "schedulingGates" not in made["spec"]["template"]["spec"]
        # The assigner has seen it by the time that a later Job runs.
        await cluster.submit("later", 1, required=RACK)
        await cluster.bound("later", 1)
        stored = await system.get(kinds.JOBS, name)
        assert stored["metadata"]["generation"] == 1
        assert await system.list_all(kinds.WORKLOADS) == []
        # What its user suspends stays so.
        await system.merge(kinds.JOBS, name, {"spec": {"suspend": True}})
        await cluster.submit("last", 1, required=RACK)
        await cluster.bound("last", 1)
        assert (await system.get(kinds.JOBS, name))["spec"]["suspend"] is True
    finally:
        await system.delete(kinds.JOBS, name)
