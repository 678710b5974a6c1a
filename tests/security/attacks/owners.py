"""Jobs that claim an owner, so that Rackgate leaves them to it."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.ledger import UNMANAGED
from tests.security.world import CRON_JOBS, World
from tests.support.cluster import until
from tests.support.objects import Object

JOBSET = ("JobSet", "jobset.x-k8s.io/v1alpha2")
RAY = ("RayCluster", "ray.io/v1")
INVENTED: dict[str, dict[str, Any]] = {
    "jobset": {"owner": JOBSET},
    "raycluster": {"owner": RAY},
    "odd-version": {"owner": ("JobSet", "jobset.x-k8s.io/v9")},
    "rayjob": {"owner": ("RayJob", "ray.io/v1")},
}


def labels(name: str) -> dict[str, str]:
    """What a child of a JobSet carries."""
    return {
        names.JOBSET_NAME_LABEL: name,
        names.REPLICATED_JOB_LABEL: "workers",
        names.JOB_INDEX_LABEL: "0",
        names.JOB_REPLICAS_LABEL: "1",
    }


@attack(cases=INVENTED, topology=None, bare=True, ci=("jobset",))
async def invented_owner_at_creation(world: World, owner: tuple[str, str]) -> None:
    """Twice eight pods of 4 CPU, not suspended, owned by nobody."""
    for number in range(2):
        job = world.job(f"forged-{number}", 8, spec={"suspend": False})
        job["metadata"]["ownerReferences"] = [world.owner(*owner)]
        await world.attacker.create(kinds.JOBS, job)
    await world.hold(6)


@attack(
    cases={"jobset": {"owner": JOBSET}, "raycluster": {"owner": RAY}},
    topology=None,
    bare=True,
    ci=("raycluster",),
)
async def invented_owner_by_patch(world: World, owner: tuple[str, str]) -> None:
    """A Job that waits for more than the quota gets an owner, and is then unsuspended."""
    await world.submit("waits", 10)
    await world.workload_of("waits")
    change: Object = {"metadata": {"ownerReferences": [world.owner(*owner)]}}
    await world.attacker.merge(kinds.JOBS, "waits", change)
    await world.attacker.merge(kinds.JOBS, "waits", {"spec": {"suspend": False}})
    change["spec"] = {"suspend": False}
    await world.attacker.merge(kinds.JOBS, "waits", change)
    await world.hold(6)


@attack(topology=None, bare=True)
async def running_job_gets_an_invented_owner(world: World) -> None:
    """A running Job is to leave its account: then its quota would be there once more."""
    await world.submit("first", 4)
    await world.runs("first", 4)
    change = {"metadata": {"ownerReferences": [world.owner(*JOBSET)]}}
    await world.attacker.merge(kinds.JOBS, "first", change)
    await world.submit("second", 4)
    await world.hold(8)


@attack(
    needs=("jobset",),
    cases={"unmanaged": {"queue": None}, "managed": {"queue": "queue"}},
    topology=None,
    ci=("unmanaged",),
)
async def owner_is_a_jobset_of_ones_own(world: World, queue: str | None) -> None:
    """The owner exists, with that UID: one that no queue knows, or one that was granted one pod."""
    made = world.jobset("real", {"workers": (1, "1")})
    if queue is None:
        del made["metadata"]["labels"]
        made["spec"]["suspend"] = False
        template = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template.setdefault("metadata", {}).setdefault("labels", {})[UNMANAGED] = "true"
    real = await world.attacker.create(kinds.JOBSETS, made)
    assert real is not None
    if queue is not None:
        await world.bound(f"{names.JOBSET_NAME_LABEL}=real", 1)
    for number in range(2):
        job = world.job(f"real-extra-{number}", 6, spec={"suspend": False}, labels=labels("real"))
        owner = world.owner(*JOBSET, "real", real["metadata"]["uid"])
        job["metadata"]["ownerReferences"] = [owner]
        await world.attacker.create(kinds.JOBS, job)
    await world.hold(8)


@attack(
    cases={
        "jobset": {"owner": RAY, "needs": ("jobset",)},
        "raycluster": {"owner": JOBSET, "needs": ("kuberay",)},
    },
)
async def invented_owner_of_a_composite(world: World, owner: tuple[str, str]) -> None:
    """A JobSet that a RayCluster is said to have made, and the other way round."""
    if owner is RAY:
        kind, made = kinds.JOBSETS, world.jobset("forged", {"workers": (8, "4")}, suspend=False)
    else:
        kind, made = kinds.RAY_CLUSTERS, world.raycluster("forged", 6, suspend=False)
    made["metadata"]["ownerReferences"] = [world.owner(*owner)]
    await world.attacker.create(kind, made)
    await world.hold(8)


@attack(cases={"jobset": {"needs": ("jobset",)}, "raycluster": {"needs": ("kuberay",)}})
async def composite_gets_an_invented_owner_while_it_waits(world: World) -> None:
    """A composite of more than the quota gets an owner, and is then unsuspended."""
    is_set = "jobset" in world.attack.needs
    kind = kinds.JOBSETS if is_set else kinds.RAY_CLUSTERS
    made = world.jobset("waits", {"workers": (8, "4")}) if is_set else world.raycluster("waits", 6)
    await world.attacker.create(kind, made)
    await world.workload_of("waits")
    owner = world.owner(*(RAY if is_set else JOBSET))
    await world.attacker.merge(kind, "waits", {"metadata": {"ownerReferences": [owner]}})
    await world.attacker.merge(kind, "waits", {"spec": {"suspend": False}})
    await world.hold(6)


@attack()
async def job_owned_by_ones_own_managed_job(world: World) -> None:
    """A second Job names the first, which runs, as its controller."""
    first = await world.submit("first", 3)
    assert first is not None
    await world.runs("first", 3)
    second = world.job("second", 4, spec={"suspend": False})
    owner = world.owner("Job", "batch/v1", "first", first["metadata"]["uid"])
    second["metadata"]["ownerReferences"] = [owner]
    await world.attacker.create(kinds.JOBS, second)
    await world.hold(8)


@attack(seconds=200)
async def cron_job_makes_managed_jobs(world: World) -> None:
    """Every minute a Job of 16 CPU that lasts, made by the CronJob controller."""
    template = world.job("unused", 4)
    template["spec"].pop("suspend", None)
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "cron"},
        "spec": {
            "schedule": "* * * * *",
            "concurrencyPolicy": "Allow",
            "jobTemplate": {
                "metadata": {"labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            },
        },
    }
    assert await world.attacker.create(CRON_JOBS, cron) is not None
    await world.submit("first", 4)
    await world.runs("first", 4)

    async def made() -> bool:
        """Or refused to the CronJob controller, which tells that in an Event."""
        jobs = [
            one for one in await world.attacker.all(kinds.JOBS) if "cron" in one["metadata"]["name"]
        ]
        events = await world.admin.list_all(kinds.EVENTS)
        return bool(jobs) or any(one.get("reason") == "FailedCreate" for one in events)

    await until("the CronJob controller has tried", made, 90.0)
    await world.hold(5)


@attack()
async def empty_queue_label(world: World) -> None:
    """A label with no queue in it is a label."""
    job = world.job("empty", 8, spec={"suspend": False})
    job["metadata"]["labels"][names.QUEUE_LABEL] = ""
    await world.attacker.create(kinds.JOBS, job)
    world.note("a Job with an empty queue label")
    await world.hold(5)
