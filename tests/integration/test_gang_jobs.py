"""Jobs whose pods start together or not at all, on a control plane with gang scheduling.

GANG_ROUNDS=n for more rounds of two gangs with room for one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.features import GANG_SCHEDULING
from tests.chaos.runner import say
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.objects import RACK, Object, job
from tests.support.playground import Playground, start_playground
from tests.support.task_cluster import nodes_and_queue, runner
from tests.support.task_pages import FOLDER

ROUNDS = int(os.environ.get("GANG_ROUNDS") or 3)
# A round takes some seconds; a full machine has taken many times as long.
ROUND_LIMIT_S = 60
ROUNDS_SHOWN = 10

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900 + ROUND_LIMIT_S * ROUNDS)]

FOREIGN_GATE = "example.com/data"


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A control plane of its own, with the gate."""
    folder = tmp_path_factory.mktemp("gang-jobs") / "state"
    # The runner of pages deletes jobs of all kinds in the end.
    running = start_playground(folder, operators=("jobset", "kuberay"), gates=(GANG_SCHEDULING,))
    try:
        yield running
    finally:
        running.stop()


def test_every_command_of_the_page_does_what_it_says(
    playground: Playground, tmp_path: Path
) -> None:
    page = FOLDER / "run-a-gang.md"
    with nodes_and_queue(playground), runner(playground, tmp_path, page) as run:
        run.run(page)


def _started(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if not pod["spec"].get("schedulingGates")]


async def _gang_of(cluster: Cluster, name: str) -> Object:
    """The Workload of gangs that a Job has by default."""

    async def owned() -> Object | None:
        for obj in await cluster.list_all(GANG_WORKLOADS):
            owners = obj["metadata"].get("ownerReferences", [])
            if any(owner["name"] == name for owner in owners):
                return obj
        return None

    found = await until(f"Job {name} has a Workload of gangs", owned)
    assert found is not None
    return found


class NeverBoth:
    """Looks at the pods of two Jobs again and again: never have both started."""

    def __init__(self, cluster: Cluster, *jobs: str) -> None:
        self._cluster, self._jobs = cluster, jobs
        self.looks = 0

    async def run(self) -> None:
        while True:
            pods = await self._cluster.list_all(kinds.PODS)
            label = "batch.kubernetes.io/job-name"
            live = [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]
            started = {pod["metadata"]["labels"][label] for pod in _started(live)}
            assert len(started & set(self._jobs)) <= 1, "both have pods without gates"
            self.looks += 1
            await asyncio.sleep(0.02)


async def _the_started(cluster: Cluster, jobs: list[str]) -> str:
    """The one of these Jobs whose eight pods have started."""

    async def started() -> str | None:
        for name in jobs:
            if len(_started(await cluster.pods_of(name))) == 8:
                return name
        return None

    found = await until("one of the gangs has started", started)
    assert found is not None
    return found


@pytest.mark.requirement("GNG-13")
async def test_of_two_gangs_with_room_for_one_one_runs_and_the_other_holds_nothing(
    cluster: Cluster,
) -> None:
    """Both arrive at once, again and again; the quota is enough for both, the nodes are not."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    firsts = [0, 0]
    for number in range(ROUNDS):
        jobs = [f"one-{number}", f"two-{number}"]
        watching = NeverBoth(cluster, *jobs)
        task = asyncio.create_task(watching.run())
        # All eight nodes, one pod on each.
        await asyncio.gather(*(cluster.submit(name, 8, cpu="8") for name in jobs))

        first = await _the_started(cluster, jobs)
        (second,) = [name for name in jobs if name != first]
        firsts[jobs.index(first)] += 1
        await cluster.bound(first, 8)
        assert not await cluster.pods_of(second), "it is still suspended"
        await cluster.finish(first)
        await cluster.bound(second, 8)
        assert not task.done(), task.exception()
        task.cancel()
        assert watching.looks > 10
        await cluster.finish(second)
        for name in jobs:
            await cluster.condition(name, "Finished")
            # Pods that have ended would be read again and again in all later rounds.
            await cluster.delete(kinds.JOBS, name)
        if ROUNDS > ROUNDS_SHOWN and (number + 1) % ROUNDS_SHOWN == 0:
            say(
                f"{number + 1} rounds: {firsts[0]} times the first Job first, {firsts[1]} the other"
            )


@pytest.mark.requirement("GNG-12")
async def test_a_gate_of_another_owner_on_one_pod_holds_all_of_its_gang(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    gates: dict[str, Any] = {"schedulingGates": [{"name": FOREIGN_GATE}]}
    await cluster.submit("train", 4, cpu="2", required=RACK, pod=gates)

    async def held() -> list[Object] | None:
        pods = await cluster.pods_of("train")
        return pods if len(pods) == 4 else None

    pods = await until("all pods exist", held)
    assert pods is not None
    *others, last = pods
    for pod in others:
        await _remove_foreign_gate(cluster, pod)
    workload = await _gang_of(cluster, "train")
    event = await cluster.event("GangWaiting", workload["metadata"]["name"])
    assert FOREIGN_GATE in event["note"]
    assert not _started(await cluster.pods_of("train"))
    await _remove_foreign_gate(cluster, last)
    assert len(_started(await cluster.bound("train", 4))) == 4


@pytest.mark.requirement("GNG-29", "GNG-22")
async def test_the_jobs_of_an_ordered_jobset_are_gangs_one_by_one(cluster: Cluster) -> None:
    """Their pods are all held by others; those of one Job start when theirs are."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    leader = replicated_job("leader", 1, annotations=marks(required=RACK))
    workers = replicated_job("workers", 2, replicas=2, annotations=marks(preferred=RACK))
    for part in (leader, workers):
        part["template"]["spec"]["template"]["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}]
    spec = {"gangGroups": [{"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 3600}]}
    workers["template"]["metadata"] = {
        "annotations": {names.GANG_TEMPLATE_ANNOTATION: json.dumps(spec)}
    }
    order = {"startupPolicyOrder": "InOrder"}
    await cluster.create(kinds.JOBSETS, jobset("train", [leader, workers], startupPolicy=order))

    async def pods_of(child: str, count: int) -> list[Object]:
        async def exist() -> list[Object] | None:
            pods = await cluster.pods_of(child)
            return pods if len(pods) == count else None

        found = await until(f"{child} has {count} pods", exist)
        assert found is not None
        return found

    first = await pods_of("train-leader-0", 1)
    # The workers wait for the leader. Their Workloads of gangs exist already.
    gangs = {
        child: await _gang_of(cluster, child) for child in ("train-workers-0", "train-workers-1")
    }
    assert len(await cluster.list_all(GANG_WORKLOADS)) == len(gangs)
    for child in gangs:
        assert await cluster.pods_of(child) == []
    await _remove_foreign_gate(cluster, first[0])
    for child, gang in gangs.items():
        for pod in await pods_of(child, 2):
            annotations = pod["metadata"]["annotations"]
            assert annotations[names.GANG_LINK_ANNOTATION] == gang["metadata"]["name"]
    ready, late = gangs
    one, *rest = await cluster.pods_of(ready)
    await _remove_foreign_gate(cluster, one)
    event = await cluster.event("GangWaiting", gangs[ready]["metadata"]["name"])
    assert FOREIGN_GATE in event["note"]
    assert not _started(await cluster.pods_of(ready))
    for pod in rest:
        await _remove_foreign_gate(cluster, pod)
    await cluster.bound(ready, 2)
    assert not _started(await cluster.pods_of(late)), "it is a gang of its own"
    for pod in await cluster.pods_of(late):
        await _remove_foreign_gate(cluster, pod)
    await cluster.bound(late, 2)
    await cluster.delete(kinds.JOBSETS, "train")

    async def none() -> bool:
        return not await cluster.list_all(GANG_WORKLOADS)

    await until("the Workloads of gangs are gone with their Jobs", none)


@pytest.mark.requirement("GNG-10", "GNG-12")
async def test_a_jobset_whose_child_job_is_almost_done_does_not_wait_for_the_others(
    cluster: Cluster,
) -> None:
    """Neither does the pod that replaces the last one, nor that of the next run.

    The JobSet may restart, so no quota of its pods is given to others. The others do not exist any
    more, and nothing but the child Job tells that they are done.
    """
    await cluster.add_fx_a()
    await cluster.add_queue()
    spec = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 3600}]}
    about = {"apiVersion": f"{names.GANG_GROUP}/{names.GANG_VERSION}", "kind": "Workload"}
    await cluster.create(GANG_WORKLOADS, {**about, "metadata": {"name": "four"}, "spec": spec})
    link = marks({names.GANG_LINK_ANNOTATION: "four"}, required=RACK)
    workers = replicated_job("workers", 4, annotations=link)
    failures = {"maxRestarts": 3}
    await cluster.create(kinds.JOBSETS, jobset("train", [workers], failurePolicy=failures))
    child = "train-workers-0"
    *done, last = await cluster.bound(child, 4)
    for pod in done:
        succeeds = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
        await cluster.merge(kinds.PODS, pod["metadata"]["name"], succeeds)

    async def three_done() -> bool:
        status = (await cluster.get(kinds.JOBS, child))["status"]
        return bool(status["succeeded"] == 3)

    await until("three of four are done", three_done)
    for pod in done:
        await cluster.delete(kinds.PODS, pod["metadata"]["name"])
    await cluster.delete(kinds.PODS, last["metadata"]["name"])

    async def runs_again(before: str) -> Object | None:
        for pod in await cluster.pods_of(child):
            new = pod["metadata"]["uid"] != before and pod["status"]["phase"] == "Running"
            if new and "deletionTimestamp" not in pod["metadata"]:
                return pod
        return None

    again = await until("the last pod was replaced", lambda: runs_again(last["metadata"]["uid"]))
    assert again is not None

    queue = f"{cluster.pool}-queue"
    await cluster.merge(kinds.CLUSTER_QUEUES, queue, {"spec": {"stopPolicy": "HoldAndDrain"}})

    async def stopped() -> bool:
        stored = await cluster.get(kinds.JOBSETS, "train")
        uids = {pod["metadata"]["uid"] for pod in await cluster.pods_of(child)}
        return stored["spec"]["suspend"] is True and again["metadata"]["uid"] not in uids

    await until("the JobSet is stopped", stopped)
    await cluster.merge(kinds.CLUSTER_QUEUES, queue, {"spec": {"stopPolicy": "None"}})
    uid = again["metadata"]["uid"]
    assert await until("the last pod runs again", lambda: runs_again(uid)) is not None

    async def said_so() -> bool:
        conditions = (await cluster.get(GANG_WORKLOADS, "four"))["status"]["conditions"]
        return any(one["type"] == "GangScheduled" and one["status"] == "True" for one in conditions)

    await until("the Workload of gangs says that it runs", said_so)


async def _remove_foreign_gate(cluster: Cluster, pod: Object) -> None:
    def edit(stored: Object) -> None:
        kept = [gate for gate in stored["spec"]["schedulingGates"] if gate["name"] != FOREIGN_GATE]
        stored["spec"]["schedulingGates"] = kept

    await cluster.replace(kinds.PODS, pod["metadata"]["name"], edit)


@pytest.mark.requirement("GNG-11", "USR-15")
async def test_a_gang_that_is_not_bound_in_time_returns_everything_and_comes_back(
    cluster: Cluster,
) -> None:
    """Without a topology nobody counts nodes: seven of eight pods find one, the last does not."""
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False)
    await cluster.submit("blocker", 1, cpu="8")
    await cluster.bound("blocker", 1)
    spec = {"gangGroups": [{"name": "gg", "minCount": 8, "scheduleTimeoutSeconds": 5}]}
    await cluster.create(
        GANG_WORKLOADS,
        {
            "apiVersion": f"{names.GANG_GROUP}/{names.GANG_VERSION}",
            "kind": "Workload",
            "metadata": {"name": "eight"},
            "spec": spec,
        },
    )
    link = {names.GANG_LINK_ANNOTATION: "eight"}
    await cluster.create(kinds.JOBS, job("train", 8, cpu="8", annotations=link))
    workload = await cluster.condition("train", "Evicted", "True", "GangTimeout")
    assert workload["status"]["requeueState"]["count"] == 1

    async def given_back() -> bool:
        stored = await cluster.workload_of("train")
        return not stored["status"].get("admission") and not await cluster.pods_of("train")

    await until("quota and nodes are free", given_back)
    stored = await cluster.get(kinds.JOBS, "train")
    assert stored["spec"]["suspend"] is True
    assert not stored["status"].get("failed")
    assert stored["spec"]["template"]["metadata"]["annotations"] == link
