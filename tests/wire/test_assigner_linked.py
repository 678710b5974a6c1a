"""Workloads of gangs of objects whose pods are linked: made, kept in step, and made again."""

from __future__ import annotations

from typing import Any, Final

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.gang.linked import linked_name
from rackgate.jobframework.registry import LINKED_KINDS
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.gangs_world import GANGS, GangWorld, gang_assigner, gang_world

OWN: Final = linked_name(LINKED_KINDS["StatefulSet"], "set")
GROUP_KEY: Final = "leaderworkerset.sigs.k8s.io/group-key"


def stateful_set(world: GangWorld, link: str = OWN, replicas: int = 4) -> Object:
    """A StatefulSet as the webhook leaves it."""
    template = {"metadata": {"annotations": {names.GANG_LINK_ANNOTATION: link}}, "spec": {}}
    return world.put(
        kinds.STATEFUL_SETS,
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": "set",
                "namespace": NAMESPACE,
                "labels": {names.QUEUE_LABEL: "queue"},
            },
            "spec": {
                "replicas": replicas,
                "podManagementPolicy": "Parallel",
                "template": template,
            },
        },
    )


def counts(world: GangWorld, name: str = OWN) -> tuple[int, int] | None:
    gang = world.gang(name)
    if gang is None:
        return None
    (group,) = gang["spec"]["gangGroups"]
    return group["minCount"], group["maxCount"]


@pytest.mark.requirement("GNG-23", "GNG-24")
async def test_a_stateful_set_has_a_workload_of_gangs_as_long_as_it_lives() -> None:
    async with gang_world() as world, gang_assigner(world):
        made = stateful_set(world)
        await eventually(lambda: counts(world) == (4, 4))
        gang = world.gang(OWN)
        assert gang is not None
        (owner,) = gang["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("StatefulSet", made["metadata"]["uid"])
        assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
        assert gang["metadata"]["labels"] == {names.QUEUE_LABEL: "queue"}
        await eventually(lambda: world.events("DefaultCreated"))

        # Its user sets the timeout; the counts and the queue follow the StatefulSet.
        world.change(
            GANGS, OWN, lambda own: own["spec"]["gangGroups"][0].update(scheduleTimeoutSeconds=9)
        )
        world.change(kinds.STATEFUL_SETS, "set", lambda own: own["spec"].update(replicas=6))
        await eventually(lambda: counts(world) == (6, 6))
        other = {names.QUEUE_LABEL: "plain", names.PRIORITY_CLASS_LABEL: "high"}
        world.change(kinds.STATEFUL_SETS, "set", lambda own: own["metadata"].update(labels=other))
        await eventually(lambda: labels(world) == other)
        kept = world.gang(OWN)
        assert kept is not None
        assert kept["spec"]["gangGroups"][0]["scheduleTimeoutSeconds"] == 9

        world.delete(GANGS, OWN)
        await eventually(lambda: counts(world) == (6, 6))
        world.delete(kinds.STATEFUL_SETS, "set")
        await eventually(lambda: world.gangs() == [])


def labels(world: GangWorld) -> dict[str, Any]:
    gang = world.gang(OWN)
    found: dict[str, Any] = {} if gang is None else gang["metadata"]["labels"]
    return found


async def test_an_object_that_is_created_again_does_not_count_as_the_former_one() -> None:
    """Its pods may exist before the garbage collector has seen that the former one is gone."""
    async with gang_world() as world, gang_assigner(world):
        stateful_set(world)
        await eventually(lambda: counts(world) == (4, 4))
        stale = world.gang(OWN)
        assert stale is not None
        world.delete(kinds.STATEFUL_SETS, "set")
        await eventually(lambda: world.gangs() == [])
        world.put(GANGS, {**stale, "metadata": {**stale["metadata"], "uid": "former"}})
        stateful_set(world, replicas=6)
        await eventually(lambda: counts(world) == (6, 6))
        assert not world.events("WorkloadNameTaken")


async def test_pods_that_come_after_a_scale_to_zero_wait_for_their_own_counts() -> None:
    async with gang_world() as world, gang_assigner(world):
        stateful_set(world)
        await eventually(lambda: counts(world) == (4, 4))

        def scale(replicas: int, pods: int) -> None:
            def change(own: Object) -> None:
                own["spec"]["replicas"] = replicas
                own["status"] = {"replicas": pods}

            world.change(kinds.STATEFUL_SETS, "set", change)

        scale(0, 4)
        world.submit_gang("meanwhile", queue="plain")
        await eventually(world.started("meanwhile"))
        assert counts(world) == (4, 4), "its pods count on it"
        scale(0, 0)
        await eventually(lambda: world.gang(OWN) is None)
        scale(2, 0)
        await eventually(lambda: counts(world) == (2, 2))


@pytest.mark.requirement("GNG-25")
async def test_an_object_of_that_name_that_is_not_its_own_is_left_alone_and_reported() -> None:
    async with gang_world() as world, gang_assigner(world):
        spec: Object = {"gangGroups": [{"name": "gg", "minCount": 2}]}
        world.describe(OWN, spec)
        stateful_set(world)
        await eventually(lambda: world.events("WorkloadNameTaken"))
        gang = world.gang(OWN)
        assert gang is not None
        assert gang["spec"] == spec
        world.delete(GANGS, OWN)
        await eventually(lambda: counts(world) == (4, 4))


@pytest.mark.requirement("GNG-25", "GNG-19")
async def test_nothing_is_made_for_templates_that_name_the_workload_of_a_user() -> None:
    async with gang_world() as world, gang_assigner(world):
        stateful_set(world, link="mine")
        world.submit_gang("after", queue="plain")
        await eventually(world.started("after"))
        assert world.gang(OWN) is None


async def test_groups_that_a_user_has_rewritten_keep_their_counts() -> None:
    async with gang_world() as world, gang_assigner(world):
        stateful_set(world)
        await eventually(lambda: counts(world) == (4, 4))
        groups = [{"name": "mine", "minCount": 2, "maxCount": 8}]
        world.change(GANGS, OWN, lambda own: own["spec"].update(gangGroups=groups))
        world.change(kinds.STATEFUL_SETS, "set", lambda own: own["spec"].update(replicas=6))
        world.submit_gang("after", queue="plain")
        await eventually(world.started("after"))
        assert counts(world) == (2, 8)


@pytest.mark.requirement("GNG-18", "GNG-46")
async def test_each_group_of_a_leaderworkerset_is_a_gang_until_it_starts_in_order() -> None:
    async with gang_world() as world, gang_assigner(world):
        own = linked_name(LINKED_KINDS["LeaderWorkerSet"], "serve")
        link = {"metadata": {"annotations": {names.GANG_LINK_ANNOTATION: own}}, "spec": {}}
        metadata = {"name": "serve", "namespace": NAMESPACE}
        world.put(
            kinds.LEADER_WORKER_SETS,
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "metadata": {**metadata, "labels": {names.QUEUE_LABEL: "queue"}},
                "spec": {
                    "replicas": 2,
                    "leaderWorkerTemplate": {"size": 3, "workerTemplate": link},
                },
            },
        )
        await eventually(lambda: counts(world, own) == (3, 3))
        gang = world.gang(own)
        assert gang is not None
        assert (gang["spec"]["replicaMode"], gang["spec"]["replicaKey"]) == (
            "ReplicatedGangs",
            GROUP_KEY,
        )
        before = gang["metadata"]["uid"]
        world.change(
            kinds.LEADER_WORKER_SETS, "serve", lambda one: one["spec"].update(replicas=5000)
        )
        world.change(
            kinds.LEADER_WORKER_SETS,
            "serve",
            lambda one: one["spec"].update(startupPolicy="LeaderReady"),
        )

        def is_alone() -> bool:
            found = world.gang(own)
            return found is not None and found["spec"].get("replicaMode") == "ReplicatedPods"

        await eventually(is_alone)
        again = world.gang(own)
        assert again is not None
        assert again["metadata"]["uid"] != before, "replicaMode is immutable"


@pytest.mark.requirement("GNG-14")
async def test_with_the_gate_off_no_such_object_is_read() -> None:
    async with gang_world() as world, assigner(world):
        stateful_set(world)
        world.submit_gang("train", queue="plain")
        await eventually(world.started("train"))
        assert not [one for one in world.requests if "statefulsets" in one.path]
        assert world.gangs() == []
