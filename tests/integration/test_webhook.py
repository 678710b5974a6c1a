"""Admission on a real API server: webhook up, webhook down, and who may write what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, KubeError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import (
    RACK,
    Object,
    cluster_queue,
    flavor,
    job,
    topology_object,
)
from tests.support.playground import Playground
from tests.support.standstills import EVERY_S, Standstills, standstills

pytestmark = pytest.mark.integration

# A queue that does not exist: these Jobs are governed and never admitted.
NOWHERE = "nowhere"


def suspended(name: str, **more: Any) -> Object:
    return job(name, 2, queue=NOWHERE, required=RACK, spec={"suspend": True}, **more)


async def refused(writing: Any, *words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.requirement("HOOK-04", "HOOK-07", "HOOK-10")
async def test_a_managed_job_is_stored_suspended_and_marked(cluster: Cluster) -> None:
    await cluster.create(kinds.JOBS, job("train", 2, queue=NOWHERE, required=RACK))
    stored = await cluster.get(kinds.JOBS, "train")
    template = stored["spec"]["template"]
    assert stored["spec"]["suspend"] is True
    assert template["metadata"]["labels"][names.PODSET_LABEL] == "main"
    assert template["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]


@pytest.mark.requirement("HOOK-12")
async def test_a_dry_run_answers_alike_and_stores_nothing(cluster: Cluster) -> None:
    wish = json.dumps(job("train", 2, queue=NOWHERE)).encode()
    path = kinds.JOBS.path(cluster.namespace)
    answer = json.loads(await cluster.client.create(path, wish, {"dryRun": "All"}))
    assert answer["spec"]["suspend"] is True
    assert await cluster.find(kinds.JOBS, "train") is None


@pytest.mark.requirement("VAL-12")
async def test_two_topology_requests_are_rejected_with_both_values(cluster: Cluster) -> None:
    asked = job("train", 2, queue=NOWHERE, required=RACK, preferred="rack")
    await refused(cluster.create(kinds.JOBS, asked), "more than one topology request", RACK)


@pytest.mark.requirement("HOOK-05", "HOOK-15")
@pytest.mark.field_note("W1")
@pytest.mark.usefixtures("webhook_down")
async def test_without_webhook_others_notice_nothing_and_no_managed_job_runs(
    cluster: Cluster,
) -> None:
    await cluster.create(kinds.JOBS, job("plain", 1, queue=None))
    asked = job("train", 2, queue=NOWHERE, required=RACK)
    await refused(cluster.create(kinds.JOBS, asked), "spec.suspend", NOWHERE)
    await cluster.create(kinds.JOBS, suspended("train"))
    change = {"spec": {"suspend": False}}
    await refused(cluster.merge(kinds.JOBS, "train", change), "unsuspended by Rackgate")
    found = await cluster.get(kinds.JOBS, "plain")
    assert found["spec"]["suspend"] is False


@pytest.mark.requirement("HOOK-10")
async def test_only_the_assigner_unsuspends_a_managed_job(cluster: Cluster) -> None:
    await cluster.create(kinds.JOBS, suspended("train"))
    change: Object = {"spec": {"suspend": False}}
    await refused(cluster.merge(kinds.JOBS, "train", change), "unsuspended by Rackgate")
    # Nor by leaving the queue in the same write.
    change["metadata"] = {"labels": {names.QUEUE_LABEL: None}}
    await refused(cluster.merge(kinds.JOBS, "train", change), "unsuspended by Rackgate")


@pytest.mark.requirement("TAS-09")
async def test_a_job_that_leaves_its_queue_is_the_users_again(cluster: Cluster) -> None:
    user = await cluster.create(kinds.JOBS, suspended("plain") | {"metadata": {"name": "plain"}})
    await cluster.create(kinds.JOBS, suspended("train"))
    change = {"metadata": {"labels": {names.QUEUE_LABEL: None}}}
    left = await cluster.merge(kinds.JOBS, "train", change)
    assert left["spec"]["template"]["spec"] == user["spec"]["template"]["spec"]
    assert names.PODSET_LABEL not in left["spec"]["template"]["metadata"]["labels"]


@pytest.mark.requirement("HOOK-09")
@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("metadata", "labels", {names.TAS_LABEL: "true"}),
        ("metadata", "labels", {names.PODSET_LABEL: "other"}),
        ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
        ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}]),
    ],
)
@pytest.mark.parametrize("queue", [NOWHERE, None])
async def test_reserved_keys_in_a_users_template_are_rejected(
    cluster: Cluster, part: str, field: str, value: Any, queue: str | None
) -> None:
    asked = job("forged", 1, queue=queue, spec={"suspend": True})
    asked["spec"]["template"][part][field] = value
    await refused(cluster.create(kinds.JOBS, asked), "reserved")


@pytest.mark.requirement("HOOK-09")
async def test_users_cannot_change_the_marks_of_a_managed_template(cluster: Cluster) -> None:
    await cluster.create(kinds.JOBS, suspended("train"))

    def drop_gate(stored: Object) -> None:
        del stored["spec"]["template"]["spec"]["schedulingGates"]

    def claim(stored: Object) -> None:
        stored["spec"]["template"]["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] = "w"

    edits: list[Callable[[Object], None]] = [drop_gate, claim]
    for edit in edits:
        await refused(cluster.replace(kinds.JOBS, "train", edit), "only Rackgate changes them")


def pod(name: str, owner: Object | None, gate: str | None = names.TOPOLOGY_GATE) -> Object:
    controller = None
    if owner is not None:
        controller = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"},
            "annotations": {names.WORKLOAD_ANNOTATION: "w"},
            "ownerReferences": [controller] if controller else [],
        },
        "spec": {
            "containers": [{"name": "c", "image": "registry.example/train:1"}],
            "schedulingGates": [{"name": gate}] if gate else [],
        },
    }


@pytest.fixture
async def owner(cluster: Cluster) -> Object:
    """A Job that makes no pods of its own."""
    return await cluster.create(kinds.JOBS, job("owner", 1, queue=None, spec={"suspend": True}))


@pytest.mark.requirement("HOOK-09")
async def test_a_pod_that_no_one_controls_cannot_carry_our_marks(cluster: Cluster) -> None:
    await refused(cluster.create(kinds.PODS, pod("forged", None)), "only Rackgate sets them")


@pytest.mark.requirement("HOOK-04")
async def test_a_started_pod_without_the_gate_gets_it_at_birth(
    job_controller: Cluster, owner: Object
) -> None:
    stored = await job_controller.create(kinds.PODS, pod("late", owner, gate=None))
    assert stored["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]


@pytest.mark.requirement("HOOK-15", "TAS-27")
@pytest.mark.usefixtures("webhook_down")
async def test_without_webhook_a_started_pod_without_the_gate_is_rejected(
    job_controller: Cluster, owner: Object
) -> None:
    await refused(job_controller.create(kinds.PODS, pod("late", owner, gate=None)), "has no gate")
    await job_controller.create(kinds.PODS, pod("gated", owner))


def unlabelled(name: str, owner: Object) -> Object:
    """A gated pod without the label that the ungater follows."""
    found = pod(name, owner)
    del found["metadata"]["labels"][names.TAS_LABEL]
    return found


@pytest.mark.requirement("HOOK-04")
@pytest.mark.field_note("U8")
async def test_a_gated_pod_without_the_label_gets_it_at_birth(
    job_controller: Cluster, owner: Object
) -> None:
    stored = await job_controller.create(kinds.PODS, unlabelled("late", owner))
    assert stored["metadata"]["labels"][names.TAS_LABEL] == names.TAS_LABEL_VALUE


@pytest.mark.requirement("HOOK-15")
@pytest.mark.field_note("U8")
@pytest.mark.usefixtures("webhook_down")
async def test_without_webhook_a_gated_pod_that_no_one_would_release_is_rejected(
    job_controller: Cluster, owner: Object
) -> None:
    await refused(job_controller.create(kinds.PODS, unlabelled("late", owner)), "has no label")


@pytest.mark.requirement("HOOK-09")
async def test_gate_and_marks_of_a_pod_are_not_the_users_to_change(
    cluster: Cluster, job_controller: Cluster, owner: Object
) -> None:
    await job_controller.create(kinds.PODS, pod("gated", owner))

    def drop_gate(stored: Object) -> None:
        stored["spec"]["schedulingGates"] = []

    await refused(cluster.replace(kinds.PODS, "gated", drop_gate), "removed by Rackgate")
    changes: list[Object] = [
        {"labels": {names.PODSET_LABEL: "other"}},
        {"labels": {names.TAS_LABEL: None}},
        {"annotations": {names.WORKLOAD_ANNOTATION: None}},
    ]
    for change in changes:
        for sub in (None, "status"):
            writing = cluster.merge(kinds.PODS, "gated", {"metadata": change}, sub)
            await refused(writing, "are immutable")
    await cluster.merge(kinds.PODS, "gated", {"metadata": {"labels": {"mine": "x"}}})


@pytest.mark.field_note("W9")
async def test_marked_pods_and_their_jobs_can_always_be_deleted(
    cluster: Cluster, job_controller: Cluster, owner: Object
) -> None:
    await job_controller.create(kinds.PODS, pod("gated", owner))
    await cluster.create(kinds.JOBS, suspended("train"))
    await cluster.delete(kinds.JOBS, "train")
    await cluster.delete(kinds.PODS, "gated", grace_s=0)

    async def gone() -> bool:
        jobs = await cluster.find(kinds.JOBS, "train")
        return jobs is None and await cluster.find(kinds.PODS, "gated") is None

    await until("Job and pod are gone", gone)


@pytest.mark.requirement("VAL-01", "VAL-11")
async def test_queue_objects_are_held_to_their_rules(cluster: Cluster) -> None:
    name = f"{cluster.pool}-bad"
    bare = flavor(name, cluster.pool, name)
    bare["spec"]["nodeLabels"] = {}
    twice = cluster_queue(name, name, {"cpu": "1"})
    again = cluster_queue(name, name, {"memory": "1Gi"})["spec"]["resourceGroups"]
    twice["spec"]["resourceGroups"] += again
    await refused(cluster.create(kinds.FLAVORS, bare), "at least one node label")
    await refused(cluster.create(kinds.TOPOLOGIES, topology_object(name, (RACK, RACK))), "unique")
    await refused(cluster.create(kinds.CLUSTER_QUEUES, twice), "is in two groups")


@pytest.mark.requirement("HOOK-03")
async def test_a_workload_made_by_hand_gets_the_request_of_its_template(cluster: Cluster) -> None:
    template = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}}, "spec": {}}
    workload = {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": "mine"},
        "spec": {"queueName": NOWHERE, "podSets": [{"count": 4, "template": template}]},
    }
    stored = await cluster.create(kinds.WORKLOADS, workload)
    assert stored["spec"]["podSets"][0]["topologyRequest"] == {"required": RACK}


@pytest.mark.requirement("HOOK-02", "HOOK-13")
async def test_every_registration_carries_the_bundle_of_the_secret(cluster: Cluster) -> None:
    path = kinds.SECRETS.path(names.SYSTEM_NAMESPACE, "rackgate-webhook-tls")
    secret = json.loads(await cluster.client.get(path))
    for kind, name in (
        (kinds.MUTATING_CONFIGS, "rackgate-mutating.rackgate-system"),
        (kinds.VALIDATING_CONFIGS, "rackgate-validating.rackgate-system"),
    ):
        for webhook in (await cluster.get(kind, name))["webhooks"]:
            assert webhook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
            groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
            # Objects that nobody but us defines may wait for us; nothing else of a cluster may.
            alone = groups == {kinds.OSMO_POOLS.group}
            assert webhook["failurePolicy"] == ("Fail" if alone else "Ignore")
            assert webhook["sideEffects"] == "None"
            assert webhook["timeoutSeconds"] <= 5


@pytest.mark.requirement("HOOK-14")
async def test_scaling_the_webhook_down_fails_no_request(
    cluster: Cluster, playground: Playground
) -> None:
    playground.run("scale", "webhook", "2")
    wish = json.dumps(job("train", 2, queue=NOWHERE)).encode()
    path = kinds.JOBS.path(cluster.namespace)
    seen: list[bool] = []
    failures: list[str] = []

    async def one(still: Standstills) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            answer = json.loads(await cluster.client.create(path, wish, {"dryRun": "All"}))
        except KubeError as error:
            await asyncio.sleep(EVERY_S)
            failures.extend([] if still.excuse(begun) else [str(error)])
        else:
            seen.append(answer["spec"]["suspend"])

    scaling = asyncio.to_thread(playground.run, "scale", "webhook", "1")
    async with standstills() as still, asyncio.TaskGroup() as group:
        done = group.create_task(scaling)
        while not done.done() or (len(seen) <= 10 and not failures):
            await one(still)
    assert failures == []
    assert all(seen)
    assert len(seen) > 10
