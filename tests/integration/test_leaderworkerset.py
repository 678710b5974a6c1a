"""LeaderWorkerSet itself on simulated nodes: the pods that it makes, their labels, owners, places.

Nothing here is governed, as in `test_operators`.
"""

from __future__ import annotations

import json

import pytest

from rackgate.api import resources as kinds
from rackgate.api.resources import LEADER_WORKER_SETS
from rackgate.kube.errors import ForbiddenError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import leaderworkerset
from tests.support.composite_views import gone, live_pods, racks_of, state
from tests.support.objects import BLOCK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

PREFIX = "leaderworkerset.sigs.k8s.io"
GROUP_INDEX, GROUP_KEY = f"{PREFIX}/group-index", f"{PREFIX}/group-key"
WORKER_INDEX = f"{PREFIX}/worker-index"


async def running(cluster: Cluster, name: str, groups: int, size: int) -> dict[str, list[Object]]:
    """Wait until so many groups run; return the pods of each by its index, leader first."""
    ready = {"Available": "True", "Progressing": "False"}

    def available(found: Object) -> bool:
        status = found.get("status", {})
        conditions = {entry["type"]: entry["status"] for entry in status.get("conditions", [])}
        counts = [status.get(key) for key in ("replicas", "readyReplicas", "updatedReplicas")]
        return counts == [groups] * 3 and ready.items() <= conditions.items()

    await state(cluster, LEADER_WORKER_SETS, name, f"has {groups} ready groups", available)

    # The status may still be that of pods which were replaced since.
    async def all_run() -> list[Object]:
        pods = await live_pods(cluster, f"{PREFIX}/name={name}")
        run = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        return run if len(run) == len(pods) == groups * size else []

    pods = await until(f"{groups * size} pods of {name} run", all_run)
    found: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=lambda pod: int(pod["metadata"]["labels"][WORKER_INDEX])):
        found.setdefault(pod["metadata"]["labels"][GROUP_INDEX], []).append(pod)
    return found


def controller_of(pod: Object) -> tuple[str, str]:
    """Kind and name of the controller."""
    (owner,) = (o for o in pod["metadata"]["ownerReferences"] if o.get("controller"))
    return owner["kind"], owner["name"]


async def test_a_plain_leaderworkerset_runs_and_its_pods_name_group_and_worker(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.create(LEADER_WORKER_SETS, leaderworkerset("serve", replicas=2, size=3))
    groups = await running(cluster, "serve", 2, 3)
    keys = {}
    for index, pods in groups.items():
        leader = pods[0]["metadata"]["name"]
        assert leader == f"serve-{index}"
        assert [pod["metadata"]["labels"][WORKER_INDEX] for pod in pods] == ["0", "1", "2"]
        assert controller_of(pods[0]) == ("StatefulSet", "serve")
        assert [controller_of(pod) for pod in pods[1:]] == [("StatefulSet", leader)] * 2
        keys[index] = {pod["metadata"]["labels"][GROUP_KEY] for pod in pods}
    assert sorted(keys) == ["0", "1"]
    assert {len(found) for found in keys.values()} == {1}
    assert keys["0"] != keys["1"]

    await cluster.merge(LEADER_WORKER_SETS, "serve", {"spec": {"replicas": 1}})
    assert list(await running(cluster, "serve", 1, 3)) == ["0"]
    await cluster.delete(LEADER_WORKER_SETS, "serve")
    await gone(cluster, f"{PREFIX}/name=serve")


async def test_a_group_whose_worker_goes_is_made_anew_as_a_whole(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.create(LEADER_WORKER_SETS, leaderworkerset("serve", replicas=2, size=3))
    before = await running(cluster, "serve", 2, 3)
    old = {pod["metadata"]["uid"] for pod in before["0"]}
    await cluster.delete(kinds.PODS, "serve-0-1")

    async def replaced() -> bool:
        pods = await cluster.list_all(kinds.PODS, labelSelector=f"{GROUP_INDEX}=0")
        return not old & {pod["metadata"]["uid"] for pod in pods}

    await until("no pod of the old group is left", replaced)
    after = await running(cluster, "serve", 2, 3)
    assert [pod["metadata"]["uid"] for pod in after["1"]] == [
        pod["metadata"]["uid"] for pod in before["1"]
    ]


async def test_groups_with_exclusive_topology_run_in_a_domain_each(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    exclusive = {f"{PREFIX}/exclusive-topology": BLOCK}
    await cluster.create(
        LEADER_WORKER_SETS, leaderworkerset("serve", replicas=2, size=3, annotations=exclusive)
    )
    groups = await running(cluster, "serve", 2, 3)
    blocks = {
        index: {block for block, _ in await racks_of(cluster, pods)}
        for index, pods in groups.items()
    }
    assert {len(found) for found in blocks.values()} == {1}
    assert blocks["0"] != blocks["1"]
    for _, *workers in groups.values():
        # LeaderWorkerSet makes workers when their leader is bound, and sends them there.
        assert {*workers[0]["spec"]["nodeSelector"]} == {BLOCK}


async def test_lws_is_ready_when_its_webhooks_are_and_rejects_what_it_cannot_run(
    cluster: Cluster, playground: Playground
) -> None:
    path, once = LEADER_WORKER_SETS.path(cluster.namespace), {"dryRun": "All"}

    async def ask(name: str) -> Object:
        body = json.dumps(leaderworkerset(name, replicas=1, size=2)).encode()
        return dict(json.loads(await cluster.client.create(path, body, once)))

    playground.run("stop", "lws")
    playground.run("start", "lws")
    made = await ask("serve")
    assert made["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert made["spec"]["networkConfig"] == {"subdomainPolicy": "Shared"}
    with pytest.raises(ForbiddenError, match="a DNS-1035 label must consist of"):
        await ask("0-serve")
