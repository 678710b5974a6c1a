"""Pods that start together, and the objects that say which."""

from __future__ import annotations

from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, REPLICA_SETS, World
from tests.support.cluster import until
from tests.support.objects import Object

GANGS: Final = kinds.GANG_WORKLOADS
LINK, RUN, GATE = names.GANG_LINK_ANNOTATION, names.GANG_RUN_ANNOTATION, names.GANG_GATE
JOB: Final = "batch.kubernetes.io/job-name"
OF_GANGS: Final = {"name": "gg", "minCount": 4}


def described(name: str, *groups: Object, **spec: Any) -> Object:
    """A Workload of gangs."""
    return {
        "apiVersion": GANGS.api_version,
        "kind": GANGS.kind,
        "metadata": {"name": name},
        "spec": {"gangGroups": list(groups or (OF_GANGS,)), **spec},
    }


def linked(world: World, name: str, link: str = "mine", **metadata: Any) -> Object:
    """A pod of nobody that names a Workload of gangs."""
    annotations = {LINK: link, **metadata.pop("annotations", {})}
    return world.pod(name, annotations=annotations, **metadata)


async def held(world: World, count: int, link: str = "mine") -> list[str]:
    """Pods of nobody that wait for a gang of more."""
    await world.attacker.create(GANGS, described(link, {"name": "gg", "minCount": count + 1}))
    names_ = [f"held-{number}" for number in range(count)]
    for name in names_:
        await world.attacker.create(kinds.PODS, linked(world, name, link))
    for name in names_:
        pod = await world.attacker.find(kinds.PODS, name)
        assert pod is not None
        assert {"name": GATE} in pod["spec"]["schedulingGates"]
    return names_


def never_started(world: World, pods: list[str]) -> None:
    """No node was given to any of these pods."""
    bound = {pod["metadata"]["name"] for pod in world.ledger.living.values()}
    assert not bound & set(pods), "pods of a gang that is not complete have started"


@attack(topology=None, gangs=True, words=("must be removed", "may not", "scheduling gates"))
async def gate_removed_by_its_user(world: World) -> None:
    """One by one, all at once, through the status, and by a binding."""
    pods = await held(world, 3)
    for name in pods:
        await world.attacker.merge(kinds.PODS, name, {"spec": {"schedulingGates": None}})
        await world.attacker.merge(kinds.PODS, name, {"spec": {"schedulingGates": []}})
        gone = [{"op": "remove", "path": "/spec/schedulingGates"}]
        await world.attacker.json_patch(kinds.PODS, name, gone)
        await world.attacker.replace(
            kinds.PODS, name, lambda pod: pod["spec"].pop("schedulingGates")
        )
        change = {"spec": {"schedulingGates": None}}
        await world.attacker.merge(kinds.PODS, name, change, sub="status")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": world.node},
        }
        await world.attacker.post(kinds.PODS, name, "binding", binding)
    await world.hold(4)
    never_started(world, pods)


@attack(gangs=True)
async def run_forged(world: World) -> None:
    """The annotation that says that a gang was released, at creation and later."""
    pods = await held(world, 3)
    for name in pods:
        for sub in (None, "status"):
            change = {"metadata": {"annotations": {RUN: "0123456789"}}}
            await world.attacker.merge(kinds.PODS, name, change, sub=sub)
    for number in range(2):
        pod = linked(world, f"released-{number}", annotations={RUN: "0123456789"})
        await world.attacker.create(kinds.PODS, pod)
        assert await world.attacker.find(kinds.PODS, f"released-{number}") is None
    job = world.job("forged", 4)
    template = job["spec"]["template"]
    template["metadata"].setdefault("annotations", {}).update({LINK: "mine", RUN: "0123456789"})
    await world.attacker.create(kinds.JOBS, job)
    for name in pods:
        found = await world.attacker.find(kinds.PODS, name)
        assert found is not None
        assert RUN not in found["metadata"]["annotations"]
    await world.hold(4)
    never_started(world, pods)


@attack(gangs=True)
async def link_added_changed_and_removed(world: World) -> None:
    """Of held pods, and of pods that never had one."""
    pods = await held(world, 2)
    await world.attacker.create(GANGS, described("off", {"name": "gg", "minCount": 0}))
    free = world.pod("free", labels={"test.rackgate.dev/unmanaged": "true"})
    await world.attacker.create(kinds.PODS, free)
    for name in (*pods, "free"):
        for value in (None, "", "off", "../other/mine"):
            change = {"metadata": {"annotations": {LINK: value}}}
            if name != "free" or value:
                await world.attacker.merge(kinds.PODS, name, change)
                await world.attacker.merge(kinds.PODS, name, change, sub="status")
    for name in pods:
        found = await world.attacker.find(kinds.PODS, name)
        assert found is not None
        assert found["metadata"]["annotations"][LINK] == "mine"
    await world.hold(4)
    never_started(world, pods)


@attack(
    cases={"replica-set": {"kind": "ReplicaSet"}, "pods": {"kind": "Pod"}},
    gangs=True,
    topology=None,
)
async def linked_pods_without_a_queue(world: World, kind: str) -> None:
    """More than the quota, and no Workload with quota: nothing of them may start."""
    await world.attacker.create(GANGS, described("mine", {"name": "gg", "minCount": 6}))
    pods = [f"member-{number}" for number in range(6)]
    if kind == "Pod":
        for name in pods:
            await world.attacker.create(kinds.PODS, linked(world, name))
    else:
        labels = {"app": "member"}
        template = {
            "metadata": {"labels": labels, "annotations": {LINK: "mine"}},
            "spec": world.pod("unused")["spec"],
        }
        spec = {"replicas": 6, "selector": {"matchLabels": labels}, "template": template}
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "member"}}
        await world.attacker.create(REPLICA_SETS, {**made, "spec": spec})
    await world.hold(10)


@attack(gangs=True, topology=None)
async def pods_that_claim_to_be_members_of_a_running_gang(world: World) -> None:
    """Bare pods with the marks and the owner of a gang that has started."""
    job = await world.submit("train", 3)
    assert job is not None
    real = (await world.runs("train", 3))[0]["metadata"]
    for number in range(4):
        pod = world.pod(
            f"extra-{number}",
            labels={names.PODSET_LABEL: "main", names.TAS_LABEL: "true"},
            annotations={key: value for key, value in real["annotations"].items() if key != RUN},
            ownerReferences=[
                {**owner, "blockOwnerDeletion": False} for owner in real["ownerReferences"]
            ],
        )
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(8)


@attack(gangs=True, topology=None)
async def workload_of_gangs_edited_while_its_gang_is_released(world: World) -> None:
    """Counts, timeouts and policies, again and again; and deleted, and made again."""
    await world.attacker.create(GANGS, described("mine"))
    for number in range(3):
        job = world.job(f"train-{number}", 4)
        annotations = job["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations[LINK] = "mine"
        await world.attacker.create(kinds.JOBS, job)
    least = 1
    async for number in world.rounds(40, 0.15):
        least = 1 + number % 6
        group = {
            "name": "gg",
            "minCount": least,
            "scheduleTimeoutSeconds": 1 + number % 3,
            "reschedulingPolicy": "TerminateAll",
        }
        await world.attacker.merge(GANGS, "mine", {"spec": {"gangGroups": [group]}})
        if number % 10 == 9:
            await world.attacker.delete(GANGS, "mine")
            await world.attacker.create(GANGS, described("mine", group))
    await world.hold(8)


@attack(gangs=True)
async def workload_of_gangs_of_another_job_taken(world: World) -> None:
    """The default one of a Job, deleted and made by hand under the same name, without its gang."""
    await world.submit("first", 4)
    await world.runs("first", 4)
    await world.submit("train", 4)

    async def default() -> Object | None:
        for one in await world.attacker.all(GANGS):
            owners = one["metadata"].get("ownerReferences", [])
            if any(owner["name"] == "train" for owner in owners):
                return one
        return None

    found = await until("the Job has a Workload of gangs", default)
    assert found is not None
    name = found["metadata"]["name"]
    forged = described(name, {"name": "gg", "minCount": 0})
    for _ in range(20):
        await world.attacker.delete(GANGS, name)
        await world.attacker.create(GANGS, forged)
        await world.hold(0.1)
    await world.attacker.delete(kinds.JOBS, "first")
    await world.hold(6)
    for pod in await world.living(f"{JOB}=train"):
        assert RUN in pod["metadata"]["annotations"], "it was never held"


@attack(gangs=True)
async def workload_of_gangs_deleted_with_ones_own_job(world: World) -> None:
    """A Job that deletes itself names the object of another job, to have it deleted."""
    theirs = described("theirs", controllerRef={"apiGroup": "batch", "kind": "Job", "name": "big"})
    await world.attacker.create(GANGS, theirs)
    job = world.job("small", 1, cpu="1", spec={"ttlSecondsAfterFinished": 1})
    job["spec"]["template"]["metadata"].setdefault("annotations", {})[LINK] = "theirs"
    await world.attacker.create(kinds.JOBS, job)
    await world.workload_of("small")
    await world.hold(5)
    found = await world.attacker.find(GANGS, "theirs")
    assert found is not None
    assert not found["metadata"].get("ownerReferences")
    await world.attacker.delete(kinds.JOBS, "small")
    await world.hold(4)
    assert await world.attacker.find(GANGS, "theirs") is not None


@attack(gangs=True, topology=None, words=("should be less than or equal to",))
async def huge_counts(world: World) -> None:
    """The largest that the schema allows: nobody else may wait for them."""
    for number in range(20):
        groups = [
            {
                "name": f"g{index}",
                "minCount": 1_000_000,
                "selector": {"key": "role", "values": [f"r{index}"]},
            }
            for index in range(18)
        ]
        await world.attacker.create(GANGS, described(f"huge-{number}", *groups))
        job = world.job(f"train-{number}", 2)
        annotations = job["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations[LINK] = f"huge-{number}"
        await world.attacker.create(kinds.JOBS, job)
    over = described("over", {"name": "gg", "minCount": 10**9})
    await world.attacker.create(GANGS, over)
    assert await world.attacker.find(GANGS, "over") is None
    await world.tenant_runs("beside")
    never = [pod["metadata"]["name"] for pod in await world.attacker.all(kinds.PODS)]
    never_started(world, never)


@attack(gangs=True)
async def others_lose_nothing_when_ones_own_gang_times_out(world: World) -> None:
    """The other tenant has a gang of the same names; and pods claim to be of ours."""
    manifest = described("mine", {"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 3600})
    await world.tenant.create(GANGS, manifest)
    theirs = world.job("train", 2, cpu="2")
    theirs["spec"]["template"]["metadata"].setdefault("annotations", {})[LINK] = "mine"
    theirs["spec"].pop("suspend", None)
    if world.phase.webhooks_down:
        theirs["spec"]["suspend"] = True
    await world.tenant.create(kinds.JOBS, theirs)

    async def bound() -> bool:
        return len(world.ledger.running(world.tenant.namespace, f"{JOB}=train")) == 2

    await until("the other tenant's gang runs", bound, 90.0)
    group = {
        "name": "gg",
        "minCount": 2,
        "scheduleTimeoutSeconds": 1,
        "reschedulingPolicy": "TerminateAll",
    }
    await world.attacker.create(GANGS, described("mine", group))
    # A gate of another owner: the gang is admitted, and never starts.
    job = world.job("train", 2, cpu="2", pod={"schedulingGates": [{"name": "example.com/never"}]})
    job["spec"]["template"]["metadata"].setdefault("annotations", {})[LINK] = "mine"
    made = await world.attacker.create(kinds.JOBS, job)
    assert made is not None
    bystander = world.pod("bystander", cpu="1", labels={"test.rackgate.dev/unmanaged": "true"})
    await world.attacker.create(kinds.PODS, bystander)

    async def evicted() -> bool:
        found = await world.workload_of("train")
        return any(
            one["type"] == "Evicted" and one["reason"] == "GangTimeout"
            for one in found.get("status", {}).get("conditions", [])
        )

    await until("the own gang is evicted", evicted, 60.0)
    await world.hold(4)
    assert not world.ledger.lost, f"the other tenant lost {world.ledger.lost}"
    found = await world.attacker.find(kinds.PODS, "bystander")
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    await world.tenant.delete(kinds.JOBS, "train")


@attack(gangs=True)
async def pods_of_a_gang_take_hours_to_go(world: World) -> None:
    """It times out again and again, and its pods stay: they keep their quota."""
    group = {"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 60}
    await world.attacker.create(GANGS, described("mine", group))
    job = world.job("train", 4, terminate=HOURS)
    job["spec"]["template"]["metadata"].setdefault("annotations", {})[LINK] = "mine"
    await world.attacker.create(kinds.JOBS, job)
    await world.runs("train", 4)
    hasty = {**group, "scheduleTimeoutSeconds": 2, "reschedulingPolicy": "TerminateAll"}
    await world.attacker.merge(GANGS, "mine", {"spec": {"gangGroups": [hasty]}})
    pods = await world.living(f"{JOB}=train")
    for pod in pods[:2]:
        await world.attacker.delete(kinds.PODS, pod["metadata"]["name"])
    await world.submit("next", 4)
    await world.hold(8)
