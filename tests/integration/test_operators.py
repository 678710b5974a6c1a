"""JobSet and KubeRay themselves on simulated nodes, and the test driver in the autoscaler's part.

Nothing here is governed: what these tests show, the tests of governed JobSets and RayClusters
may build on.
"""

from __future__ import annotations

import os
import signal

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import (
    jobset,
    marks,
    raycluster,
    replicated_job,
    worker_group,
)
from tests.support.objects import Object
from tests.support.playground import Playground
from tests.support.ray_autoscaler import RayAutoscaler

pytestmark = pytest.mark.integration


async def ray_pods(cluster: Cluster, name: str) -> list[Object]:
    """Running pods of a RayCluster that nobody deletes."""
    selector = f"{names.RAY_CLUSTER_LABEL}={name}"
    return [
        pod
        for pod in await cluster.list_all(kinds.PODS, labelSelector=selector)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


async def ray_state(cluster: Cluster, name: str, state: str, pods: int) -> None:
    """Wait until KubeRay says that the cluster is in that state, and so many pods run."""

    async def reached() -> bool:
        found = await cluster.get(kinds.RAY_CLUSTERS, name)
        running = len(await ray_pods(cluster, name))
        return found.get("status", {}).get("state") == state and running == pods

    await until(f"RayCluster {name} is {state} with {pods} pods", reached)


async def test_a_plain_jobset_runs_to_its_end(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    soon = marks(run_seconds=0.5)
    parts = [
        replicated_job("leader", 1, annotations=soon),
        replicated_job("workers", 2, replicas=2, annotations=soon),
    ]
    await cluster.create(kinds.JOBSETS, jobset("plain", parts, queue=None))

    async def completed() -> bool:
        found = await cluster.get(kinds.JOBSETS, "plain")
        conditions = found.get("status", {}).get("conditions", [])
        return any(c["type"] == "Completed" and c["status"] == "True" for c in conditions)

    await until("the JobSet is completed", completed)
    jobs = {job["metadata"]["name"] for job in await cluster.list_all(kinds.JOBS)}
    assert jobs == {"plain-leader-0", "plain-workers-0", "plain-workers-1"}


async def test_jobset_sets_its_defaults_and_rejects_what_it_cannot_run(cluster: Cluster) -> None:
    made = await cluster.create(
        kinds.JOBSETS, jobset("plain", [replicated_job("workers", 1)], queue=None, suspend=True)
    )
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    with pytest.raises(ForbiddenError, match="JobSet name is too long"):
        await cluster.create(
            kinds.JOBSETS, jobset("p" * 70, [replicated_job("workers", 1)], queue=None)
        )


async def test_a_plain_raycluster_is_ready_stops_and_comes_back(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    groups = [worker_group("small", 2), worker_group("pairs", 1, hosts=2)]
    await cluster.create(kinds.RAY_CLUSTERS, raycluster("plain", groups, queue=None))
    await ray_state(cluster, "plain", "ready", 5)
    await cluster.merge(kinds.RAY_CLUSTERS, "plain", {"spec": {"suspend": True}})
    await ray_state(cluster, "plain", "suspended", 0)
    await cluster.merge(kinds.RAY_CLUSTERS, "plain", {"spec": {"suspend": False}})
    await ray_state(cluster, "plain", "ready", 5)


async def test_the_autoscaler_makes_workers_and_takes_down_exactly_those_it_names(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    groups = [worker_group("small", 1), worker_group("large", 0)]
    await cluster.create(
        kinds.RAY_CLUSTERS, raycluster("auto", groups, queue=None, autoscaling=True)
    )
    await ray_state(cluster, "auto", "ready", 2)
    ray = RayAutoscaler(cluster.client, cluster.namespace, "auto")
    assert await ray.launch(small=2, large=1)
    await ray_state(cluster, "auto", "ready", 5)
    before = await ray.workers("small")
    assert await ray.terminate(*before[:2])
    await ray_state(cluster, "auto", "ready", 3)
    assert await ray.workers("small") == before[2:]

    async def cleared() -> bool:
        await ray.tick()
        found = await cluster.get(kinds.RAY_CLUSTERS, "auto")
        lists = [group["scaleStrategy"] for group in found["spec"]["workerGroupSpecs"][:1]]
        return not any(entry.get("workersToDelete") for entry in lists)

    await until("the list of workers is empty again", cleared)
    await ray_state(cluster, "auto", "ready", 3)


async def test_the_autoscaler_waits_while_a_listed_worker_is_there(
    cluster: Cluster, playground: Playground
) -> None:
    await cluster.add_fx_a()
    await cluster.create(
        kinds.RAY_CLUSTERS,
        raycluster("auto", [worker_group("small", 2)], queue=None, autoscaling=True),
    )
    await ray_state(cluster, "auto", "ready", 3)
    ray = RayAutoscaler(cluster.client, cluster.namespace, "auto")
    playground.run("stop", "kuberay")
    try:
        assert await ray.terminate(*(await ray.workers("small"))[:1])
        assert not await ray.launch(small=1)
    finally:
        playground.run("start", "kuberay")
    await ray_state(cluster, "auto", "ready", 2)
    assert await ray.launch(small=1)
    await ray_state(cluster, "auto", "ready", 3)


def test_a_killed_operator_is_seen_and_comes_back(playground: Playground) -> None:
    components = playground.components()
    assert components["jobset"]["ready"]
    assert components["kuberay"]["ready"]
    (pid,) = playground.pids("jobset")
    os.kill(pid, signal.SIGKILL)
    try:
        assert not playground.components()["jobset"]["ready"]
    finally:
        playground.run("start", "jobset")
    assert playground.components()["jobset"]["ready"]
    assert playground.pids("jobset") != [pid]


async def test_a_service_that_died_is_reported_and_restored_back(playground: Playground) -> None:
    (pid,) = playground.pids("ungater")
    # Not killed: then the tests after this one would wait until its Leases have run out.
    os.kill(pid, signal.SIGTERM)

    async def gone() -> bool:
        return playground.pids("ungater") == []

    await until("the ungater has ended", gone)
    (told,) = playground.restart_ended()
    assert told.startswith("ungater-0 ended by itself; its log ends:\n{")
    assert playground.components()["ungater-0"]["ready"]
    assert playground.restart_ended() == []
