"""Workloads of gangs of Jobs: made before the first pod, adopted, deleted, shared by nobody."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.gang.lifecycle import own_name
from rackgate.jobframework.registry import JOB
from rackgate.wire.core import Meta
from rackgate_assigner.gangs.status import controller as status_controller
from tests.support.apiserver import Object
from tests.support.apiserver_faults import Fault
from tests.support.objects import BLOCK, RACK
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.gangs_world import GANGS, GangWorld, gang_assigner, gang_world

ONE_GANG: Object = {"gangGroups": [{"name": "gg", "minCount": 4}]}


def started_template(world: GangWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.job(name)["spec"]["template"]
    return found


def gates(world: GangWorld, name: str) -> list[str]:
    return [gate["name"] for gate in started_template(world, name)["spec"]["schedulingGates"]]


def no_writes_to_gangs(world: GangWorld) -> bool:
    return not [request for request in world.writes() if GANGS.plural in request.path]


@pytest.mark.requirement("GNG-21", "GNG-24", "GNG-26", "GNG-12")
@pytest.mark.parametrize("queue", ["queue", "plain"])
async def test_an_indexed_job_gets_its_gang_before_its_first_pod(queue: str) -> None:
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("train", queue=queue)
        original = started_template(world, "train")
        await eventually(world.started("train"))
        gang = world.gang_of("train")
        assert gang is not None
        reference = {"apiGroup": "batch", "kind": "Job", "name": "train"}
        group = {"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 60}
        assert gang["spec"] == {"controllerRef": reference, "gangGroups": [group]}
        (owner,) = gang["metadata"]["ownerReferences"]
        assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
        annotations = started_template(world, "train")["metadata"]["annotations"]
        assert annotations[names.GANG_LINK_ANNOTATION] == gang["metadata"]["name"]
        with_topology = [names.TOPOLOGY_GATE] if queue == "queue" else []
        assert gates(world, "train") == [*with_topology, names.GANG_GATE]
        await eventually(lambda: world.events("DefaultCreated"))
        # It stops: the template is the user's again, and the object stays for the next run.
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=False))
        await eventually(lambda: started_template(world, "train") == original)
        assert names.GANG_RUN_SPEC_ANNOTATION not in str(world.job("train")["metadata"])
        assert world.gang_of("train") is not None
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.gangs() == [])


@pytest.mark.requirement("GNG-14")
async def test_with_the_gate_off_nothing_is_made_read_or_changed() -> None:
    async with gang_world() as world, assigner(world):
        world.describe("mine", ONE_GANG)
        world.submit_gang("train", queue="plain")
        await eventually(world.started("train"))
        assert no_writes_to_gangs(world)
        assert not [r for r in world.requests if GANGS.plural in r.path]
        assert "schedulingGates" not in started_template(world, "train")["spec"]


@pytest.mark.requirement("GNG-14")
async def test_jobs_without_gangs_start_as_ever() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("bag", queue="plain", spec={"completionMode": "NonIndexed"})
        await eventually(world.started("bag"))
        assert world.gangs() == []
        assert "schedulingGates" not in started_template(world, "bag")["spec"]
        assert names.GANG_RUN_SPEC_ANNOTATION not in str(world.job("bag")["metadata"])


@pytest.mark.requirement("GNG-19", "GNG-25")
async def test_a_job_waits_for_the_workload_that_its_user_names_and_never_gets_another() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("train", link="mine")
        await eventually(lambda: '"mine" does not exist' in world.pending_message("train"))
        assert not world.admitted("train")
        world.describe("mine", ONE_GANG)
        await eventually(world.started("train"))
        assert [gang["metadata"]["name"] for gang in world.gangs()] == ["mine"]
        assert names.GANG_GATE in gates(world, "train")
        world.complete("train")
        await eventually(world.shows("train", "Finished", "True"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.get(kinds.JOBS, "train", NAMESPACE) is None)
        assert world.gang("mine") is not None


@pytest.mark.requirement("GNG-20")
async def test_a_job_that_deletes_itself_takes_the_workload_of_its_user_along() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", {**ONE_GANG})
        other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
        world.describe("owned", ONE_GANG, ownerReferences=[other])
        world.submit_gang("train", link="mine", spec={"ttlSecondsAfterFinished": 5})
        world.submit_gang("second", link="owned", spec={"ttlSecondsAfterFinished": 5})
        await eventually(lambda: world.gang_of("train"))
        gang = world.gang("mine")
        assert gang is not None
        (owner,) = gang["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "train",
            "uid": world.job("train")["metadata"]["uid"],
        }
        await eventually(lambda: world.events("Adopted"))
        await eventually(world.started("second"))
        kept = world.gang("owned")
        assert kept is not None
        assert kept["metadata"]["ownerReferences"] == [other]
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.gang("mine") is None)


async def test_race_14_an_adoption_that_comes_second_is_made_again_or_not_at_all() -> None:
    """Its version is a precondition: another owner that was added meanwhile is not joined."""
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", ONE_GANG)
        conflict = Fault.status(409, "Conflict", path=f"/{GANGS.plural}/mine", method="PATCH")
        world.faults.append(conflict)
        world.submit_gang("train", link="mine", spec={"ttlSecondsAfterFinished": 5})
        await eventually(lambda: world.gang_of("train"))
        adoptions = [
            request
            for request in world.writes()
            if request.path.endswith(f"/{GANGS.plural}/mine") and b"ownerReferences" in request.body
        ]
        assert all(b"resourceVersion" in request.body for request in adoptions)


@pytest.mark.requirement("GNG-24")
async def test_race_14_the_younger_of_two_jobs_waits_for_the_gangs_of_the_other() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", ONE_GANG)
        world.submit_gang("first", link="mine")
        await eventually(world.started("first"))
        world.submit_gang("second", link="mine")
        await eventually(lambda: 'is used by the job "first"' in world.pending_message("second"))
        assert not world.runs("second")
        await eventually(lambda: len(world.events("SharedByTwoJobs")) == 2)
        world.complete("first")
        await eventually(world.started("second"))


async def test_a_workload_without_gangs_may_be_shared() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("off", {"gangGroups": [{"name": "gg", "minCount": 0}]})
        world.submit_gang("first", link="off")
        world.submit_gang("second", link="off")
        await eventually(world.started("first"))
        await eventually(world.started("second"))
        assert len(world.gangs()) == 1


async def test_race_13_a_default_that_a_user_deletes_is_made_again() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("train")
        await eventually(world.started("train"))
        before = world.gang_of("train")
        assert before is not None
        world.remove(GANGS, before["metadata"]["name"], NAMESPACE)
        await eventually(lambda: world.gang_of("train"))
        again = world.gang_of("train")
        assert again is not None
        assert again["metadata"]["name"] == before["metadata"]["name"]
        assert again["metadata"]["uid"] != before["metadata"]["uid"]
        assert world.runs("train")
        assert world.condition("train", "Evicted") == ("", "")


async def test_race_15_two_assigners_make_one_default() -> None:
    async with gang_world() as world:
        async with gang_assigner(world), gang_assigner(world):
            for number in range(4):
                world.submit_gang(f"train-{number}", 1 + number)
            await eventually(lambda: all(world.runs(f"train-{n}") for n in range(4)))
        assert len(world.gangs()) == 3, "a Job of one pod has none"
        for number in (1, 2, 3):
            assert world.gang_of(f"train-{number}") is not None


async def test_race_15_a_name_that_another_owner_has_is_waited_for() -> None:
    async with gang_world() as world, gang_assigner(world) as replica:
        world.submit_gang("train", queue="missing")
        await eventually(lambda: world.gang_of("train"))
        gang = world.gang_of("train")
        assert gang is not None
        name = gang["metadata"]["name"]
        foreign = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "x", "controller": True}
        world.change(GANGS, name, lambda o: o["metadata"].update(ownerReferences=[foreign]))
        await eventually(lambda: world.events("WorkloadNameTaken"))

        def queue(job: dict[str, Any]) -> None:
            job["metadata"]["labels"][names.QUEUE_LABEL] = "queue"

        world.change(kinds.JOBS, "train", queue)
        await eventually(lambda: "has another owner" in world.pending_message("train"))
        seen = replica.scheduler.cycles
        replica.scheduler.request_cycle()
        await eventually(lambda: replica.scheduler.cycles > seen)
        assert not world.admitted("train")
        world.remove(GANGS, name, NAMESPACE)
        await eventually(world.started("train"))


async def test_a_job_is_queued_although_another_owner_took_the_name_first() -> None:
    """Its Workload of Kueue's API says why it is pending: an Event alone would be lost."""
    async with gang_world() as world:
        job = world.submit_gang("train")
        name = own_name(JOB, Meta(name="train", uid=job["metadata"]["uid"]))
        foreign = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "x", "controller": True}
        world.describe(name, ONE_GANG)
        world.change(GANGS, name, lambda o: o["metadata"].update(ownerReferences=[foreign]))
        async with gang_assigner(world):
            await eventually(lambda: "has another owner" in world.pending_message("train"))
            world.remove(GANGS, name, NAMESPACE)
            await eventually(world.started("train"))


async def test_race_16_a_default_that_the_user_replaces_by_a_link_is_deleted() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", ONE_GANG)
        world.submit_gang("train", queue="missing")
        await eventually(lambda: world.gang_of("train"))

        def link(job: dict[str, Any]) -> None:
            annotations = {names.GANG_LINK_ANNOTATION: "mine"}
            job["spec"]["template"]["metadata"]["annotations"] = annotations
            job["metadata"]["labels"][names.QUEUE_LABEL] = "queue"

        world.change(kinds.JOBS, "train", link)
        await eventually(world.started("train"))
        await eventually(lambda: world.gang_of("train") is None)
        found = started_template(world, "train")["metadata"]["annotations"]
        assert found[names.GANG_LINK_ANNOTATION] == "mine"
        assert [gang["metadata"]["name"] for gang in world.gangs()] == ["mine"]


async def test_a_default_follows_its_job_while_nobody_has_changed_either() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("train", queue="missing")
        await eventually(lambda: world.gang_of("train"))
        size = {"parallelism": 6, "completions": 6}
        world.change(kinds.JOBS, "train", lambda job: job["spec"].update(size))

        def follows() -> bool:
            gang = world.gang_of("train")
            return gang is not None and gang["spec"]["gangGroups"][0]["minCount"] == 6

        await eventually(follows)


@pytest.mark.requirement("GNG-22")
async def test_a_job_with_a_template_gets_what_it_says() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 3, "scheduleTimeoutSeconds": 300}]}
    async with gang_world() as world, gang_assigner(world):
        world.submit_gang("run", own=spec)
        await eventually(world.started("run"))
        gang = world.gang_of("run")
        assert gang is not None
        assert gang["spec"]["gangGroups"] == spec["gangGroups"]
        world.submit_gang("bad", own={"gangGroups": [{"name": "gg", "minCount": -1}]})
        await eventually(lambda: world.events("InvalidTemplate"))
        await eventually(lambda: "workload-template" in world.pending_message("bad"))
        assert world.gang_of("bad") is None
        assert not world.runs("bad")


async def test_a_gang_larger_than_its_job_is_not_admitted() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", {"gangGroups": [{"name": "gg", "minCount": 5}]})
        world.submit_gang("train", link="mine")
        await eventually(
            lambda: "needs 5 pods, and the job has 4" in world.pending_message("train")
        )
        await eventually(lambda: world.events("Unsatisfiable"))
        world.change(GANGS, "mine", lambda o: o["spec"]["gangGroups"][0].update(minCount=4))
        await eventually(world.started("train"))


async def test_a_rejected_default_is_reported_and_tried_again() -> None:
    async with gang_world() as world:
        refused = Fault.status(422, "Invalid", path=f"/{GANGS.plural}", method="POST")
        world.faults.append(refused)
        async with gang_assigner(world):
            world.submit_gang("train")
            await eventually(lambda: world.events("GangWorkloadRefused"))
            await eventually(world.started("train"))


@pytest.mark.requirement("GNG-38")
async def test_the_request_of_the_workload_is_that_of_the_podset_in_every_run() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.describe("mine", {**ONE_GANG, "topologyRequest": {"required": RACK}})
        world.submit_gang("train", link="mine")
        await eventually(world.started("train"))
        (podset,) = world.workload("train")["spec"]["podSets"]
        assert podset["topologyRequest"]["required"] == RACK
        assert podset["topologyRequest"]["podIndexLabel"] == names.COMPLETION_INDEX_LABEL
        assert names.REQUIRED_TOPOLOGY not in str(podset["template"])
        (given,) = world.workload("train")["status"]["admission"]["podSetAssignments"]
        assert "topologyAssignment" in given
        assert gates(world, "train") == [names.TOPOLOGY_GATE, names.GANG_GATE]
        # The request of the running job stays, whatever is edited.
        world.change(GANGS, "mine", lambda o: o["spec"].pop("topologyRequest"))
        await eventually(world.shows("train", "PodsReady", "True"))
        assert world.condition("train", "Evicted") == ("", "")
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=False))
        await eventually(lambda: "required" not in str(world.workload("train")["spec"]))


@pytest.mark.requirement("GNG-38")
async def test_requests_that_cannot_be_met_hold_the_job() -> None:
    async with gang_world() as world, gang_assigner(world):
        inner = {**ONE_GANG["gangGroups"][0], "topologyRequest": {"required": BLOCK}}
        spec = {"topologyRequest": {"required": RACK}, "gangGroups": [inner]}
        world.describe("mine", spec)
        world.submit_gang("train", link="mine")
        await eventually(lambda: "is coarser than level" in world.pending_message("train"))

        def swap(gang: Any) -> None:
            gang["spec"]["topologyRequest"] = {"required": BLOCK}
            gang["spec"]["gangGroups"][0]["topologyRequest"] = {"required": RACK}

        world.change(GANGS, "mine", swap)
        await eventually(world.started("train"))
        (podset,) = world.workload("train")["spec"]["podSets"]
        assert podset["topologyRequest"]["required"] == RACK


def status(world: GangWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (world.gang(name) or {}).get("status", {})
    return found


def shown(world: GangWorld, name: str) -> dict[str, tuple[str, str]]:
    """Status and reason by condition."""
    listed = status(world, name).get("conditions", [])
    return {c["type"]: (c["status"], c["reason"]) for c in listed}


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are written at once: in production the tests would take two minutes each."""
    monkeypatch.setattr(status_controller, "INTERVAL_S", 0.05)


@pytest.mark.requirement("GNG-08")
@pytest.mark.usefixtures("short_intervals")
async def test_the_status_follows_the_gang_and_its_last_write_is_enough() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.ready = False
        world.describe("mine", ONE_GANG)
        world.submit_gang("train", link="mine")
        await eventually(lambda: shown(world, "mine").get("GangScheduled") == ("False", "NotBound"))
        assert shown(world, "mine")["Exclusive"] == ("True", "OneJob")
        assert status(world, "mine")["members"] == "0/4"
        world.add_pods("train", 0, 1, 2)
        await eventually(lambda: status(world, "mine")["members"] == "3/4")
        (gang,) = status(world, "mine")["gangs"]
        assert (gang["name"], gang["bound"], gang["minCount"]) == ("gg", 3, 4)
        world.submit_gang("second", link="mine")
        await eventually(lambda: shown(world, "mine")["Exclusive"] == ("False", "SharedByTwoJobs"))
        world.add_pods("train", 3)
        await eventually(lambda: shown(world, "mine")["GangScheduled"] == ("True", "Running"))
        assert status(world, "mine")["phase"] == "Running"
        assert "gangs" not in status(world, "mine")
        world.delete(kinds.JOBS, "second")
        world.complete("train")
        await eventually(lambda: status(world, "mine").get("phase") == "Empty")
        assert set(shown(world, "mine")) == {"GangScheduled"}


def pod_phases(world: GangWorld, name: str) -> tuple[str | None, dict[str, str]]:
    """The phase of the pods as the column shows it, and by gang group."""
    found = status(world, name)
    listed = {one["name"]: one["phase"] for one in found.get("gangGroups", [])}
    return found.get("podPhase"), listed


def shows_phase(world: GangWorld, phase: str) -> bool:
    return pod_phases(world, "mine") == (phase, {"gg": phase})


def set_phase(phase: str, pod: Object) -> None:
    pod["status"]["phase"] = phase


@pytest.mark.requirement("STR-17")
@pytest.mark.usefixtures("short_intervals")
async def test_the_status_shows_the_phase_of_the_pods_until_the_job_is_gone() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.ready = False
        world.describe("mine", ONE_GANG)
        world.submit_gang("train", link="mine")
        await eventually(partial(shows_phase, world, "Pending"))
        world.add_pods("train", 0, 1, 2)
        world.add_pods("train", 3, phase="Pending")
        await eventually(lambda: status(world, "mine").get("phase") == "Running")
        assert pod_phases(world, "mine")[0] == "Pending", "one still pulls its images"
        for phase in ("Running", "Unknown"):
            world.change(kinds.PODS, "train-3", partial(set_phase, phase))
            await eventually(partial(shows_phase, world, phase))
        world.complete("train")
        await eventually(partial(shows_phase, world, "Succeeded"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: pod_phases(world, "mine") == (None, {}))
