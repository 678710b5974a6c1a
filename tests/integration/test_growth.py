"""Running jobs that ask for more, templates with a node's name, deletions from above the pods."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.composite_views import ray_state
from tests.support.identities import as_tenant
from tests.support.objects import RACK, Object, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

UNENDING: Object = {"completions": None, "completionMode": "NonIndexed"}


async def refused(writing: Any, *words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert all(word in caught.value.message for word in words), caught.value.message


async def plain_queue(cluster: Cluster, cpu: str = "16") -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": cpu, "memory": "1000Gi"}, topology=False)


async def test_a_running_job_that_is_raised_binds_no_pod_beyond_its_quota(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.submit("train", 4, spec=UNENDING)
    await cluster.bound("train", 4)
    async with as_tenant(playground, cluster) as tenant:
        # An annotation that no feature gate stands behind holds nothing.
        raised = await tenant.merge(kinds.JOBS, "train", {"spec": {"parallelism": 400}})
        assert raised["spec"]["suspend"] is True
        await cluster.condition("train", "QuotaReserved", "False", words="insufficient quota")
        assert len(await cluster.pods_of("train")) <= 4
        await tenant.merge(kinds.JOBS, "train", {"spec": {"parallelism": 3}})
        await cluster.bound("train", 3)
        assert (await tenant.merge(kinds.JOBS, "train", {"spec": {"parallelism": 2}}))["spec"][
            "suspend"
        ] is False


async def test_a_running_cluster_that_does_not_scale_itself_is_suspended_when_raised(
    cluster: Cluster,
) -> None:
    await plain_queue(cluster)
    await cluster.create(kinds.RAY_CLUSTERS, raycluster("ray", [worker_group("w", 1, most=8)]))
    await ray_state(cluster, "ray", "ready")
    groups: Object = {"spec": {"workerGroupSpecs": [worker_group("w", 8, most=8)]}}
    raised = await cluster.merge(kinds.RAY_CLUSTERS, "ray", groups)
    assert raised["spec"]["suspend"] is True


@pytest.fixture
async def running(cluster: Cluster) -> Cluster:
    """A Job of four pods and a RayCluster of one worker, both running."""
    await plain_queue(cluster, "32")
    await cluster.submit("train", 4, spec={**UNENDING, "suspend": True})
    await cluster.submit("placed", 1, spec={**UNENDING, "suspend": True})
    wish = raycluster("ray", [worker_group("w", 1, most=8)], suspend=True)
    await cluster.create(kinds.RAY_CLUSTERS, wish)
    await cluster.bound("train", 4)
    await ray_state(cluster, "ray", "ready")
    return cluster


@pytest.mark.requirement("HOOK-15")
@pytest.mark.usefixtures("webhook_down")
async def test_without_the_webhook_a_higher_number_is_rejected(
    running: Cluster, playground: Playground
) -> None:
    async with as_tenant(playground, running) as tenant:
        more: Object = {"spec": {"parallelism": 400}}
        words = (
            "spec.parallelism: ",
            "with 4 pods and now requests 400",
            "set spec.suspend to true",
        )
        await refused(tenant.merge(kinds.JOBS, "train", more), *words)
        for change in ({"replicas": 8}, {"minReplicas": 3}, {"numOfHosts": 2}):
            groups = [{**worker_group("w", 1, most=8), **change}]
            writing = tenant.merge(
                kinds.RAY_CLUSTERS, "ray", {"spec": {"workerGroupSpecs": groups}}
            )
            await refused(writing, "spec.workerGroupSpecs[w].replicas: ", "did not answer")
        less = await tenant.merge(kinds.JOBS, "train", {"spec": {"parallelism": 2}})
        assert less["spec"]["suspend"] is False
        more["spec"]["suspend"] = True
        await tenant.merge(kinds.JOBS, "train", more)


def bound(wish: Object) -> Object:
    """The same with a node's name in its last template."""
    found = copy.deepcopy(wish)
    spec = found["spec"]
    if "replicatedJobs" in spec:
        template = spec["replicatedJobs"][-1]["template"]["spec"]["template"]
    elif "workerGroupSpecs" in spec:
        template = spec["workerGroupSpecs"][-1]["template"]
    else:
        template = spec["template"]
    template["spec"]["nodeName"] = "any"
    return found


BOUND: list[tuple[Resource, Object]] = [
    (kinds.JOBS, bound(job("bound", 1, required=RACK, spec={"suspend": True}))),
    (kinds.JOBS, bound(job("bound", 1, spec={"suspend": True}))),
    (kinds.JOBSETS, bound(jobset("bound", [replicated_job("w", 1)], suspend=True))),
    (kinds.RAY_CLUSTERS, bound(raycluster("bound", [worker_group("w", 1)], suspend=True))),
]


async def no_nodes_name(cluster: Cluster) -> None:
    for kind, wish in BOUND:
        await refused(cluster.create(kind, wish), "template.spec.nodeName: ", '"any" would bind')
        plain = copy.deepcopy(wish)
        plain["metadata"] = {"name": "plain"}
        await cluster.create(kind, plain)
        enter: Object = {"metadata": {"labels": wish["metadata"]["labels"]}}
        await refused(cluster.merge(kind, "plain", enter), "template.spec.nodeName: ")
        await cluster.delete(kind, "plain")


@pytest.mark.requirement("HOOK-09")
async def test_a_template_names_no_node(cluster: Cluster) -> None:
    await no_nodes_name(cluster)


@pytest.mark.usefixtures("webhook_down")
async def test_a_template_names_no_node_without_the_webhook(cluster: Cluster) -> None:
    await no_nodes_name(cluster)


ORPHANING: list[Object | None] = [
    {"propagationPolicy": "Orphan"},
    {"orphanDependents": True},
]


async def test_a_running_job_is_not_deleted_from_above_its_pods(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.submit("train", 1, spec=UNENDING)
    await cluster.create(kinds.JOBSETS, jobset("set", [replicated_job("w", 1)]))
    await cluster.bound("train", 1)
    await cluster.bound("set-w-0", 1)
    async with as_tenant(playground, cluster) as tenant:
        for kind, name, whole in (
            (kinds.JOBS, "train", {}),  # batch/v1 orphans unless it is told otherwise
            (kinds.JOBSETS, "set", None),
            (kinds.JOBS, "set-w-0", {}),
        ):
            # A child is nobody's to delete alone, whatever is done with its pods: either policy
            # may be the first to say so.
            alone = name == "set-w-0"
            words = [f'the Job "{name}"'] if alone else ["orphan its pods", "and wait"]
            for options in [*ORPHANING, *([whole] if whole is not None else [])]:
                body = json.dumps(options).encode()
                path = kind.path(cluster.namespace, name)
                await refused(tenant.client.delete(path, body), *words)
                # Of a collection any object may be the first that is refused.
                every = tenant.client.delete(kind.path(cluster.namespace), body)
                await refused(every, "denied request")
            finalizer: Object = {"metadata": {"finalizers": ["orphan"]}}
            await refused(tenant.merge(kind, name, finalizer), "metadata.finalizers: ")
            await tenant.merge(kind, name, {"metadata": {"finalizers": ["example.com/mine"]}})
            await cluster.merge(kind, name, {"metadata": {"finalizers": None}})
        born = job("born", 1, spec={"suspend": True})
        born["metadata"]["finalizers"] = ["orphan"]
        await refused(tenant.create(kinds.JOBS, born), "metadata.finalizers: ")
        # Suspended, and no pod left of it.
        await tenant.merge(kinds.JOBS, "train", {"spec": {"suspend": True, "parallelism": 99}})

        async def gone() -> bool:
            body = json.dumps(ORPHANING[0]).encode()
            try:
                await tenant.client.delete(kinds.JOBS.path(cluster.namespace, "train"), body)
            except ForbiddenError:
                return False
            return True

        await until("the suspended Job is deleted", gone)
        await tenant.delete(kinds.JOBSETS, "set")


async def test_what_is_not_managed_leaves_its_pods_behind_as_ever(
    cluster: Cluster, playground: Playground
) -> None:
    await cluster.add_fx_a()
    await cluster.submit("plain", 1, queue=None)
    await cluster.bound("plain", 1)
    async with as_tenant(playground, cluster) as tenant:
        await tenant.client.delete(kinds.JOBS.path(cluster.namespace, "plain"), b"{}")
