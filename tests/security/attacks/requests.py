"""What one pod asks for, where it is not written beside its container."""

from __future__ import annotations

import json
from typing import Any

from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import LIMIT_RANGES, RUNTIME_CLASSES, World
from tests.support.objects import Object


@attack(topology=None, ci=("",))
async def overhead_of_a_runtime_class(world: World) -> None:
    """The administrator's RuntimeClass adds 3 CPU to each pod."""
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": f"{world.pool}-heavy"},
        "handler": "heavy",
        "overhead": {"podFixed": {"cpu": "3"}},
    }
    await world.admin.create(RUNTIME_CLASSES, runtime)
    pod = {"runtimeClassName": f"{world.pool}-heavy"}
    await world.submit("heavy", 4, cpu="1", pod=pod)
    await world.runs("heavy", 4)
    await world.submit("heavier", 12, cpu="1", pod=pod)
    await world.hold(6)
    await world.attacker.delete(kinds.JOBS, "heavy")
    await world.hold(6)


@attack(
    cases={
        "requests": {"limits": {"defaultRequest": {"cpu": "4"}}},
        "limits": {"limits": {"default": {"cpu": "4"}}},
    },
    ci=("requests",),
)
async def defaults_of_a_limit_range(world: World, limits: Object) -> None:
    """Containers that ask for nothing get 4 CPU each."""
    made = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", **limits}]},
    }
    await world.admin.create(LIMIT_RANGES, made)
    await world.hold(2)
    for name, count in (("silent", 8), ("fits", 4)):
        job = world.job(name, count)
        del job["spec"]["template"]["spec"]["containers"][0]["resources"]
        await world.attacker.create(kinds.JOBS, job)
    await world.hold(8)


def limits_alone(template: Object) -> None:
    template["containers"][0]["resources"] = {"limits": {"cpu": "4"}}


def of_the_pod(template: Object) -> None:
    del template["containers"][0]["resources"]
    template["resources"] = {"requests": {"cpu": "4"}}


def init_container(template: Object) -> None:
    first = dict(template["containers"][0], name="first")
    template["containers"][0] = {**first, "name": "main", "resources": {}}
    template["initContainers"] = [first]


def sidecar(template: Object) -> None:
    init_container(template)
    template["initContainers"][0]["restartPolicy"] = "Always"


@attack(
    cases={
        "limits": {"edit": limits_alone},
        "pod-level": {"edit": of_the_pod},
        "init-container": {"edit": init_container},
        "sidecar": {"edit": sidecar},
    },
)
async def four_cpu_by_other_means(world: World, edit: Any) -> None:
    """Eight pods of 4 CPU, and four of them, which fit."""
    for name, count in (("more", 8), ("fits", 4)):
        job = world.job(name, count)
        edit(job["spec"]["template"]["spec"])
        await world.attacker.create(kinds.JOBS, job)
    await world.runs("fits", 4)
    await world.hold(4)


@attack()
async def resource_that_no_quota_covers(world: World) -> None:
    """What the queue does not know of is not for free."""
    job = world.job("other", 4)
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["requests"]["ephemeral-storage"] = "1Gi"
    await world.attacker.create(kinds.JOBS, job)
    world.note("a resource that the queue does not cover")
    await world.hold(4)


@attack()
async def rights_to_shape_requests(world: World) -> None:
    """LimitRange, ResourceQuota and RuntimeClass are the administrator's."""
    spec: Object = {"limits": [{"type": "Container", "default": {"cpu": "8"}}]}
    made = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "mine"}, "spec": spec}
    await world.attacker.create(LIMIT_RANGES, made)
    made = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": f"{world.pool}-mine"},
        "handler": "mine",
    }
    await world.attacker.create(RUNTIME_CLASSES, made)
    assert len(world.attacker.rejections) == 2, json.dumps(
        [one.words for one in world.attacker.rejections]
    )
