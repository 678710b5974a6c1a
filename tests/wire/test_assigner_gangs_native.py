"""Jobs with gangs and native PodGroups: templates name them, and the status says so."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate.gang.native.model import RUN_LABEL
from rackgate.gang.native.v1alpha2 import POD_GROUPS
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, eventually
from tests.wire.gangs_world import GangWorld, gang_assigner, gang_world

GROUP_PATH = "/apis/scheduling.k8s.io"
NATIVE = {GANG_SCHEDULING: True, NATIVE_POD_GROUPS: True}


def serve(world: GangWorld) -> None:
    world.documents[GROUP_PATH] = {"versions": [{"version": "v1alpha2"}]}
    world.documents[f"{GROUP_PATH}/v1alpha2"] = {"resources": [{"name": "podgroups"}]}


def template_keys(world: GangWorld, name: str) -> Object:
    found: Object = world.job(name)["spec"]["template"]["metadata"].get("annotations", {})
    return found


def native_gang(world: GangWorld, name: str) -> tuple[str, str] | None:
    gang = world.gang_of(name) or {}
    for one in gang.get("status", {}).get("conditions", []):
        if one["type"] == "NativeGang":
            return one["status"], one["reason"]
    return None


def put_pod_group(world: GangWorld, job: str) -> None:
    """As the ungater makes it."""
    own, gang = world.workload(job), world.gang_of(job)
    assert gang is not None
    owner = {"apiVersion": kinds.WORKLOADS.api_version, "kind": "Workload", "controller": True}
    owner |= {key: own["metadata"][key] for key in ("name", "uid")}
    meta = {
        "name": f"{gang['metadata']['name']}-gg",
        "namespace": NAMESPACE,
        "labels": {RUN_LABEL: world.run(job)},
        "ownerReferences": [owner],
    }
    condition = {"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled"}
    spec = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    status = {"conditions": [condition]}
    world.put(POD_GROUPS, {"metadata": meta, "spec": spec, "status": status})


@pytest.mark.requirement("GNG-12")
async def test_the_template_names_the_pod_group_while_the_job_runs() -> None:
    async with gang_world() as world, gang_assigner(world, featureGates=NATIVE):
        serve(world)
        world.submit_gang("train", queue="plain")
        original = world.job("train")["spec"]["template"]
        await eventually(world.started("train"))
        gang = world.gang_of("train")
        assert gang is not None
        name = f"{gang['metadata']['name']}-gg"
        assert template_keys(world, "train")[names.NATIVE_GROUP_ANNOTATION] == name
        own = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, own, lambda found: found["spec"].update(active=False))
        await eventually(lambda: world.job("train")["spec"]["template"] == original)


async def test_the_status_says_that_kube_scheduler_binds_the_gang() -> None:
    async with gang_world() as world:
        serve(world)
        async with gang_assigner(world, featureGates=NATIVE):
            world.submit_gang("train", queue="plain")
            await eventually(world.started("train"))
            put_pod_group(world, "train")
            world.add_pods("train", *range(4))
            await eventually(lambda: native_gang(world, "train") == ("True", "InUse"))
            gang = world.gang_of("train")
            assert gang is not None
            world.remove(POD_GROUPS, f"{gang['metadata']['name']}-gg", NAMESPACE)
            await eventually(lambda: native_gang(world, "train") == ("False", "Absent"))


async def test_without_the_api_jobs_start_as_ever_and_the_status_says_so() -> None:
    async with gang_world() as world, gang_assigner(world, featureGates=NATIVE):
        world.submit_gang("train", queue="plain")
        await eventually(world.started("train"))
        await eventually(lambda: native_gang(world, "train") == ("False", "Absent"))
        asked = {one.path for one in world.requests if "scheduling.k8s.io" in one.path}
        assert not [path for path in asked if "podgroups" in path]


async def test_with_the_gate_off_no_template_names_a_pod_group() -> None:
    async with gang_world() as world, gang_assigner(world):
        serve(world)
        world.submit_gang("train", queue="plain")
        await eventually(world.started("train"))
        assert names.NATIVE_GROUP_ANNOTATION not in template_keys(world, "train")
        assert not [one for one in world.requests if one.path == GROUP_PATH]
        assert native_gang(world, "train") is None
