"""Workloads of gangs of the child Jobs of a JobSet that starts in an order."""

from __future__ import annotations

import copy
import json

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.gang.link import PER_JOB
from rackgate.jobframework.templates import annotations_of, gates_of
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.watches import decoder
from rackgate_cli.explain.gangs import GangReader
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, eventually
from tests.wire.gangs_world import GANGS, gang_assigner
from tests.wire.killing import WATCHED, Killer, keep_running, while_running
from tests.wire.kinds_world import furnish
from tests.wire.ordered_world import JOBSETS, PAIR, OrderedWorld, ordered

WORKERS = ("train-workers-0", "train-workers-1")
LONG_AGO = "2026-01-01T00:00:00Z"
LONG: Object = {"gangGroups": [{**PAIR["gangGroups"][0], "scheduleTimeoutSeconds": 3600}]}


def templates(jobset: Object) -> list[Object]:
    return [part["template"]["spec"]["template"] for part in jobset["spec"]["replicatedJobs"]]


def waiting_message(world: OrderedWorld) -> str:
    found = world.workload_of(world.of(JOBSETS, "train")) or {}
    for condition in found.get("status", {}).get("conditions", []):
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            return str(condition["message"])
    return ""


def scheduled(world: OrderedWorld, child: str) -> tuple[str, str]:
    """Reason and message of the Workload of gangs of a child Job."""
    gang = world.gang(world.gang_name(child)) or {}
    for one in gang.get("status", {}).get("conditions", []):
        if one["type"] == "GangScheduled":
            return one["reason"], one["message"]
    return "", ""


def has_gangs(world: OrderedWorld) -> bool:
    """Whether each child Job that exists has its Workload of gangs, and there are no others."""
    children = [job["metadata"]["name"] for job in world.children("train")]
    wanted = {world.gang_name(name) for name in children if name in WORKERS}
    return len(wanted) == len(WORKERS) and {g["metadata"]["name"] for g in world.gangs()} == wanted


@pytest.mark.requirement("GNG-29", "GNG-22")
async def test_each_job_of_an_ordered_jobset_has_a_workload_of_gangs_and_the_jobset_has_none() -> (
    None
):
    async with OrderedWorld() as world:
        furnish(world)
        world.unready.add("train-leader-0")
        world.add(JOBSETS, ordered())
        before = templates(world.of(JOBSETS, "train"))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train"))
            # They exist before the Jobs start: these are still suspended.
            await eventually(lambda: has_gangs(world))
            child = world.job("train-workers-1")
            assert child["spec"]["suspend"]
            gang = world.gang(world.gang_name("train-workers-1"))
            assert gang is not None
            (owner,) = gang["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (child["metadata"]["uid"], True)
            assert gang["spec"]["gangGroups"] == PAIR["gangGroups"]
            assert gang["spec"]["controllerRef"]["name"] == "train-workers-1"
            waits = "PodsMissing", "the JobSet train has not started the Job train-workers-1"
            await eventually(lambda: scheduled(world, "train-workers-1") == waits)
            leader, workers = templates(world.of(JOBSETS, "train"))
            assert annotations_of(workers)[names.GANG_LINK_ANNOTATION] == PER_JOB
            assert names.GANG_GATE in gates_of(workers)
            assert names.GANG_GATE not in gates_of(leader)
            world.become_ready("train", "train-leader-0")
            await eventually(lambda: not world.job("train-workers-1")["spec"]["suspend"])
            world.add_child_pods("train", "train-workers-1", 0, 1)
            await eventually(lambda: scheduled(world, "train-workers-1")[0] == "Running")
            # It stops: all templates are as their user wrote them.
            workload = world.workload_of(world.of(JOBSETS, "train"))
            assert workload is not None
            key = workload["metadata"]["name"]
            world.change(kinds.WORKLOADS, key, lambda own: own["spec"].update(active=False))
            for index in (0, 1):
                world.remove(kinds.PODS, f"train-workers-1-{index}", NAMESPACE)
            await eventually(lambda: templates(world.of(JOBSETS, "train")) == before)
            await eventually(
                lambda: not any(PER_JOB in str(job["spec"]) for job in world.children("train"))
            )
            assert has_gangs(world)
        assert world.broken_rules == []


@pytest.mark.requirement("GNG-29")
async def test_a_child_job_that_is_made_again_gets_another_one() -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(LONG))
        async with gang_assigner(world) as replica:
            await eventually(lambda: world.is_running(JOBSETS, "train") and has_gangs(world))
            former = {gang["metadata"]["uid"] for gang in world.gangs()}
            world.start_again("train")
            await eventually(lambda: has_gangs(world))
            assert not former & {gang["metadata"]["uid"] for gang in world.gangs()}
            # Its user deletes it, while the Job lives.
            world.remove(GANGS, world.gang_name(WORKERS[0]), NAMESPACE)
            await eventually(lambda: has_gangs(world))
            # A Job that has ended needs none.
            world.succeed("train", "workers", 0)
            jobs = replica.watches.child_jobs.store
            await eventually(lambda: jobs[f"{NAMESPACE}/{WORKERS[0]}"].finished)
            world.remove(GANGS, world.gang_name(WORKERS[0]), NAMESPACE)
            world.remove(GANGS, world.gang_name(WORKERS[1]), NAMESPACE)
            await eventually(lambda: world.gang(world.gang_name(WORKERS[1])))
            assert world.gang(world.gang_name(WORKERS[0])) is None


@pytest.mark.requirement("STR-17")
async def test_the_phase_of_a_child_job_counts_pods_that_have_succeeded() -> None:
    child = WORKERS[0]

    def status() -> tuple[object, ...]:
        found = (world.gang(world.gang_name(child)) or {}).get("status", {})
        groups = [(one["name"], one["phase"]) for one in found.get("gangGroups", [])]
        return found.get("members"), found.get("podPhase"), groups

    def succeed(index: int) -> None:
        world.change(
            kinds.PODS, f"{child}-{index}", lambda p: p["status"].update(phase="Succeeded")
        )
        world.change(kinds.JOBS, child, lambda job: job["status"].update(succeeded=index + 1))

    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(LONG))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train") and has_gangs(world))
            await eventually(lambda: status() == ("0/2", "Pending", [("gg", "Pending")]))
            world.add_child_pods("train", child, 0, 1)
            await eventually(lambda: status() == ("2/2", "Running", [("gg", "Running")]))
            succeed(0)
            # One has ended, and does not count as missing.
            await eventually(lambda: world.job(child)["status"].get("succeeded") == 1)
            assert status() == ("2/2", "Running", [("gg", "Running")])
            succeed(1)
            await eventually(lambda: status() == ("2/2", "Succeeded", [("gg", "Succeeded")]))


@pytest.mark.requirement("GNG-25")
async def test_a_name_that_another_owner_has_is_reported_and_left_alone() -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(LONG))
        await eventually(lambda: len(world.children("train")) == 3)
        name = world.gang_name(WORKERS[0])
        world.describe(name, LONG)
        async with gang_assigner(world):
            await eventually(lambda: world.events("WorkloadNameTaken"))
            await eventually(lambda: world.gang(world.gang_name(WORKERS[1])))
            taken = world.gang(name)
            assert taken is not None
            assert "ownerReferences" not in taken["metadata"]
            # It is made as soon as the name is free.
            world.remove(GANGS, name, NAMESPACE)
            await eventually(lambda: has_gangs(world))


@pytest.mark.requirement("GNG-29", "GNG-11")
async def test_the_time_of_a_child_job_begins_with_its_start_and_the_whole_jobset_gives_way() -> (
    None
):
    async with OrderedWorld() as world:
        furnish(world)
        world.unready |= {"train-leader-0", *WORKERS}
        world.add(JOBSETS, ordered(LONG))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train") and has_gangs(world))
            workload = world.workload_of(world.of(JOBSETS, "train"))
            assert workload is not None
            # The leader takes long: more than the time of the workers.
            world.change(kinds.WORKLOADS, workload["metadata"]["name"], _age)
            waits = "PodsMissing", "the JobSet train has not started the Job train-workers-0"
            await eventually(lambda: scheduled(world, "train-workers-0") == waits)
            world.become_ready("train", "train-leader-0")
            await eventually(lambda: not world.job(WORKERS[1])["spec"]["suspend"])
            for child in WORKERS:
                world.add_child_pods("train", child, *range(1 + (child == WORKERS[0])))
            await eventually(lambda: "1 of 2 pods" in scheduled(world, WORKERS[1])[1])
            await eventually(lambda: scheduled(world, WORKERS[0])[0] == "Running")
            assert world.state(JOBSETS, "train", "Evicted") == ("", "")
            # They were started as long ago, too.
            for child in WORKERS:
                world.change(
                    kinds.JOBS, child, lambda job: job["status"].update(startTime=LONG_AGO)
                )
            await eventually(
                lambda: world.state(JOBSETS, "train", "Evicted") == ("True", "GangTimeout")
            )
            evicted = world.workload_of(world.of(JOBSETS, "train"))
            assert evicted is not None
            messages = [c["message"] for c in evicted["status"]["conditions"]]
            assert (
                "1 of 2 pods of gang gg are bound, 1 exist 3600 s after the start of Job "
                "train-workers-1"
            ) in messages
            assert evicted["status"]["requeueState"]["count"] == 1
            await eventually(lambda: not world.is_running(JOBSETS, "train"))
            await eventually(lambda: all(j["spec"]["suspend"] for j in world.children("train")))


@pytest.mark.requirement("GNG-35")
async def test_a_lost_pod_of_one_child_job_makes_the_jobset_start_again_if_it_says_so() -> None:
    group = {**LONG["gangGroups"][0], "reschedulingPolicy": "TerminateAll"}
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered({"gangGroups": [group]}))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train") and has_gangs(world))
            await eventually(lambda: not world.job(WORKERS[1])["spec"]["suspend"])
            for child in WORKERS:
                world.add_child_pods("train", child, 0, 1)
            await eventually(lambda: scheduled(world, WORKERS[1])[0] == "Running")
            world.change(
                kinds.PODS, f"{WORKERS[1]}-1", lambda pod: pod["status"].update(phase="Failed")
            )
            await eventually(
                lambda: world.state(JOBSETS, "train", "Evicted") == ("True", "GangMemberLost")
            )


@pytest.mark.requirement("GNG-29")
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("{", "is not JSON"),
        ({"gangGroups": [{"name": "gg", "minCount": 3}]}, "gang gg needs 3 pods"),
    ],
)
async def test_a_template_that_cannot_work_holds_the_jobset(
    spec: Object | str, problem: str
) -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(spec))
        async with gang_assigner(world):
            await eventually(lambda: problem in waiting_message(world))
            assert "spec.replicatedJobs[1].template.metadata.annotations" in waiting_message(world)
            assert not world.is_running(JOBSETS, "train")


@pytest.mark.requirement("GNG-28")
async def test_a_jobset_that_is_a_gang_itself_has_none_for_its_jobs() -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(LONG, startupPolicy=None))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train"))
            (gang,) = world.gangs()
            assert gang["spec"]["controllerRef"]["kind"] == "JobSet"


async def test_the_gangs_of_child_jobs_are_explained_one_by_one() -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.unready |= {"train-leader-0", *WORKERS}
        world.add(JOBSETS, ordered(LONG))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train") and has_gangs(world))
        workload = decoder(Workload)(
            json.dumps(world.workload_of(world.of(JOBSETS, "train"))).encode()
        )
        client = world.client()
        try:
            reader = GangReader(client, 3)
            found = await reader.of_workload(workload, ())
            assert [view.why for view in found] == [
                f"the JobSet has not started the Job {child}" for child in WORKERS
            ]
            assert {view.left_seconds for view in found} == {None}
            world.become_ready("train", "train-leader-0")
            world.add_child_pods("train", WORKERS[0], 0, 1)
            world.add_child_pods("train", WORKERS[1], 0)
            pods = [
                decoder(Pod)(json.dumps(world.get(kinds.PODS, name, NAMESPACE)).encode())
                for name in (f"{WORKERS[0]}-0", f"{WORKERS[0]}-1", f"{WORKERS[1]}-0")
            ]
            first, second = await reader.of_workload(workload, pods)
            assert (first.state, second.state) == ("Running", "Released")
            assert second.workload == world.gang_name(WORKERS[1])
            assert second.left_seconds is not None
            gang = await reader.read(NAMESPACE, first.workload)
            assert gang is not None
            assert [view.workload for view in await reader.now(gang)] == [first.workload]
        finally:
            await client.close()


async def test_a_job_that_only_claims_to_be_a_child_gets_none() -> None:
    async with OrderedWorld() as world:
        furnish(world)
        world.add(JOBSETS, ordered(LONG))
        await eventually(lambda: len(world.children("train")) == 3)
        claim = copy.deepcopy(world.job(WORKERS[0]))
        claim["metadata"].update(name="claim", uid="claim")
        claim["metadata"]["ownerReferences"][0]["uid"] = "somebody"
        world.put(kinds.JOBS, claim)
        async with gang_assigner(world):
            await eventually(lambda: len(world.gangs()) == len(WORKERS))
            assert has_gangs(world)


# Of the writes of the life below: the Workload, two Workloads of gangs, the admission, the start,
# and of the end the eviction, the two of the stop, and child Jobs.
@pytest.mark.requirement("OPS-12")
@pytest.mark.steady_clock
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(9))
async def test_a_death_at_any_write_loses_no_gang(number: int, applied: bool) -> None:
    async with OrderedWorld() as world:
        furnish(world)
        killer = Killer(number, applied=applied, watched=(*WATCHED, "/jobsets", GANGS.plural))
        world.faults.append(killer.fault())
        await while_running(keep_running(world, killer.struck, gang_assigner), _life(world))


async def _life(world: OrderedWorld) -> None:
    world.unready |= set(WORKERS)
    world.add(JOBSETS, ordered())
    before = templates(world.of(JOBSETS, "train"))
    await eventually(lambda: world.state(JOBSETS, "train", "Evicted") == ("True", "GangTimeout"))
    await eventually(
        lambda: world.state(JOBSETS, "train", "QuotaReserved") == ("False", "PendingEvaluation")
    )
    await eventually(lambda: templates(world.of(JOBSETS, "train")) == before)
    await eventually(lambda: has_gangs(world))
    workload = world.workload_of(world.of(JOBSETS, "train"))
    assert workload is not None
    assert workload["status"]["requeueState"]["count"] == 1


def _age(own: Object) -> None:
    """It was admitted long ago."""
    for condition in own["status"]["conditions"]:
        if condition["type"] == "Admitted":
            condition["lastTransitionTime"] = LONG_AGO
