"""`rackgate explain` against a fake cluster over real HTTP: what it reads, and what it may not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import Features
from rackgate.gang.link import run_id
from rackgate_assigner.explain.explanation import Explanation
from rackgate_cli.errors import CommandError
from rackgate_cli.explain.command import split_name
from rackgate_cli.explain.explainer import WorkloadExplainer
from rackgate_cli.explain.gangs import GangReader, status_blocks
from rackgate_cli.explain.view import blocks
from rackgate_cli.tables import plain
from tests.support import objects
from tests.support.apiserver import Fault
from tests.support.objects import RACK
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish


@dataclass
class Desk:
    """A user with a question."""

    world: World
    excluded: tuple[str, ...] = ()

    async def named(self, name: str, namespace: str = NAMESPACE, *, kind: str = "") -> Explanation:
        return await self._ask("named", namespace, name, kind)

    async def manifest(self, document: dict[str, Any]) -> Explanation:
        return await self._ask("manifest", document, None, NAMESPACE)

    async def _ask(self, method: str, *words: Any) -> Explanation:
        client = self.world.client()
        try:
            found: Explanation = await getattr(
                WorkloadExplainer(client, Features(), self.excluded, 3), method
            )(*words)
            return found
        finally:
            await client.close()


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    async with World() as world:
        furnish(world)
        yield Desk(world)


async def test_a_workload_is_found_by_its_name_and_by_its_job(desk: Desk) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 5, required=RACK)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    by_job = await desk.named("train")
    by_name = await desk.named(desk.world.workload("train")["metadata"]["name"])
    assert by_job == by_name
    assert (by_job.state, by_job.job) == ("waiting", f"{NAMESPACE}/train")
    assert by_job.message == by_job.told


@pytest.mark.requirement("VAL-13")
async def test_a_workload_with_a_misspelled_level_keeps_its_help_after_submission(
    desk: Desk,
) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 2, required=RACK[:-1])
        await eventually(lambda: bool(desk.world.workloads()))
        await eventually(lambda: desk.world.workload("train")["spec"].get("active") is False)
        await eventually(lambda: desk.world.condition("train", "Evicted")[0] == "True")
    found = await desk.named("train")
    assert (found.state, found.reason) == ("inactive", "DeactivatedDueToInvalidTopology")
    assert [change.kind for change in found.changes] == ["levelName", "reactivate"]
    assert f'use "{RACK}" instead of "{RACK[:-1]}"' in found.changes[0].text


async def test_a_field_of_its_clusterqueue_without_effect_is_named(desk: Desk) -> None:
    policy = {"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}
    queue = objects.cluster_queue("cq", "tas", {"cpu": "64"}, **policy)
    desk.world.put(kinds.CLUSTER_QUEUES, queue)
    async with assigner(desk.world):
        desk.world.submit("waits", 5, required=RACK)
        desk.world.submit("runs", 2, required=RACK)
        await eventually(lambda: desk.world.condition("waits", "QuotaReserved")[0] == "False")
        await eventually(lambda: desk.world.runs("runs"))
    for job in ("waits", "runs"):
        (warning,) = (await desk.named(job)).warnings
        assert warning.startswith('ClusterQueue "cq": spec.concurrentAdmissionPolicy')


async def test_explaining_writes_nothing(desk: Desk) -> None:
    desk.world.submit("train", 5, required=RACK)
    await desk.named("train")
    await desk.manifest(objects.job("other", 4, required=RACK))
    writes = [request for request in desk.world.requests if request.method != "GET"]
    assert writes
    assert all(request.query["dryRun"] == "All" for request in writes)


async def test_an_admitted_workload_is_reported_with_its_pods(desk: Desk) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 4, required=RACK)
        await eventually(lambda: desk.world.runs("train"))
    workload = desk.world.workload("train")["metadata"]["name"]
    pod = {
        "metadata": {
            "name": "train-0",
            "namespace": NAMESPACE,
            "labels": {names.PODSET_LABEL: "main"},
            "annotations": {names.WORKLOAD_ANNOTATION: workload},
        },
        "spec": {"schedulingGates": [{"name": names.TOPOLOGY_GATE}]},
        "status": {"phase": "Pending"},
    }
    desk.world.put(kinds.PODS, pod)
    found = await desk.named("train")
    (run,) = found.podsets
    assert (found.state, run.granted, run.missing) == ("admitted", 4, 3)
    assert [held.names for held in run.held] == [("train-0",)]
    assert run.places is not None
    desk.world.complete("train")
    async with assigner(desk.world):
        await eventually(lambda: desk.world.condition("train", "Finished")[0] == "True")
    found = await desk.named("train")
    assert (found.state, found.reason) == ("finished", "Succeeded")


async def test_what_a_job_sets_without_effect_is_named(desk: Desk) -> None:
    async with assigner(desk.world):
        document = objects.job("train", 4, required=RACK)
        document["metadata"] |= {"namespace": NAMESPACE}
        document["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
        document["spec"]["suspend"] = True
        desk.world.put(kinds.JOBS, document)
        await eventually(lambda: desk.world.runs("train"))
    (warning,) = (await desk.named("train")).warnings
    assert warning.startswith(f"metadata.annotations[{names.ELASTIC_ANNOTATION}] has no effect")
    assert "RackgateElasticIndexedJobs" in warning


@pytest.mark.requirement("OPS-05")
async def test_what_the_cluster_queue_sets_without_effect_is_named(desk: Desk) -> None:
    policy = {"migration": {"mode": "TryPreferredFlavors"}}
    desk.world.change(
        kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(concurrentAdmissionPolicy=policy)
    )
    (before,) = (await desk.manifest(objects.job("train", 4, required=RACK))).warnings
    async with assigner(desk.world):
        desk.world.submit("train", 4, required=RACK)
        await eventually(lambda: desk.world.runs("train"))
    (after,) = (await desk.named("train")).warnings
    assert before == after
    assert after.startswith('ClusterQueue "cq": spec.concurrentAdmissionPolicy has no effect')
    _one_namespace(desk)
    assert after in (await desk.named("train")).warnings, "the Workload says it"


async def test_a_request_that_a_setting_excludes_is_named(desk: Desk) -> None:
    async with assigner(desk.world):
        document = objects.job("train", 2, required=RACK, cpu="1")
        document["metadata"]["namespace"] = NAMESPACE
        document["spec"]["suspend"] = True
        containers = document["spec"]["template"]["spec"]["containers"]
        containers[0]["resources"]["requests"]["example.com/credits"] = "1"
        desk.world.put(kinds.JOBS, document)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    assert (await desk.named("train")).warnings == ()
    desk.excluded = ("example.com/",)
    (warning,) = (await desk.named("train")).warnings
    assert warning.startswith('the request of "example.com/credits" counts neither for quota')


async def test_a_job_that_has_no_workload_yet_is_explained_all_the_same(desk: Desk) -> None:
    desk.world.submit("train", 5, required=RACK)
    found = await desk.named("train")
    assert (found.state, found.fits) == ("noWorkload", False)
    assert "No Workload exists yet" in found.warnings[0]
    desk.world.submit("alone", 1, queue=None)
    assert (await desk.named("alone")).state == "ungoverned"


@pytest.mark.requirement("TAS-20")
async def test_a_stored_job_that_gets_no_workload_is_reported_with_the_cause(desk: Desk) -> None:
    labels = {names.PRIORITY_CLASS_LABEL: "urgent"}
    desk.world.submit("classless", 1, labels=labels)
    found = await desk.named("classless")
    assert (found.state, found.fits, found.warnings) == ("noWorkload", False, ())
    assert 'WorkloadPriorityClass "urgent" does not exist' in found.summary
    desk.world.submit("none", 1, spec={"parallelism": 0, "completions": None})
    found = await desk.named("none")
    assert (found.state, found.fits, found.warnings) == ("noWorkload", False, ())
    assert "requests no pods" in found.summary


async def test_a_finished_job_whose_workload_is_gone_is_called_finished(desk: Desk) -> None:
    desk.world.submit("train", 1)
    desk.world.complete("train")
    found = await desk.named("train")
    assert (found.state, found.warnings) == ("finished", ())


@pytest.mark.requirement("OPS-11")
async def test_a_namespace_whose_jobs_are_not_managed_is_reported_by_its_labels(desk: Desk) -> None:
    managed = {"rackgate.dev/managed-jobs": "true"}
    desk.world.put(kinds.MUTATING_CONFIGS, objects.mutating_configuration(managed))
    desk.world.submit("train", 5, required=RACK)
    there = await desk.named("train")
    would = await desk.manifest(objects.job("other", 4, required=RACK))
    for found in (there, would):
        assert found.state == "ungoverned"
        assert f'the labels of namespace "{NAMESPACE}" do not match' in found.summary
        assert '"rackgate.dev/managed-jobs":"true"' in found.summary
    desk.world.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": managed}})
    assert (await desk.named("train")).state == "noWorkload"


async def test_a_manifest_that_the_api_server_rejects_is_invalid(desk: Desk) -> None:
    cause = {"field": "spec.template.spec.restartPolicy", "message": "Required value"}
    status = {"kind": "Status", "message": "invalid", "details": {"causes": [cause]}}
    body = json.dumps(status).encode()
    desk.world.faults.append(Fault.body(body, 422, method="POST", path="/jobs"))
    found = await desk.manifest(objects.job("train", 4, required=RACK))
    (error,) = found.errors
    assert (found.state, error.path) == ("invalid", "spec.template.spec.restartPolicy")
    refused = Fault.status(403, "Forbidden", "exceeded quota", method="POST", path="/jobs")
    desk.world.faults.append(refused)
    unmanaged = await desk.manifest(objects.job("train", 1, queue=None))
    assert unmanaged.state == "invalid"


async def test_a_namespace_that_is_no_name_is_never_part_of_a_path(desk: Desk) -> None:
    document = objects.job("train", 4, required=RACK)
    document["metadata"]["namespace"] = "team/../other"
    (error,) = (await desk.manifest(document)).errors
    assert (error.path, error.problem) == (
        "metadata.namespace",
        '"team/../other" is not a DNS label',
    )
    assert not [request for request in desk.world.requests if request.method == "POST"]


async def test_unknown_fields_of_a_manifest_are_warnings_and_the_rest_is_checked(
    desk: Desk,
) -> None:
    message = (
        'Job in version "v1" cannot be handled as a Job: strict decoding error: '
        'unknown field "spec.parallel"'
    )
    document = objects.job("train", 4, required=RACK)
    document["metadata"] |= {"resourceVersion": "7", "uid": "u"}
    desk.world.faults.append(Fault.status(400, "BadRequest", message, method="POST"))
    found = await desk.manifest(document)
    assert (found.state, found.fits) == ("notSubmitted", True)
    (warning,) = found.warnings
    assert warning.startswith("spec.parallel is an unknown field")
    sent = [request for request in desk.world.requests if request.method == "POST"]
    assert [request.query["fieldValidation"] for request in sent] == ["Strict", "Ignore"]
    metadata = json.loads(sent[-1].body)["metadata"]
    assert metadata["namespace"] == NAMESPACE
    assert not {"resourceVersion", "uid"} & metadata.keys()


async def test_what_is_not_there_is_reported_with_what_has_a_similar_name(desk: Desk) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 5, required=RACK)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    with pytest.raises(CommandError, match=f"did you mean {NAMESPACE}/train"):
        await desk.named("train", "default")
    with pytest.raises(CommandError, match=f"did you mean {NAMESPACE}/train"):
        await desk.named("trian")


async def test_a_name_with_a_kind_means_the_job_of_this_kind(desk: Desk) -> None:
    assert split_name("jobs.batch/train") == ("", "Job", "train")
    assert split_name("jobset/train") == ("", "JobSet", "train")
    assert split_name("team-a/train") == ("team-a", "", "train")
    assert split_name("train") == ("", "", "train")
    async with assigner(desk.world):
        desk.world.submit("train", 5, required=RACK)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    found = await desk.named("train", kind="Job")
    assert found.job == f"{NAMESPACE}/train"
    assert await desk.named(found.workload.partition("/")[2], kind="Workload") == found
    for kind in ("JobSet", "Workload"):
        with pytest.raises(CommandError, match='no Workload and no job "train"'):
            await desk.named("train", kind=kind)


async def test_a_missing_workload_is_reported_where_jobs_may_not_be_read(desk: Desk) -> None:
    desk.world.faults.append(Fault.status(403, "Forbidden", path="/jobs", method="GET"))
    with pytest.raises(CommandError, match=r'no Workload "train" .* Jobs without one cannot be'):
        await desk.named("train")


def _limit_range(cpu: str) -> dict[str, Any]:
    item = {"type": "Container", "defaultRequest": {"cpu": cpu}, "default": {"cpu": cpu}}
    return {
        "metadata": {"name": "limits", "namespace": NAMESPACE},
        "spec": {"limits": [item]},
    }


def _silent(name: str, count: int) -> dict[str, Any]:
    """A Job whose pods say nothing of what they need."""
    found = objects.job(name, count, required=RACK, pod={"runtimeClassName": "kata"})
    for container in found["spec"]["template"]["spec"]["containers"]:
        container["resources"] = {}
    return found


async def test_what_pods_will_request_is_shown_whoever_asks(desk: Desk) -> None:
    overhead = {"podFixed": {"cpu": "500m"}}
    desk.world.put(kinds.LIMIT_RANGES, _limit_range("2"))
    desk.world.put(kinds.RUNTIME_CLASSES, {"metadata": {"name": "kata"}, "overhead": overhead})

    def asked(found: Explanation) -> str:
        (line,) = found.quota
        return line.requested

    assert asked(await desk.manifest(_silent("new", 4))) == "10"
    async with assigner(desk.world):
        submitted = _silent("train", 40)
        submitted["metadata"]["namespace"] = NAMESPACE
        submitted["spec"]["suspend"] = True
        desk.world.put(kinds.JOBS, submitted)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    assert asked(await desk.named("train")) == "100"
    # One who may list LimitRanges of the own namespace alone is told the same.
    desk.world.faults.append(Fault.status(403, "Forbidden", path="/api/v1/limitranges"))
    found = await desk.named("train")
    assert (asked(found), found.warnings) == ("100", ())


async def test_what_placement_does_not_need_may_be_forbidden(desk: Desk) -> None:
    desk.world.faults += [
        Fault.status(403, "Forbidden", path="/priorityclasses"),
        Fault.status(404, "NotFound", path="/admissionchecks"),
        Fault.status(403, "Forbidden", path="/api/v1/namespaces", method="GET"),
    ]
    found = await desk.manifest(objects.job("train", 4, required=RACK))
    assert found.fits is True
    assert sorted(found.warnings) == [
        "admissionchecks cannot be listed and are ignored",
        "priorityclasses cannot be listed and are ignored",
    ]


async def test_what_placement_needs_must_be_served(desk: Desk) -> None:
    desk.world.faults.append(Fault.status(404, "NotFound", path="/nodes"))
    with pytest.raises(CommandError, match="check that Rackgate is installed"):
        await desk.named("train")


def _one_namespace(desk: Desk) -> None:
    """Forbid all lists of the whole cluster."""
    whole = (
        *("/api/v1/nodes", "/api/v1/pods", "/api/v1/limitranges"),
        *(
            kind.path()
            for kind in (
                *(kinds.TOPOLOGIES, kinds.FLAVORS, kinds.CLUSTER_QUEUES, kinds.LOCAL_QUEUES),
                *(kinds.WORKLOADS, kinds.MUTATING_CONFIGS, kinds.PRIORITY_CLASSES),
            )
        ),
    )
    desk.world.faults += [
        Fault.status(403, "Forbidden", path=path, method="GET", times=100) for path in whole
    ]


@pytest.mark.requirement("OPS-05")
async def test_missing_rights_are_named_at_once_with_the_role_that_has_them(desk: Desk) -> None:
    _one_namespace(desk)
    with pytest.raises(CommandError) as caught:
        await desk.manifest(objects.job("train", 4, required=RACK))
    text = str(caught.value)
    lacking = "topologies, resourceflavors, nodes, clusterqueues, localqueues, pods and workloads"
    assert lacking in text
    assert 'ClusterRole "rackgate-viewer"' in text


@pytest.mark.requirement("OPS-05")
async def test_a_user_of_one_namespace_sees_what_the_workload_says(desk: Desk) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 5, required=RACK)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
        desk.world.submit("runs", 4, required=RACK)
        await eventually(lambda: desk.world.runs("runs"))
    everything = await desk.named("train")
    desk.world.submit("new", 4, required=RACK)
    _one_namespace(desk)
    found = await desk.named("train")
    assert (found.state, found.job) == ("waiting", f"{NAMESPACE}/train")
    assert (found.message, found.fits) == (everything.told, None)
    warning, unserved = found.warnings
    assert 'ClusterRole "rackgate-viewer"' in warning
    assert unserved.startswith("the assigner did not explain it: ")
    (run,) = (await desk.named("runs")).podsets
    assert run.places is not None
    new = await desk.named("new")
    assert (new.state, new.warnings) == ("noWorkload", (warning,))
    assert new.summary.startswith("No Workload exists yet")


@pytest.mark.requirement("OPS-05", "VAL-13")
async def test_a_user_of_one_namespace_gets_the_answer_of_the_assigner(desk: Desk) -> None:
    async with assigner(desk.world):
        desk.world.submit("train", 5, required=RACK)
        await eventually(lambda: desk.world.condition("train", "QuotaReserved")[0] == "False")
    everything = await desk.named("train")
    assert everything.flavors
    _one_namespace(desk)
    name = desk.world.workload("train")["metadata"]["name"]
    path = f"/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads/{name}"
    desk.world.documents[f"{path}/explanation"] = msgspec.to_builtins(everything)
    found = await desk.named("train")
    assert (found.flavors, found.changes) == (everything.flavors, everything.changes)
    assert found.warnings == ("names of Workloads and pods of other namespaces are hidden",)


async def test_a_user_without_rights_is_told_what_to_ask_for(desk: Desk) -> None:
    _one_namespace(desk)
    for kind in (kinds.PODS, kinds.WORKLOADS):
        path = kind.path(NAMESPACE)
        desk.world.faults.append(Fault.status(403, "Forbidden", path=path, times=100))
    with pytest.raises(CommandError, match=r"pods and workloads .* \"rackgate-batch-user\""):
        await desk.named("train")


async def test_a_list_that_ran_out_of_time_is_read_again(desk: Desk) -> None:
    desk.world.faults.append(Fault.status(410, "Expired", path="/nodes"))
    found = await desk.manifest(objects.job("train", 4, required=RACK))
    assert found.fits is True


SPEC: dict[str, Any] = {"gangGroups": [{"name": "gg", "minCount": 4}]}


def run_of(world: World) -> str:
    workload = world.workload("train")
    conditions = {one["type"]: one for one in workload["status"]["conditions"]}
    return run_id(workload["metadata"]["uid"], conditions["Admitted"]["lastTransitionTime"])


def gang_pod(world: World, number: int, workload: str, **spec: Any) -> None:
    labels = {names.PODSET_LABEL: "main"}
    annotations = {
        names.WORKLOAD_ANNOTATION: workload,
        names.GANG_LINK_ANNOTATION: "mine",
        **({} if "schedulingGates" in spec else {names.GANG_RUN_ANNOTATION: run_of(world)}),
    }
    world.put(
        kinds.PODS,
        {
            "metadata": {
                "name": f"train-{number}",
                "namespace": NAMESPACE,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        },
    )


async def test_a_gang_that_has_not_started_is_explained_by_pod_gate_and_time(desk: Desk) -> None:
    world = desk.world
    async with assigner(world):
        world.submit("train", 4, required=RACK)
        await eventually(lambda: world.runs("train"))
    workload = world.workload("train")["metadata"]["name"]
    gates = [{"name": names.TOPOLOGY_GATE}, {"name": names.GANG_GATE}]
    for number in range(3):
        gang_pod(world, number, workload, schedulingGates=gates)
    (held,) = (await desk.named("train")).gangs
    assert held.state == "Held"
    assert 'Workload of gangs "mine" does not exist' in held.why

    meta = {"name": "mine", "namespace": NAMESPACE}
    world.put(kinds.GANG_WORKLOADS, {"metadata": meta, "spec": SPEC})
    found = await desk.named("train")
    (held,) = found.gangs
    assert (held.gang, held.state, held.members, held.min_count) == ("gg", "Held", 3, 4)
    assert held.why == "3 of 4 pods of gang gg exist"
    assert held.left_seconds is not None
    assert 0 < held.left_seconds <= 60
    assert held.pods[0].why == f"gated by {names.TOPOLOGY_GATE}, {names.GANG_GATE}" or (
        held.pods[0].why == f"gated by {names.GANG_GATE}, {names.TOPOLOGY_GATE}"
    )
    assert (
        found.summary == "It is admitted, and not started: gang gg: 3 of 4 pods of gang gg exist."
    )

    gang_pod(world, 3, workload, schedulingGates=[*gates, {"name": "example.com/data"}])
    (held,) = (await desk.named("train")).gangs
    assert "gates of other owners (example.com/data): train-3" in held.why
    for number in range(4):
        gang_pod(world, number, workload, **({"nodeName": "n"} if number else {}))
    text = plain(blocks(await desk.named("train")))
    assert "3 of 4 pods have a node" in text
    assert "not scheduled yet (train-0)" in text
    gang_pod(world, 0, workload, nodeName="n")
    (gang,) = (await desk.named("train")).gangs
    assert (gang.state, gang.why, gang.left_seconds, gang.pods) == ("Running", "", None, ())


async def test_a_workload_of_gangs_is_explained_by_its_name(desk: Desk) -> None:
    world = desk.world
    async with assigner(world):
        world.submit("train", 4, required=RACK)
        await eventually(lambda: world.runs("train"))
    conditions = [{"type": "Exclusive", "status": "True", "reason": "OneJob", "message": "m"}]
    world.put(
        kinds.GANG_WORKLOADS,
        {
            "metadata": {"name": "mine", "namespace": NAMESPACE},
            "spec": SPEC,
            "status": {"conditions": conditions},
        },
    )
    client = world.client()
    try:
        reader = GangReader(client, 3)
        gang = await reader.read(NAMESPACE, "mine")
        assert gang is not None
        assert "No pod names it now." in plain(status_blocks(gang, await reader.now(gang)))
        workload = world.workload("train")["metadata"]["name"]
        gang_pod(world, 0, workload, schedulingGates=[{"name": names.GANG_GATE}])
        text = plain(status_blocks(gang, await reader.now(gang)))
    finally:
        await client.close()
    assert "OneJob" in text
    assert "1 of 4 pods of gang gg exist" in text
    assert "the job is evicted, and tries again later" in text
