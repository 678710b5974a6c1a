"""Owners, children and marked pods, as somebody writes them who may do what `edit` allows."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import PatchType
from rackgate.kube.errors import ConflictError, ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import (
    jobset,
    marks,
    raycluster,
    rayjob,
    replicated_job,
    worker_group,
)
from tests.support.identities import JOB_CONTROLLER, acting_as, as_operator, as_tenant
from tests.support.objects import RACK, Object, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

NOWHERE = "nowhere"
JOBSET_OWNER: Object = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "invented",
    "uid": "00000000-0000-0000-0000-000000000001",
    "controller": True,
}
RAY_OWNER: Object = {**JOBSET_OWNER, "apiVersion": "ray.io/v1", "kind": "RayCluster"}
RAYJOB_OWNER: Object = {**RAY_OWNER, "kind": "RayJob"}
OWNERS = [JOBSET_OWNER, RAY_OWNER, RAYJOB_OWNER]
SUSPENDED: Object = {"suspend": True}
OTHER = {"labels": {"example.com/note": "mine"}, "annotations": {"example.com/note": "mine"}}


async def refused(writing: Any, *words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert all(word in caught.value.message for word in words), caught.value.message


def owned_by(owner: Object, wish: Object) -> Object:
    found = copy.deepcopy(wish)
    found["metadata"]["ownerReferences"] = [owner]
    return found


async def real(cluster: Cluster, owner: Object) -> Object:
    """A reference to an unmanaged controller of that kind that exists, and does nothing."""
    groups = [worker_group("w", 1)]
    parts = [replicated_job("w", 1)]
    known: dict[str, tuple[Resource, Object]] = {
        "JobSet": (
            kinds.JOBSETS,
            jobset("real", parts, queue=None, suspend=True, managedBy="a.b/nobody"),
        ),
        "RayCluster": (kinds.RAY_CLUSTERS, raycluster("real", groups, queue=None, suspend=True)),
        "RayJob": (kinds.RAY_JOBS, rayjob("real", groups, queue=None, suspend=True)),
    }
    made = await cluster.create(*known[owner["kind"]])
    return {**owner, "name": "real", "uid": made["metadata"]["uid"]}


def by_owner(owner: Object) -> Object:
    return {"metadata": {"ownerReferences": [owner]}}


@pytest.mark.requirement("HOOK-10")
@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: str(owner["kind"]))
async def test_a_user_gives_no_managed_job_an_invented_controller(
    cluster: Cluster, playground: Playground, owner: Object
) -> None:
    words = ("metadata.ownerReferences: ", "set only by its operator", "remove the owner")
    wishes: list[tuple[Resource, Object]] = [
        (kinds.JOBS, job("forged", 4, queue=NOWHERE)),
        (kinds.JOBSETS, jobset("forged", [replicated_job("w", 4)], queue=NOWHERE)),
        (kinds.RAY_CLUSTERS, raycluster("forged", [worker_group("w", 1)], queue=NOWHERE)),
    ]
    existing = await real(cluster, owner)
    async with as_tenant(playground, cluster) as tenant:
        for kind, wish in wishes:
            await refused(tenant.create(kind, owned_by(owner, wish)), *words)
            await tenant.create(kind, wish)  # suspended by the webhook
            await refused(tenant.merge(kind, "forged", by_owner(owner)), *words)
            # Neither one that is nobody's to queue: JobSet would start it with its own.
            plain = copy.deepcopy(wish)
            plain["metadata"] = {"name": "plain"}
            plain["spec"]["suspend"] = True
            child = owned_by(existing, plain)
            await refused(tenant.create(kind, child), *words)
            async with as_operator(playground, cluster, "jobset") as operator:
                await operator.create(kind, child)
            label: Object = {"metadata": {"labels": {names.QUEUE_LABEL: NOWHERE}}}
            await refused(tenant.merge(kind, "plain", label), "is not queued itself")


async def test_a_user_puts_no_job_of_theirs_among_those_of_a_pending_jobset(
    cluster: Cluster, playground: Playground
) -> None:
    """JobSet takes it for its own by name, labels and owner, and starts all of them together."""
    part = replicated_job("w", 1)
    made = await cluster.create(kinds.JOBSETS, jobset("train", [part], queue=NOWHERE))
    child = await child_of(cluster, "train")
    wish = job("train-w-0", 400, queue=None, spec=SUSPENDED)
    wish["metadata"]["labels"] = child["metadata"]["labels"]
    wish = owned_by({**JOBSET_OWNER, "name": "train", "uid": made["metadata"]["uid"]}, wish)
    async with as_tenant(playground, cluster) as tenant:
        await tenant.delete(kinds.JOBS, "train-w-0")
        await refused(tenant.create(kinds.JOBS, wish), "set only by its operator")


@pytest.mark.usefixtures("webhook_down")
async def test_the_same_holds_without_the_webhook(cluster: Cluster, playground: Playground) -> None:
    async with as_tenant(playground, cluster) as tenant:
        wish = job("forged", 4, queue=NOWHERE, spec=SUSPENDED)
        words = ("metadata.ownerReferences: ", "set only by its operator")
        await refused(tenant.create(kinds.JOBS, owned_by(JOBSET_OWNER, wish)), *words)
        await tenant.create(kinds.JOBS, wish)
        await refused(tenant.merge(kinds.JOBS, "forged", by_owner(JOBSET_OWNER)), *words)


def marked(part: str, field: str, value: Any, **more: Any) -> Object:
    wish = job("marked", 1, spec=SUSPENDED, **more)
    wish["spec"]["template"][part][field] = value
    return wish


MARKS: list[tuple[str, str, Any]] = [
    ("metadata", "labels", {names.TAS_LABEL: "true"}),
    ("metadata", "labels", {names.PODSET_LABEL: "x"}),
    ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
    ("metadata", "annotations", {names.ELASTIC_ANNOTATION: "true"}),
    ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}]),
]


@pytest.mark.requirement("HOOK-09")
async def test_reserved_marks_come_with_no_invented_controller(
    cluster: Cluster, playground: Playground
) -> None:
    other = {**JOBSET_OWNER, "apiVersion": "example.com/v1", "kind": "Any"}
    async with as_tenant(playground, cluster) as tenant:
        for part, field, value in MARKS:
            wish = owned_by(other, marked(part, field, value, queue=None))
            await refused(tenant.create(kinds.JOBS, wish), f"spec.template.{part}.{field}")


async def child_of(cluster: Cluster, name: str) -> Object:
    selector = f"{names.JOBSET_NAME_LABEL}={name}"

    async def made() -> list[Object]:
        return await cluster.list_all(kinds.JOBS, labelSelector=selector)

    (found,) = await until(f"JobSet {name} has its Job", made)
    return dict(found)


RAISES: list[tuple[Object, str]] = [
    ({"spec": {"parallelism": 40}}, "spec.parallelism: "),
    ({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}, "spec.template: "),
    ({"spec": {"template": {"metadata": {"labels": {names.TAS_LABEL: "true"}}}}}, "spec.template"),
    ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences: "),
    (by_owner(RAY_OWNER), "metadata.ownerReferences: "),
]


@pytest.mark.parametrize("queue", ["queue", None], ids=["managed", "unmanaged"])
async def test_a_running_child_is_lowered_and_suspended_but_not_raised(
    cluster: Cluster, playground: Playground, queue: str | None
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False)
    # Work without a number of completions: all that could be raised is parallelism.
    unending = {"completions": None, "completionMode": "NonIndexed"}
    part = replicated_job("w", 2, spec=unending)
    if queue is not None:
        part["template"]["metadata"] = {"labels": {names.QUEUE_LABEL: queue}}
    await cluster.create(kinds.JOBSETS, jobset("train", [part], queue=queue))
    name = (await child_of(cluster, "train"))["metadata"]["name"]
    await cluster.bound(name, 2)
    async with as_tenant(playground, cluster) as tenant:
        for change, words in RAISES:
            await refused(tenant.merge(kinds.JOBS, name, change), words)
        await tenant.merge(kinds.JOBS, name, {"metadata": OTHER})
        await tenant.merge(kinds.JOBS, name, {"spec": {"parallelism": 1}})
        await refused(tenant.merge(kinds.JOBS, name, {"spec": {"parallelism": 2}}), "parallelism")
        await tenant.merge(kinds.JOBS, name, {"spec": {"suspend": True}})
        if queue is None:
            await tenant.delete(kinds.JOBS, name)


@pytest.mark.requirement("HOOK-10")
async def test_a_pending_child_is_not_started_whatever_is_stripped_first(
    cluster: Cluster, playground: Playground
) -> None:
    part = replicated_job("w", 4, annotations=marks(required=RACK))
    await cluster.create(kinds.JOBSETS, jobset("train", [part], queue=NOWHERE))
    name = (await child_of(cluster, "train"))["metadata"]["name"]
    stripped: Object = {
        "template": {
            "metadata": {"labels": {names.PODSET_LABEL: None}, "annotations": None},
            "spec": {"schedulingGates": None},
        }
    }
    async with as_tenant(playground, cluster) as tenant:
        for _ in range(10):
            await refused(
                tenant.merge(kinds.JOBS, name, {"spec": {"suspend": False}}), "spec.suspend"
            )
            await refused(tenant.merge(kinds.JOBS, name, {"spec": stripped}), "spec.template: ")
            both = {"spec": {**stripped, "suspend": False}}
            await refused(tenant.merge(kinds.JOBS, name, both), "spec.suspend")
            free: Object = {"metadata": {"ownerReferences": None}, "spec": {"suspend": False}}
            await refused(tenant.merge(kinds.JOBS, name, free), "metadata.ownerReferences: ")
    assert await cluster.list_all(kinds.PODS) == []


@pytest.mark.parametrize(
    ("kind", "wish", "more"),
    [
        (
            kinds.JOBSETS,
            jobset("part", [replicated_job("w", 1)], queue=None, suspend=True),
            {"replicatedJobs": [replicated_job("w", 1, annotations={"a": "b"})]},
        ),
        (
            kinds.RAY_CLUSTERS,
            raycluster("part", [worker_group("w", 1)], queue=None, suspend=True),
            {"workerGroupSpecs": [worker_group("w", 9)]},
        ),
    ],
    ids=["JobSet", "RayCluster"],
)
async def test_a_jobset_or_raycluster_that_is_a_part_is_suspended_and_deleted_only(
    cluster: Cluster, playground: Playground, kind: Resource, wish: Object, more: Object
) -> None:
    wish = owned_by(await real(cluster, JOBSET_OWNER), wish)
    async with as_operator(playground, cluster, "jobset") as operator:
        await operator.create(kind, wish)
    async with as_tenant(playground, cluster) as tenant:
        await refused(tenant.merge(kind, "part", {"spec": {"suspend": False}}), "spec.suspend: ")
        await refused(tenant.merge(kind, "part", {"spec": more}), "written by the operator")
        await tenant.merge(kind, "part", {"metadata": OTHER})
        await tenant.delete(kind, "part")


@pytest.mark.requirement("HOOK-10")
async def test_a_user_does_not_hide_the_submitter_of_a_rayjob(
    cluster: Cluster, playground: Playground
) -> None:
    owner = await real(cluster, RAYJOB_OWNER)
    wish = owned_by(owner, job("part", 1, queue=None, spec=SUSPENDED))
    wish["metadata"]["labels"] = {
        names.RAY_ORIGIN_KIND_LABEL: names.RAY_JOB_KIND,
        names.RAY_ORIGIN_NAME_LABEL: "real",
    }
    async with as_operator(playground, cluster, "kuberay") as operator:
        await operator.create(kinds.JOBS, wish)
    async with as_tenant(playground, cluster) as tenant:
        for label in (names.RAY_ORIGIN_KIND_LABEL, names.RAY_ORIGIN_NAME_LABEL):
            for value in (None, "other"):
                change: Object = {"metadata": {"labels": {label: value}}}
                words = f"metadata.labels[{label}]: "
                await refused(tenant.merge(kinds.JOBS, "part", change), words)
        await tenant.merge(kinds.JOBS, "part", {"metadata": OTHER})
    async with as_operator(playground, cluster, "kuberay") as operator:
        change = {"metadata": {"labels": {names.RAY_ORIGIN_NAME_LABEL: "other"}}}
        await operator.merge(kinds.JOBS, "part", change)


def a_pod(name: str, owner: Object, **spec: Any) -> Object:
    container = {"name": "main", "image": "registry.example/any:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"},
            "annotations": {names.WORKLOAD_ANNOTATION: "w"},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [container], **spec},
    }


@pytest.mark.requirement("HOOK-09")
async def test_marked_pods_are_made_by_controllers_whatever_owner_they_claim(
    cluster: Cluster, playground: Playground
) -> None:
    # Its controller would let pods go that do not have its labels.
    nobodys = {**SUSPENDED, "managedBy": "example.com/nobody"}
    real = await cluster.create(kinds.JOBS, job("real", 1, queue=None, spec=nobodys))
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "real",
        "uid": real["metadata"]["uid"],
        "controller": True,
    }
    gates = [{"name": names.TOPOLOGY_GATE}]
    cleaning = {"ray.io/node-type": "redis-cleanup"}
    async with as_tenant(playground, cluster) as tenant:
        for claimed in (owner, {**owner, "uid": JOBSET_OWNER["uid"]}, JOBSET_OWNER):
            words = (
                "metadata.annotations[kueue.x-k8s.io/workload]: ",
                "only the job controller and operators",
            )
            for spec in ({"schedulingGates": gates}, {}, {"nodeName": "any"}):
                await refused(tenant.create(kinds.PODS, a_pod("forged", claimed, **spec)), *words)
        await tenant.create(kinds.PODS, plain_pod("plain", owner))
        clean = a_pod("forged", owner)
        clean["metadata"]["labels"] |= cleaning
        await refused(tenant.create(kinds.PODS, clean), "only the job controller and operators")
    async with acting_as(playground, cluster, JOB_CONTROLLER) as controller:
        await controller.create(kinds.PODS, a_pod("gated", owner, schedulingGates=gates))
    async with acting_as(playground, cluster, (cluster.namespace, "tenant")) as tenant:
        # A pod that its Job lets go would run on beside the next one.
        for change in (
            {"metadata": {"ownerReferences": None}},
            {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "x"}}},
        ):
            await refused(tenant.merge(kinds.PODS, "gated", change), "delete the pod instead")
        await tenant.merge(kinds.PODS, "gated", {"metadata": OTHER})
        await tenant.delete(kinds.PODS, "gated")


def plain_pod(name: str, owner: Object) -> Object:
    found = a_pod(name, owner)
    found["metadata"].pop("annotations")
    found["metadata"]["labels"] = {}
    return found


OPERATORS = "rackgate.dev/operators"


async def test_an_administrator_adds_an_operator_by_a_patch_of_the_policies(
    cluster: Cluster, playground: Playground
) -> None:
    async with as_tenant(playground, cluster) as tenant:
        user = f"system:serviceaccount:{cluster.namespace}:tenant"
        found = await cluster.list_all(kinds.ADMISSION_POLICIES, labelSelector=f"{OPERATORS}=true")
        assert len(found) == 3
        wish = job("by-operator", 1, queue=NOWHERE, spec=SUSPENDED)
        owner = await real(cluster, JOBSET_OWNER)
        wish = owned_by(owner, wish)
        pod = a_pod("by-operator", owner, schedulingGates=[{"name": names.TOPOLOGY_GATE}])
        await refused(tenant.create(kinds.JOBS, wish), "ownerReferences")
        before = {}
        try:
            for policy in found:
                name, first = policy["metadata"]["name"], policy["spec"]["variables"][0]
                assert first["name"] == "operators"
                before[name] = first["expression"]
                await _set_operators(cluster, name, f"['{user}'] + {first['expression']}")

            async def taken() -> bool:
                for kind, asked in ((kinds.JOBS, wish), (kinds.PODS, pod)):
                    try:
                        await tenant.client.create(kind.path(cluster.namespace), body_of(asked))
                    except ForbiddenError:
                        return False
                    except ConflictError:
                        continue  # there since the look before
                return True

            await until("the policies know the operator", taken)
        finally:
            for name, expression in before.items():
                await _set_operators(cluster, name, expression)


def body_of(asked: Object) -> bytes:
    return json.dumps(asked).encode()


async def _set_operators(cluster: Cluster, name: str, expression: str) -> None:
    change = [{"op": "replace", "path": "/spec/variables/0/expression", "value": expression}]
    path = kinds.ADMISSION_POLICIES.path(None, name)
    await cluster.client.patch(path, json.dumps(change).encode(), PatchType.JSON)
