"""Pods: made, changed, bound and deleted by hand."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.attacker_client import RejectedWrite
from tests.security.catalog import attack
from tests.security.ledger import UNMANAGED
from tests.security.world import HOURS, REPLICA_SETS, World
from tests.support.cluster import until
from tests.support.objects import Object

JOB_LABELS = (
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
)


@attack(
    cases={
        "node-name": {"labels": {}, "placed": True},
        "redis-cleanup": {"labels": {"ray.io/node-type": "redis-cleanup"}, "placed": False},
        "unknown": {"labels": {}, "placed": False},
        "tas": {"labels": {names.TAS_LABEL: "true"}, "placed": True},
    },
    topology=None,
    bare=True,
    ci=("node-name", "redis-cleanup", "unknown"),
)
async def marks_under_an_invented_controller(
    world: World, labels: dict[str, str], placed: bool
) -> None:
    """Eight pods of 4 CPU with our marks, of a Job that there is not."""
    for number in range(8):
        pod = world.pod(
            f"forged-{number}",
            labels={names.PODSET_LABEL: "main", **labels},
            annotations={names.WORKLOAD_ANNOTATION: "nobody"},
            ownerReferences=[world.owner("Job", "batch/v1")],
        )
        if placed:
            pod["spec"]["nodeName"] = world.node
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(5)


@attack(topology=None, bare=True)
async def marks_under_ones_own_running_job(world: World) -> None:
    """The controller exists; the pods name its Workload, and a node."""
    job = await world.submit("train", 4)
    assert job is not None
    (real, *_) = await world.runs("train", 4)
    for number in range(4):
        pod = world.pod(
            f"extra-{number}",
            labels={**real["metadata"]["labels"], names.PODSET_LABEL: "main"},
            annotations={
                names.WORKLOAD_ANNOTATION: (await world.workload_of("train"))["metadata"]["name"]
            },
            ownerReferences=[world.owner("Job", "batch/v1", "train", job["metadata"]["uid"])],
        )
        pod["spec"] |= {"nodeName": world.node, "restartPolicy": "Never"}
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(5)


@attack(topology=None)
async def marks_under_a_hand_made_replica_set(world: World) -> None:
    """A real controller, that no queue knows, with our marks in its template."""
    labels = {"app": "forged", names.PODSET_LABEL: "main", names.TAS_LABEL: "true"}
    template: Object = {
        "metadata": {"labels": labels, "annotations": {names.WORKLOAD_ANNOTATION: "nobody"}},
        "spec": {**world.pod("unused")["spec"], "nodeName": world.node},
    }
    made = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "forged"},
        "spec": {
            "replicas": 8,
            "selector": {"matchLabels": {"app": "forged"}},
            "template": template,
        },
    }
    await world.attacker.create(REPLICA_SETS, made)
    refused = await until("pods are made, or refused", lambda: _answer_to_controller(world))
    if isinstance(refused, str):
        world.attacker.rejections.append(RejectedWrite("pods of a ReplicaSet", refused))
    await world.hold(6)


async def _answer_to_controller(world: World) -> str | list[Object]:
    """The pods of the ReplicaSet, or why its controller makes none."""
    found = await world.attacker.find(REPLICA_SETS, "forged")
    for entry in (found or {}).get("status", {}).get("conditions", []):
        if entry["type"] == "ReplicaFailure":
            return str(entry["message"])
    return await world.attacker.all(kinds.PODS)


@attack()
async def bare_pods_that_claim_a_running_job(world: World) -> None:
    """Without marks they are pods that anybody may make; the Job's account must bear them."""
    job = await world.submit("train", 3)
    assert job is not None
    await world.runs("train", 3)
    for number in range(4):
        pod = world.pod(
            f"bare-{number}",
            labels={UNMANAGED: "true"},
            ownerReferences=[world.owner("Job", "batch/v1", "train", job["metadata"]["uid"])],
        )
        await world.attacker.create(kinds.PODS, pod)
    await world.hold(6)
    for number in range(4):
        await world.attacker.delete(kinds.PODS, f"bare-{number}", grace_s=0)


@attack(
    cases={
        "labels": {"change": {"metadata": {"labels": dict.fromkeys(JOB_LABELS)}}},
        "owner": {"change": {"metadata": {"ownerReferences": None}}},
        "both": {
            "change": {"metadata": {"labels": dict.fromkeys(JOB_LABELS), "ownerReferences": None}}
        },
        "finalizers": {"change": {"metadata": {"finalizers": None}}},
    },
    topology=None,
)
async def stripped_so_that_the_job_makes_more(world: World, change: Object) -> None:
    """The Job controller no longer knows the pod, and makes another."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    async for _ in world.rounds(3, 2.0):
        for pod in await world.living("batch.kubernetes.io/job-name=train"):
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.hold(4)


@attack()
async def controller_reference_turned_off(world: World) -> None:
    """Its Job owns the pod still, and controls it no more."""
    await world.submit("train", 4)
    await world.runs("train", 4)
    async for _ in world.rounds(3, 2.0):
        for pod in await world.living("batch.kubernetes.io/job-name=train"):
            owners = [{**one, "controller": False} for one in pod["metadata"]["ownerReferences"]]
            change = {"metadata": {"ownerReferences": owners, "labels": dict.fromkeys(JOB_LABELS)}}
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.hold(4)


@attack(topology=None)
async def selector_of_ones_own_stripped(world: World) -> None:
    """A Job that finds its pods by a label of its user's choice, and then finds none."""
    own = {"example.com/mine": "yes"}
    job = world.job("train", 4, indexed=False, completions=100)
    job["spec"] |= {"manualSelector": True, "selector": {"matchLabels": own}}
    job["spec"]["template"]["metadata"].setdefault("labels", {}).update(own)
    if await world.attacker.create(kinds.JOBS, job) is None:
        return
    await world.bound("example.com/mine=yes", 4)
    change = {"metadata": {"labels": {"example.com/mine": None}}}
    async for _ in world.rounds(3, 2.0):
        for pod in await world.living("example.com/mine=yes"):
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.hold(4)


@attack(topology=None)
async def stripped_and_its_job_deleted(world: World) -> None:
    """Nothing collects the pods of a Job that is gone when they do not name it."""
    for number in range(2):
        name = f"train-{number}"
        await world.submit(name, 4)
        await world.hold(4)
        change = {"metadata": {"labels": dict.fromkeys(JOB_LABELS), "ownerReferences": None}}
        for pod in await world.living(f"batch.kubernetes.io/job-name={name}"):
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
        await world.attacker.delete(kinds.JOBS, name)
        await world.hold(2)
    await world.hold(4)


@attack(needs=("jobset",))
async def stripped_so_that_the_jobsets_job_makes_more(world: World) -> None:
    """The same below a JobSet."""
    await world.attacker.create(kinds.JOBSETS, world.jobset("train", {"workers": (4, "4")}))
    await world.bound(f"{names.JOBSET_NAME_LABEL}=train", 4)
    change = {"metadata": {"labels": dict.fromkeys(JOB_LABELS), "ownerReferences": None}}
    async for _ in world.rounds(3, 2.0):
        for pod in await world.living("batch.kubernetes.io/job-name"):
            await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.hold(4)


@attack(
    cases={
        "default": {"spec": {}},
        "failed": {"spec": {"podReplacementPolicy": "Failed"}},
        "terminating": {"spec": {"podReplacementPolicy": "TerminatingOrFailed"}},
        "any-index": {"spec": {"completionMode": "NonIndexed", "backoffLimit": 100}},
    },
    topology=None,
)
async def deleted_with_hours_of_grace(world: World, spec: Object) -> None:
    """A pod that terminates lives on while its replacement starts."""
    await world.submit("train", 4, terminate=HOURS, spec=spec)
    await world.runs("train", 4)
    # One alone: the Job controller waits ten seconds after one failure, and for minutes after four.
    (pod, *_) = await world.living("batch.kubernetes.io/job-name=train")
    await world.attacker.delete(kinds.PODS, pod["metadata"]["name"], grace_s=14400)
    await world.hold(30)


@attack()
async def evicted_with_hours_of_grace(world: World) -> None:
    """The same by the eviction API."""
    await world.submit("train", 4, terminate=HOURS)
    await world.runs("train", 4)
    (pod, *_) = await world.living("batch.kubernetes.io/job-name=train")
    name = pod["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": world.attacker.namespace},
        "deleteOptions": {"gracePeriodSeconds": 14400},
    }
    await world.attacker.post(kinds.PODS, name, "eviction", eviction)
    await world.hold(30)


@attack()
async def held_by_a_finalizer_of_the_user(world: World) -> None:
    """Pods that stay when their Job is gone."""
    await world.submit("first", 4, terminate=HOURS)
    for pod in await world.runs("first", 4):
        held = [*pod["metadata"].get("finalizers", []), "example.com/held"]
        change = {"metadata": {"finalizers": held}}
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
    await world.attacker.delete(kinds.JOBS, "first")
    await world.submit("second", 4)
    await world.hold(8)


@attack(topology=None, words=("pod updates may not change", "Forbidden: pod updates"))
async def resized_in_place(world: World) -> None:
    """Four pods of 1 CPU become four of 8."""
    await world.submit("train", 4, cpu="1")
    for pod in await world.runs("train", 4):
        requests = {"resources": {"requests": {"cpu": "8"}}}
        change = {"spec": {"containers": [{"name": "main", **requests}]}}
        name = pod["metadata"]["name"]
        operations = [
            {"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "8"}
        ]
        await world.attacker.merge(kinds.PODS, name, change, "resize")
        await world.attacker.json_patch(kinds.PODS, name, operations)
        path = world.attacker.path(kinds.PODS, name, "resize")
        await world.attacker.patch_at(path, f"resize {name}", operations)
    await world.hold(5)


@attack(words=("",))
async def ephemeral_containers_added(world: World) -> None:
    """A container that comes later, with requests if the API allowed them."""
    await world.submit("train", 4)
    (pod, *_) = await world.runs("train", 4)
    extra = {
        "name": "late",
        "image": "registry.example/late:1",
        "resources": {"requests": {"cpu": "16"}},
    }
    change = {"spec": {"ephemeralContainers": [extra]}}
    await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change, "ephemeralcontainers")
    await world.hold(3)


@attack()
async def status_of_pods_written(world: World) -> None:
    """Pods that say they ended, and run on."""
    await world.submit("train", 4)
    for pod in await world.runs("train", 4):
        change = {"status": {"phase": "Succeeded"}}
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change, "status")
    await world.submit("next", 4)
    await world.hold(5)


@attack(
    topology=True,
)
async def surplus_pods_ungated_and_bound_by_hand(world: World) -> None:
    """A raised Job's surplus pods wait behind the gate: it is taken, and pods are bound."""
    await world.submit("train", 3, indexed=False, completions=50)
    await world.runs("train", 3)
    await world.attacker.merge(kinds.JOBS, "train", {"spec": {"parallelism": 12}})

    async def gated() -> list[Object]:
        pods = await world.attacker.all(kinds.PODS)
        return [pod for pod in pods if pod["spec"].get("schedulingGates")]

    for pod in await until("surplus pods are gated", gated):
        name = pod["metadata"]["name"]
        change: Object = {"spec": {"schedulingGates": []}}
        await world.attacker.merge(kinds.PODS, name, change)
        change = {"metadata": {"labels": {names.TAS_LABEL: None, names.PODSET_LABEL: None}}}
        await world.attacker.merge(kinds.PODS, name, change)
        change = {"metadata": {"annotations": {names.WORKLOAD_ANNOTATION: None}}}
        await world.attacker.merge(kinds.PODS, name, change)
        await bind(world, name)
    await world.hold(5)


async def bind(world: World, name: str) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": world.node},
    }
    await world.attacker.post(kinds.PODS, name, "binding", binding)


@attack(topology=True)
async def pods_bound_elsewhere_by_hand(world: World) -> None:
    """Between release and scheduling there is a moment; a binding by hand would use it."""
    await world.submit("train", 4)
    async for _ in world.rounds(40, 0.05):
        for pod in await world.attacker.all(kinds.PODS):
            if not pod["spec"].get("nodeName"):
                await bind(world, pod["metadata"]["name"])
    await world.runs("train", 4)


@attack(
    cases={
        "job": {"kind": "job"},
        "jobset": {"kind": "jobset", "needs": ("jobset",)},
        "raycluster": {"kind": "raycluster", "needs": ("kuberay",)},
    },
    topology=None,
    ci=("job-topology",),
    words=("field is immutable",),
)
async def template_names_a_node(world: World, kind: str) -> None:
    """A pod with a node's name passes the scheduler, and would pass the gate."""
    made: Object
    if kind == "job":
        made = world.job("named", 4, pod={"nodeName": world.node})
        await world.attacker.create(kinds.JOBS, made)
        suspended = world.job("named-later", 4, spec={"suspend": True})
        await world.attacker.create(kinds.JOBS, suspended)
        change = {"spec": {"template": {"spec": {"nodeName": world.node}}}}
        await world.attacker.merge(kinds.JOBS, "named-later", change)
    elif kind == "jobset":
        made = world.jobset("named", {"workers": (4, "4")})
        template = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["spec"]["nodeName"] = world.node
        await world.attacker.create(kinds.JOBSETS, made)
    else:
        made = world.raycluster("named", 3)
        made["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeName"] = world.node
        await world.attacker.create(kinds.RAY_CLUSTERS, made)
    world.note(f"{kind} with nodeName")
    await world.hold(8)
    await _no_quota_without_pods(world)


async def _no_quota_without_pods(world: World) -> None:
    """What is held has pods: else a template keeps other tenants out without running."""

    async def true() -> bool:
        return not await world.usage() or world.ledger.now > 0

    await until("no quota is held without pods", true, 60.0)


@attack(
    cases={
        "workload": {"where": "annotations", "value": {names.WORKLOAD_ANNOTATION: "another"}},
        "podset": {"where": "labels", "value": {names.PODSET_LABEL: "another"}},
        "tas": {"where": "labels", "value": {names.TAS_LABEL: None}},
    },
    topology=True,
)
async def marks_of_running_pods_rewritten(world: World, where: str, value: Any) -> None:
    """A pod that belongs to another Workload would be counted there, or nowhere."""
    await world.submit("train", 4)
    for pod in await world.runs("train", 4):
        change = {"metadata": {where: value}}
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change)
        await world.attacker.merge(kinds.PODS, pod["metadata"]["name"], change, "status")
    await world.submit("next", 4)
    await world.hold(5)
