"""Names that meet: of jobs, Workloads, slices and pods."""

from __future__ import annotations

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import World
from tests.support.objects import Object


@attack(needs=("jobset", "kuberay"))
async def one_name_for_three_kinds(world: World) -> None:
    """A Job, a JobSet and a RayCluster `same`, 12 CPU each."""
    await world.submit("same", 3)
    await world.attacker.create(kinds.JOBSETS, world.jobset("same", {"workers": (3, "4")}))
    await world.attacker.create(kinds.RAY_CLUSTERS, world.raycluster("same", 2, cpu="5"))
    await world.bound("", 3)
    await world.hold(8)


@attack()
async def long_names_with_one_beginning(world: World) -> None:
    """Workload names are cut; two Jobs must not share one."""
    for number in range(3):
        await world.submit("x" * 58 + f"-{number}", 3)
    await world.bound("", 3)
    await world.hold(6)


@attack()
async def named_like_the_workload_of_another(world: World) -> None:
    """A Job whose name is that of a Workload, and one named like its slice."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    workload = (await world.workload_of("train"))["metadata"]["name"]
    await world.submit(workload, 4)
    await world.submit(f"{workload}-main-1", 4)
    await world.hold(6)


@attack(
    cases={
        "workload": {"where": "annotations", "marks": {names.WORKLOAD_ANNOTATION: "train"}},
        "podset": {"where": "labels", "marks": {names.PODSET_LABEL: "main"}},
        "tas": {"where": "labels", "marks": {names.TAS_LABEL: "true"}},
    },
    topology=None,
)
async def marks_in_a_template(world: World, where: str, marks: dict[str, str]) -> None:
    """A template that names a Workload that runs; managed and not."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    for name, managed in (("managed", True), ("plain", False)):
        job = world.job(name, 4, managed=managed)
        job["spec"]["template"]["metadata"].setdefault(where, {}).update(marks)
        if not managed:
            # Whatever is accepted claims to belong to the queue: it counts.
            job["spec"]["template"]["metadata"]["labels"].pop("test.rackgate.dev/unmanaged", None)
        await world.attacker.create(kinds.JOBS, job)
    await world.hold(5)


@attack()
async def gates_in_a_template(world: World) -> None:
    """Our gates, written by a user, on pods that nobody would release."""
    for number, gate in enumerate((names.TOPOLOGY_GATE, names.ELASTIC_GATE)):
        for managed in (True, False):
            gates: Object = {"schedulingGates": [{"name": gate}]}
            job = world.job(f"gated-{number}-{managed}".lower(), 4, managed=managed, pod=gates)
            await world.attacker.create(kinds.JOBS, job)
    world.note("gates in templates")
    await world.hold(5)


@attack()
async def mark_of_a_namespace_that_is_left_alone(world: World) -> None:
    """Labels on objects do not make a namespace a system's."""
    job = world.job("train", 8, spec={"suspend": False})
    job["metadata"]["labels"]["kubernetes.io/metadata.name"] = "kube-system"
    job["metadata"]["labels"]["app.kubernetes.io/part-of"] = "rackgate"
    await world.attacker.create(kinds.JOBS, job)
    world.note("a Job labelled like a system's")
    await world.hold(5)
