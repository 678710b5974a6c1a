"""Order of start, success and failure policies of JobSets under the real JobSet controller."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.composite_views import (
    bound_pods,
    conditions,
    gone,
    jobset_selector,
    live_pods,
    racks_of,
    rank_of,
    usage,
    used,
)
from tests.support.objects import BLOCK, RACK, Object

pytestmark = pytest.mark.integration

ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
HOLD = "test.rackgate.dev/hold"


async def prepare(cluster: Cluster, cpu: str) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": cpu})


async def annotate(cluster: Cluster, pods: Iterable[Object], key: str) -> None:
    """Let pods end as soon as they run: `run-seconds` well, `fail-after-seconds` not."""
    change = {"metadata": {"annotations": {f"rackgate.dev/{key}": "0"}}}
    for pod in pods:
        await cluster.merge(kinds.PODS, pod["metadata"]["name"], change)


async def finish(cluster: Cluster, pods: Iterable[Object]) -> None:
    await annotate(cluster, pods, "run-seconds")


def hosts_by_rank(pods: Iterable[Object]) -> dict[tuple[int, int], str]:
    return {rank_of(pod): pod["spec"]["nodeName"] for pod in pods}


async def still_admitted(cluster: Cluster, name: str, uid: str) -> None:
    """The Workload is the one that was admitted first, and was never evicted."""
    workload = await cluster.workload_of(name)
    told = conditions(workload)
    assert workload["metadata"]["uid"] == uid
    assert told["Admitted"]["status"] == "True"
    assert "Evicted" not in told


# What starts later.


def after_leader(depends: str) -> dict[str, Any]:
    return {"dependsOn": [{"name": "leader", "status": depends}]}


@pytest.mark.requirement("TAS-28")
@pytest.mark.parametrize(
    ("later", "spec"),
    [
        (after_leader("Ready"), {}),
        ({}, {"startupPolicy": {"startupPolicyOrder": "InOrder"}}),
    ],
    ids=["dependsOn", "InOrder"],
)
async def test_what_starts_later_finds_its_quota_and_its_places(
    cluster: Cluster, later: dict[str, Any], spec: dict[str, Any]
) -> None:
    """The leader is not ready for as long as a gate of its user's own holds it."""
    await prepare(cluster, "20")
    leader = replicated_job("leader", 1, cpu="4", annotations=marks(required=RACK))
    template = leader["template"]["spec"]["template"]
    template["spec"]["schedulingGates"] = [{"name": HOLD}]
    slices = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "2"}
    workers = replicated_job(
        "workers", 2, replicas=2, cpu="4", annotations=marks(slices, required=BLOCK), **later
    )
    await cluster.create(kinds.JOBSETS, jobset("train", [leader, workers], **spec))
    (chief,) = await held_by(cluster, jobset_selector("train", "leader"), [HOLD])
    uid = (await cluster.workload_of("train"))["metadata"]["uid"]

    # The quota of all is taken, before the Jobs that come later have any pod.
    await used(cluster, "20")
    await cluster.submit("other", 1)
    await cluster.condition("other", "QuotaReserved", "False", "WaitingForQuota")
    told = conditions(await cluster.condition("train", "Admitted"))
    assert "PodsReady" not in told
    assert await live_pods(cluster, jobset_selector("train", "workers")) == []

    ungate = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}]).encode()
    path = kinds.PODS.path(cluster.namespace, chief["metadata"]["name"])
    await cluster.client.patch(path, ungate, PatchType.JSON)
    pods = await bound_pods(cluster, jobset_selector("train", "workers"), 4)
    await cluster.condition("train", "PodsReady", "True")
    places = dict(zip(map(rank_of, pods), await racks_of(cluster, pods), strict=True))
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert places[0, 0] == places[0, 1]
    assert places[1, 0] == places[1, 1]
    (now,) = await bound_pods(cluster, jobset_selector("train", "leader"), 1)
    assert now["metadata"]["uid"] == chief["metadata"]["uid"]
    await still_admitted(cluster, "train", uid)
    await used(cluster, "20")


async def held_by(cluster: Cluster, selector: str, gates: list[str]) -> list[Object]:
    """Wait until the one live pod is held by these gates alone, and return it."""

    async def held() -> list[Object]:
        pods = await live_pods(cluster, selector)
        found = [[gate["name"] for gate in pod["spec"].get("schedulingGates", [])] for pod in pods]
        return pods if found == [gates] else []

    return await until(f"the pod of {selector} is held by {gates} alone", held)


@pytest.mark.requirement("TAS-28")
async def test_what_is_done_makes_room_for_others_while_what_comes_later_finds_its_own(
    cluster: Cluster,
) -> None:
    """Three steps that follow one another; the first gives its quota back pod by pod."""
    await prepare(cluster, "12")
    first = replicated_job("first", 1, replicas=2, cpu="4", annotations=marks(required=RACK))
    second = replicated_job(
        "second",
        1,
        cpu="4",
        annotations=marks(required=RACK),
        dependsOn=[{"name": "first", "status": "Complete"}],
    )
    await cluster.create(kinds.JOBSETS, jobset("steps", [first, second]))
    pods = await bound_pods(cluster, jobset_selector("steps", "first"), 2)
    # What is due is ready, and what comes later has no pods.
    uid = (await cluster.condition("steps", "PodsReady", "True"))["metadata"]["uid"]
    assert await live_pods(cluster, jobset_selector("steps", "second")) == []
    for name in ("a", "b", "c"):
        await cluster.submit(name, 1, cpu="4", required=RACK)
        await cluster.condition(name, "QuotaReserved", "False", "WaitingForQuota")

    await finish(cluster, pods[:1])
    await cluster.bound("a", 1)
    workload = await cluster.workload_of("steps")
    assert workload["status"]["reclaimablePods"] == [{"name": "first", "count": 1}]
    await finish(cluster, pods[1:])
    await cluster.bound("b", 1)
    await bound_pods(cluster, jobset_selector("steps", "second"), 1)
    await cluster.condition("c", "QuotaReserved", "False", "WaitingForQuota")
    await still_admitted(cluster, "steps", uid)
    await used(cluster, "12")
    await finish(cluster, await live_pods(cluster, jobset_selector("steps", "second")))
    await cluster.condition("steps", "Finished", reason="Succeeded")
    await cluster.bound("c", 1)


# Policies that end a JobSet while some of its Jobs run.


async def test_a_success_policy_ends_a_jobset_whose_other_jobs_still_run(cluster: Cluster) -> None:
    """Any of the targets, or all of them; the next job has to wait until the rest is gone."""
    await prepare(cluster, "16")
    any_of = {"operator": "Any", "targetReplicatedJobs": ["driver"]}
    all_of = {"operator": "All", "targetReplicatedJobs": ["driver"]}
    rack = marks(required=RACK)
    slow = {"rackgate.dev/terminate-seconds": "1"}
    for name, policy in (("any", any_of), ("all", all_of)):
        driver = replicated_job("driver", 1, replicas=2, cpu="1", annotations=rack)
        workers = replicated_job("workers", 2, cpu="3", annotations={**rack, **slow})
        made = jobset(name, [driver, workers], successPolicy=policy)
        await cluster.create(kinds.JOBSETS, made)
    drivers = {
        name: sorted(
            await bound_pods(cluster, jobset_selector(name, "driver"), 2),
            key=rank_of,
        )
        for name in ("any", "all")
    }
    for name in drivers:
        await bound_pods(cluster, jobset_selector(name, "workers"), 2)
        await cluster.condition(name, "PodsReady", "True")
    await used(cluster, "16")
    await cluster.submit("next", 2, cpu="4", required=RACK)
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")

    for found in drivers.values():
        await finish(cluster, found[:1])
    await cluster.condition("any", "Finished", reason="Succeeded")
    await cluster.bound("next", 2)
    assert await live_pods(cluster, jobset_selector("any")) == []
    # The other one waits for its second driver; what the first held may go to others.
    await used(cluster, "15")
    assert len(await live_pods(cluster, jobset_selector("all", "workers"))) == 2
    await finish(cluster, drivers["all"][1:])
    await cluster.condition("all", "Finished", reason="Succeeded")
    await gone(cluster, jobset_selector("all"))
    await used(cluster, "8")


# Policies that start a JobSet anew.


class Watched:
    """Looks at a JobSet as often as something is waited for.

    Attributes:
        most: by host, the most pods of its workers that were bound there at a time.
        charged: what its queue said to be in use.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.most: Counter[str] = Counter()
        self.charged: set[str] = set()

    async def look(self) -> None:
        pods = await self.cluster.list_all(
            kinds.PODS, labelSelector=jobset_selector(self.name, "workers")
        )
        there = Counter(
            pod["spec"]["nodeName"]
            for pod in pods
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        )
        self.most |= there
        self.charged.add(await usage(self.cluster))

    async def attempt(self, number: int, count: int) -> list[Object]:
        """The pods of an attempt, once all of them are bound."""
        selector = f"{jobset_selector(self.name)},{ATTEMPT}={number}"
        found: list[list[Object]] = []

        async def bound() -> bool:
            await self.look()
            pods = await live_pods(self.cluster, selector)
            found[:] = [[pod for pod in pods if pod["spec"].get("nodeName")]]
            return len(found[0]) == count

        await until(f"{count} pods of attempt {number} of {self.name} are bound", bound)
        return found[0]


Fail = Callable[[Iterable[Object]], Awaitable[None]]


@pytest.mark.parametrize(
    "policy",
    [
        {
            "maxRestarts": 0,
            "rules": [{"name": "again", "action": "RestartJobSetAndIgnoreMaxRestarts"}],
        },
        {
            "maxRestarts": 2,
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {"name": "stop", "action": "FailJobSet", "targetReplicatedJobs": ["driver"]},
                {"name": "again", "action": "RestartJobSet"},
            ],
        },
    ],
    ids=["RestartJobSetAndIgnoreMaxRestarts", "RestartJobSet, then FailJobSet"],
)
async def test_each_attempt_takes_the_quota_and_the_places_of_the_one_before(
    cluster: Cluster, policy: dict[str, Any]
) -> None:
    """Pods that are slow to go are never beside their successors, and are charged once."""
    await prepare(cluster, "9")
    slow = {"rackgate.dev/terminate-seconds": "1"}
    driver = replicated_job("driver", 1, cpu="1", spec={"backoffLimit": 0})
    workers = replicated_job(
        "workers", 2, cpu="4", annotations=marks(slow, required=RACK), spec={"backoffLimit": 0}
    )
    await cluster.create(kinds.JOBSETS, jobset("train", [driver, workers], failurePolicy=policy))
    watched = Watched(cluster, "train")
    await watched.attempt(0, 3)
    uid = (await cluster.condition("train", "PodsReady", "True"))["metadata"]["uid"]
    await used(cluster, "9")
    await cluster.submit("other", 1)
    await cluster.condition("other", "QuotaReserved", "False", "WaitingForQuota")
    watched.charged.clear()

    workers_of = f"{jobset_selector('train', 'workers')},{ATTEMPT}"
    first = hosts_by_rank(await live_pods(cluster, f"{workers_of}=0"))
    for attempt in (1, 2):
        pods = await live_pods(cluster, f"{workers_of}={attempt - 1}")
        await annotate(cluster, pods[:1], "fail-after-seconds")
        await watched.attempt(attempt, 3)
        assert hosts_by_rank(await live_pods(cluster, f"{workers_of}={attempt}")) == first
        await still_admitted(cluster, "train", uid)
    assert watched.charged == {"9"}
    # What is looked at now and then need not show all pods of a host at the same time.
    assert watched.most <= Counter(first.values())
    assert watched.most

    last = await live_pods(cluster, f"{jobset_selector('train', 'driver')},{ATTEMPT}=2")
    await annotate(cluster, last, "fail-after-seconds")
    if policy["maxRestarts"]:  # and no rule lets it go on
        await cluster.condition("train", "Finished", reason="Failed")
        await cluster.bound("other", 1)
        return
    await watched.attempt(3, 3)
    await still_admitted(cluster, "train", uid)
    assert watched.charged == {"9"}
