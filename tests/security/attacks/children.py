"""The Jobs that a JobSet makes, and the JobSet itself."""

from __future__ import annotations

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, World
from tests.support.cluster import until
from tests.support.objects import Object

SET = f"{names.JOBSET_NAME_LABEL}=set"
CHILD = "set-workers-0"
FREE_TEMPLATE: Object = {
    "metadata": {
        "labels": {names.TAS_LABEL: None, names.PODSET_LABEL: None},
        "annotations": {names.WORKLOAD_ANNOTATION: None},
    },
    "spec": {"schedulingGates": None, "nodeSelector": None},
}


async def running(world: World, pods: int = 1, cpu: str = "4") -> None:
    """A JobSet `set` of one child Job, running."""
    made = world.jobset("set", {"workers": (pods, cpu)}, part={"completionMode": "Indexed"})
    await world.attacker.create(kinds.JOBSETS, made)
    await world.bound(SET, pods)


async def pending(world: World) -> None:
    """A JobSet `set` of twice the quota, with its suspended child Job."""
    await world.attacker.create(kinds.JOBSETS, world.jobset("set", {"workers": (8, "4")}))

    async def child() -> Object | None:
        return await world.attacker.find(kinds.JOBS, CHILD)

    await until("the child Job is there", child)
    await world.workload_of("set")


@attack(needs=("jobset",), topology=None, ci=("",))
async def child_of_a_running_jobset_raised(world: World) -> None:
    """From one pod to forty."""
    await running(world)
    for count in (40, 20, 40):
        change = {"spec": {"parallelism": count, "completions": count}}
        await world.attacker.merge(kinds.JOBS, CHILD, change)
        await world.attacker.merge(kinds.JOBS, CHILD, {"spec": {"parallelism": count}})
        await world.hold(2)
    await world.hold(4)


@attack(needs=("jobset",), topology=None, ci=("topology",))
async def child_of_a_pending_jobset_unsuspended_in_a_loop(world: World) -> None:
    """JobSet suspends it again; in between its pods are made. Gate and marks go first."""
    await pending(world)
    for _ in range(25):
        change: Object = {"spec": {"template": FREE_TEMPLATE}}
        await world.attacker.merge(kinds.JOBS, CHILD, change)
        await world.attacker.merge(kinds.JOBS, CHILD, {"spec": {"suspend": False}})
        await world.hold(0.2)
    await world.hold(4)


@attack(needs=("jobset",), words=("field is immutable",))
async def child_of_a_pending_jobset_gets_another_template(world: World) -> None:
    """When the JobSet is admitted, its child asks for more than was granted."""
    await world.attacker.create(
        kinds.JOBSETS, world.jobset("set", {"workers": (4, "4")}, suspend=True)
    )
    await world.submit("first", 4)

    async def child() -> Object | None:
        return await world.attacker.find(kinds.JOBS, CHILD)

    await until("the child Job is there", child)
    operations = [
        {
            "op": "replace",
            "path": "/spec/template/spec/containers/0/resources/requests/cpu",
            "value": "16",
        }
    ]
    for _ in range(5):
        await world.attacker.json_patch(kinds.JOBS, CHILD, operations)
        await world.attacker.merge(kinds.JOBS, CHILD, {"spec": {"parallelism": 16}})
        await world.hold(0.5)
    await world.attacker.delete(kinds.JOBS, "first")
    await world.hold(8)


@attack(
    cases={
        "queue": {"change": {"metadata": {"labels": {names.QUEUE_LABEL: None}}}},
        "owner": {"change": {"metadata": {"ownerReferences": None}}},
        "jobset-labels": {
            "change": {
                "metadata": {
                    "labels": {
                        names.JOBSET_NAME_LABEL: None,
                        names.REPLICATED_JOB_LABEL: None,
                    }
                }
            }
        },
    },
    needs=("jobset",),
)
async def child_taken_out_of_its_jobset(world: World, change: Object) -> None:
    """What nobody's child is, nobody counts; and the JobSet may make another."""
    await running(world, 4)
    for _ in range(3):
        for job in await world.attacker.all(kinds.JOBS):
            await world.attacker.merge(kinds.JOBS, job["metadata"]["name"], change)
        await world.hold(2)
    await world.attacker.delete(kinds.JOBSETS, "set")
    await world.submit("next", 4)
    await world.hold(8)


@attack(needs=("jobset",), topology=None)
async def child_suspended_and_raised(world: World) -> None:
    """The child of a running JobSet, suspended by its user, may be edited."""
    await running(world, 2)
    for _ in range(3):
        await world.attacker.merge(kinds.JOBS, CHILD, {"spec": {"suspend": True}})
        await world.hold(0.5)
        change = {"spec": {"parallelism": 12, "completions": 12, "suspend": False}}
        await world.attacker.merge(kinds.JOBS, CHILD, change)
        await world.hold(2)
    await world.hold(4)


@attack(
    cases={"orphan": {"how": "Orphan"}, "background": {"how": "Background"}},
    needs=("jobset",),
    topology=None,
)
async def child_deleted_and_made_again(world: World, how: str) -> None:
    """The JobSet makes its child again, whatever the pods of the first one do."""
    made = world.jobset("set", {"workers": (4, "4")}, terminate=HOURS)
    await world.attacker.create(kinds.JOBSETS, made)
    await world.bound(SET, 4)
    async for _ in world.rounds(3, 3.0):
        await world.attacker.delete(kinds.JOBS, CHILD, how=how)
    await world.hold(5)


@attack(needs=("jobset",))
async def child_made_by_hand(world: World) -> None:
    """Jobs named and labelled as the JobSet's next ones would be."""
    await running(world, 2)
    real = await world.attacker.find(kinds.JOBSETS, "set")
    child = await world.attacker.find(kinds.JOBS, CHILD)
    assert real is not None
    assert child is not None
    for number in (1, 2):
        job = world.job(f"set-workers-{number}", 8, spec={"suspend": False})
        job["metadata"]["labels"] |= child["metadata"]["labels"] | {
            names.JOB_INDEX_LABEL: str(number)
        }
        owner = world.owner("JobSet", "jobset.x-k8s.io/v1alpha2", "set", real["metadata"]["uid"])
        job["metadata"]["ownerReferences"] = [owner]
        await world.attacker.create(kinds.JOBS, job)
    await world.hold(8)


@attack(needs=("jobset",))
async def jobset_suspend_flipped(world: World) -> None:
    """Its pods take hours to go each time."""
    made = world.jobset("set", {"workers": (4, "4")}, terminate=HOURS)
    await world.attacker.create(kinds.JOBSETS, made)
    await world.bound(SET, 4)
    async for number in world.rounds(10, 0.5):
        change = {"spec": {"suspend": number % 2 == 0}}
        await world.attacker.merge(kinds.JOBSETS, "set", change)
    await world.submit("next", 4)
    await world.hold(6)


@attack(needs=("jobset",), words=("field is immutable", "Invalid value"))
async def running_jobset_raised(world: World) -> None:
    """Replicas, parallelism and requests of a running JobSet."""
    await running(world, 2)
    for path, value in (
        ("/spec/replicatedJobs/0/replicas", 8),
        ("/spec/replicatedJobs/0/template/spec/parallelism", 16),
        (
            "/spec/replicatedJobs/0/template/spec/template/spec/containers/0/resources/requests/cpu",
            "16",
        ),
    ):
        change = [{"op": "replace", "path": path, "value": value}]
        await world.attacker.json_patch(kinds.JOBSETS, "set", change)
    await world.hold(6)


@attack(needs=("jobset",))
async def jobset_restarts_while_its_pods_take_hours_to_go(world: World) -> None:
    """A failure policy makes all child Jobs anew."""
    policy = {"maxRestarts": 5}
    made = world.jobset(
        "set",
        {"workers": (4, "4")},
        terminate=HOURS,
        part={"backoffLimit": 0},
        failurePolicy=policy,
    )
    await world.attacker.create(kinds.JOBSETS, made)
    for _ in range(2):
        pods = await world.bound(SET, 4)
        change = {"metadata": {"annotations": {"rackgate.dev/fail-after-seconds": "0"}}}
        await world.attacker.merge(kinds.PODS, pods[0]["metadata"]["name"], change)
        await world.hold(8)
        if len(await world.living(SET)) < 4:
            break
    await world.hold(3)


@attack(needs=("jobset",), words=("immutable",))
async def jobset_given_to_another_controller(world: World) -> None:
    """`managedBy` somebody else: admitted, and its children are made by hand."""
    made = world.jobset("set", {"workers": (4, "4")}, managedBy="kueue.x-k8s.io/multikueue")
    real = await world.attacker.create(kinds.JOBSETS, made)
    assert real is not None
    owner = world.owner("JobSet", "jobset.x-k8s.io/v1alpha2", "set", real["metadata"]["uid"])
    for number in range(3):
        job = world.job(f"set-workers-{number}", 4, spec={"suspend": False})
        job["metadata"]["ownerReferences"] = [owner]
        await world.attacker.create(kinds.JOBS, job)
    world.note("a JobSet of another controller")
    await world.hold(6)
