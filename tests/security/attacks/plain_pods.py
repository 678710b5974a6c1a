"""Plain pods with a queue label, alone and in groups."""

from __future__ import annotations

from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.ledger import UNMANAGED
from tests.security.world import World
from tests.support.cluster import until
from tests.support.objects import Object

GROUP, TOTAL = names.POD_GROUP_LABEL, names.POD_GROUP_TOTAL_ANNOTATION
FINALIZER: Final = names.MANAGED_LABEL


def queued(
    world: World, name: str, *, group: str = "", total: int = 0, cpu: str = "4", **metadata: Any
) -> Object:
    """A pod of a queue; without webhooks as they would make it."""
    labels = {names.QUEUE_LABEL: "queue", **metadata.pop("labels", {})}
    annotations = dict(metadata.pop("annotations", {}))
    if group:
        labels[GROUP] = group
        annotations[TOTAL] = str(total)
    pod = world.pod(name, cpu, labels=labels, annotations=annotations, **metadata)
    if world.phase.webhooks_down:
        pod["metadata"]["labels"][names.MANAGED_LABEL] = "true"
        pod["metadata"].setdefault("finalizers", []).append(FINALIZER)
        pod["spec"]["schedulingGates"] = [{"name": names.ADMISSION_GATE}]
    return pod


async def living(world: World, count: int) -> None:
    """So many pods of the attacker live."""

    async def there() -> bool:
        return len(await world.living()) >= count

    await until(f"{count} plain pods live", there, 90.0)


@attack(gangs=True, topology=None)
async def more_than_the_quota(world: World) -> None:
    """Ten pods alone, and two groups: never more than 16 CPU."""
    for number in range(10):
        await world.attacker.create(kinds.PODS, queued(world, f"alone-{number}"))
    for group in ("a", "b"):
        for number in range(3):
            pod = queued(world, f"{group}-{number}", group=group, total=3)
            await world.attacker.create(kinds.PODS, pod)
    await living(world, 4)
    await world.hold(6)


@attack(gangs=True, topology=None, words=("may only", "scheduling gates"))
async def gate_and_marks_removed(world: World) -> None:
    """Of pods that wait, and of pods that run."""
    for number in range(8):
        await world.attacker.create(kinds.PODS, queued(world, f"pod-{number}"))
    await living(world, 4)
    for number in range(8):
        name = f"pod-{number}"
        await world.attacker.merge(kinds.PODS, name, {"spec": {"schedulingGates": None}})
        for key in (names.QUEUE_LABEL, names.MANAGED_LABEL):
            change: Object = {"metadata": {"labels": {key: None}}}
            await world.attacker.merge(kinds.PODS, name, change)
            await world.attacker.merge(kinds.PODS, name, change, sub="status")
        finalizers: Object = {"metadata": {"finalizers": None}}
        await world.attacker.merge(kinds.PODS, name, finalizers)
    await world.hold(6)


@attack(gangs=True, topology=None)
async def more_pods_than_the_group_says(world: World) -> None:
    """And with larger ones, after the group was admitted."""
    for number in range(2):
        pod = queued(world, f"pod-{number}", group="g", total=2)
        await world.attacker.create(kinds.PODS, pod)
    await living(world, 2)
    for number in range(2, 10):
        pod = queued(world, f"pod-{number}", group="g", total=2, cpu="8")
        await world.attacker.create(kinds.PODS, pod)
    for number in range(2):
        await world.attacker.delete(kinds.PODS, f"pod-{number}", grace_s=3600)
    await world.hold(8)


@attack(gangs=True)
async def group_label_moved(world: World) -> None:
    """Pods join and leave the groups of others, and the total changes."""
    for group in ("a", "b"):
        for number in range(2):
            pod = queued(world, f"{group}-{number}", group=group, total=2)
            await world.attacker.create(kinds.PODS, pod)
    await living(world, 4)
    for number in range(2):
        for change in (
            {"labels": {GROUP: "b"}},
            {"labels": {GROUP: None}},
            {"annotations": {TOTAL: "100"}},
            {"annotations": {TOTAL: None}},
        ):
            await world.attacker.merge(kinds.PODS, f"a-{number}", {"metadata": change})
    await world.hold(6)


@attack(gangs=True, topology=None)
async def owners_that_are_invented(world: World) -> None:
    """Pods with a queue label under a job that there is not: no more than without the label.

    Pods of a managed kind may inherit the label from a template, so it is ignored there. Others are
    queued. In no case do they take the quota of others.
    """
    for number, kind in enumerate(("Job", "JobSet", "RayCluster", "ReplicaSet")):
        api = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2", "ReplicaSet": "apps/v1"}
        owner = world.owner(kind, api.get(kind, "ray.io/v1"))
        for copy in range(3):
            pod = queued(world, f"pod-{number}-{copy}", ownerReferences=[owner])
            if kind != "ReplicaSet":
                pod["metadata"]["labels"][UNMANAGED] = "true"
            await world.attacker.create(kinds.PODS, pod)
    await world.hold(8)
    await world.tenant_runs("beside")


@attack(gangs=True, topology=None)
async def node_named(world: World) -> None:
    """A pod of a queue that is bound by its user."""
    for number in range(6):
        pod = queued(world, f"pod-{number}")
        pod["spec"]["nodeName"] = world.node
        pod["spec"].pop("schedulingGates", None)
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(5)


@attack(gangs=True, topology=None)
async def linked_members_of_a_group(world: World) -> None:
    """A group whose Workload of gangs asks for more pods than the group has: none starts."""
    await world.attacker.create(
        kinds.GANG_WORKLOADS,
        {
            "apiVersion": kinds.GANG_WORKLOADS.api_version,
            "kind": kinds.GANG_WORKLOADS.kind,
            "metadata": {"name": "mine"},
            "spec": {"gangGroups": [{"name": "gg", "minCount": 3}]},
        },
    )
    for number in range(2):
        annotations = {names.GANG_LINK_ANNOTATION: "mine"}
        pod = queued(world, f"pod-{number}", group="g", total=2, annotations=annotations)
        if world.phase.webhooks_down:
            pod["spec"]["schedulingGates"].append({"name": names.GANG_GATE})
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(8)
    assert not await world.living(), "two of three have started"
