"""Requests are those of the pods that the API server creates: LimitRanges, RuntimeClasses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from rackgate.resources.pod_defaults import DefaultedPod, apply_pod_defaults, summarize_limit_ranges
from rackgate.resources.pod_requests import pod_requests
from rackgate.wire import core
from tests.support.cluster import Cluster, until
from tests.support.created_pods import (
    SIZES,
    answered_sum,
    limit_range,
    runtime_class,
    template,
)
from tests.support.objects import Object

pytestmark = pytest.mark.integration

NAMESPACES = 16
TEMPLATES = 40
AT_ONCE = 8
BEHIND_S = 20.0


@dataclass
class _World:
    """A namespace with LimitRanges of its own, as the API server has them."""

    namespace: str
    ranges: list[core.LimitRange]


class _Drawing:
    """LimitRanges and RuntimeClasses of one test, and pods that are created in vain."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.classes: dict[str, core.RuntimeClass] = {}
        self.slots = asyncio.Semaphore(AT_ONCE)

    async def add_classes(self) -> list[str]:
        """Four classes; names that templates may use, one of which does not exist."""
        pool = self.cluster.pool
        for obj in (
            runtime_class(f"{pool}-large", {"cpu": "250m", "memory": "120Mi"}),
            runtime_class(f"{pool}-small", {"memory": "100M"}, nodeSelector={"zone": "a"}),
            runtime_class(f"{pool}-plain"),
            runtime_class(f"{pool}-tainted", tolerations=[{"key": "kata", "operator": "Exists"}]),
        ):
            answer = await self.cluster.create(kinds.RUNTIME_CLASSES, obj)
            found = msgspec.convert(answer, core.RuntimeClass)
            self.classes[found.metadata.name] = found
        return [*self.classes, f"{pool}-missing"]

    async def world(self, name: str, parts: list[list[str]]) -> _World:
        """A namespace with one LimitRange for each part of the resources."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.cluster.client.create(kinds.NAMESPACES.path(), json.dumps(namespace).encode())
        world = _World(name, [])
        for index, resources in enumerate(parts):
            while len(world.ranges) == index:
                obj = limit_range(self.rng, f"limits-{index}", resources)
                path = kinds.LIMIT_RANGES.path(name)
                try:
                    raw = await self.cluster.client.create(path, json.dumps(obj).encode())
                except UnprocessableError:
                    continue  # such a LimitRange there cannot be
                world.ranges.append(msgspec.json.decode(raw, type=core.LimitRange))
        return world

    def ours(self, world: _World, spec: Object) -> DefaultedPod:
        """What we make of a template."""
        found = msgspec.convert(spec, core.PodSpec)
        limits = summarize_limit_ranges(world.ranges) if world.ranges else None
        return apply_pod_defaults(found, limits, self.classes.get(found.runtime_class_name or ""))

    async def theirs(self, world: _World, spec: Object) -> Object | str:
        """The pod's spec as the API server would create it, or why it refuses the pod."""
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "drawn"}, "spec": spec}
        path = kinds.PODS.path(world.namespace)
        async with self.slots:
            try:
                raw = await self.cluster.client.create(
                    path, json.dumps(pod).encode(), {"dryRun": "All"}
                )
            except (ForbiddenError, UnprocessableError) as error:
                return error.message
        return dict(json.loads(raw)["spec"])

    async def differs(self, world: _World, spec: Object, *, at_least: bool = False) -> str:
        """What we and the API server disagree on, "" when nothing.

        Its own watch of LimitRanges may be behind: it is asked again for a while.
        """
        end = asyncio.get_running_loop().time() + BEHIND_S
        while told := await self._compare(world, spec, at_least=at_least):
            if asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.5)
        return told

    async def _compare(self, world: _World, spec: Object, *, at_least: bool) -> str:
        ours, theirs = self.ours(world, spec), await self.theirs(world, spec)
        said = "; ".join(problem.text for problem in ours.problems)
        if isinstance(theirs, str):
            return "" if said or at_least else f"refused: {theirs}"
        if said:
            return "" if at_least else f"we refuse: {said}"
        expected = answered_sum(theirs)
        if pod_requests(msgspec.convert(theirs, core.PodSpec)) != expected:
            return f"the sum of what it answered is {expected}"
        if at_least:
            short = {k: v for k, v in expected.items() if ours.requests.get(k, 0) < v}
            return f"we count less than {short}" if short else ""
        if ours.requests != expected:
            return f"{ours.requests} are counted, {expected} requested"
        if dict(ours.node_selector) != theirs.get("nodeSelector", {}):
            return f"node selector {theirs.get('nodeSelector')}"
        tolerated = msgspec.convert(theirs.get("tolerations", []), list[core.Toleration])
        return "" if set(ours.tolerations) <= set(tolerated) else f"tolerations {tolerated}"


def _parts(rng: Random) -> list[list[str]]:
    """The resources that each LimitRange of a namespace speaks of: none speaks of another's."""
    resources = list(SIZES)
    rng.shuffle(resources)
    cut = rng.choice((1, 2))
    return rng.choice(([resources], [resources], [resources[:cut], resources[cut:]]))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
async def test_requests_and_rejections_are_those_of_the_api_server(
    cluster: Cluster, seed: int
) -> None:
    rng = Random(seed)
    drawing = _Drawing(cluster, rng)
    classes = await drawing.add_classes()
    kept: list[list[list[str]]] = [[], *(_parts(rng) for _ in range(NAMESPACES))]
    worlds = [await drawing.world(f"{cluster.pool}-{i}", parts) for i, parts in enumerate(kept)]
    cases = [(world, template(rng, classes)) for world in worlds for _ in range(TEMPLATES)]
    answers = await asyncio.gather(*(drawing.differs(*case) for case in cases))
    wrong = [
        f"{answer}: {json.dumps(spec)} in {msgspec.json.encode(world.ranges).decode()}"
        for (world, spec), answer in zip(cases, answers, strict=True)
        if answer
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:3])
    # Neither kind of answer is rare.
    refused = sum(bool(drawing.ours(*case).problems) for case in cases)
    assert len(cases) * 0.15 < refused < len(cases) * 0.85


async def test_of_defaults_that_differ_the_largest_is_counted(cluster: Cluster) -> None:
    rng = Random(3)
    drawing = _Drawing(cluster, rng)
    worlds = [
        await drawing.world(f"{cluster.pool}-{index}", [list(SIZES), list(SIZES)])
        for index in range(6)
    ]
    cases = [(world, template(rng, [])) for world in worlds for _ in range(TEMPLATES)]
    answers = await asyncio.gather(*(drawing.differs(*case, at_least=True) for case in cases))
    assert [answer for answer in answers if answer] == []


def _asking(name: str, count: int, cpu: str, **pod: object) -> Object:
    """A Job whose pods have two containers; the second says nothing of what it needs."""
    containers = [
        {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}},
        {"name": "helper", "image": "i"},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "template": {
                "metadata": {
                    "annotations": {
                        "kueue.x-k8s.io/podset-required-topology": "kubernetes.io/hostname"
                    }
                },
                "spec": {"restartPolicy": "Never", "containers": containers, **pod},
            },
        },
    }


async def _usage(cluster: Cluster) -> str:
    queue = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue")
    (flavor,) = queue["status"]["flavorsUsage"]
    return str(flavor["resources"][0]["total"])


async def test_a_job_waits_for_what_its_pods_will_request_and_is_charged_it(
    cluster: Cluster,
) -> None:
    await cluster.add_node("block-1", "rack-1", "n1", cpu="8")
    await cluster.add_queue(quota={"cpu": "100"})
    sandbox = f"{cluster.pool}-sandbox"
    defaults = {"type": "Container", "defaultRequest": {"cpu": "500m"}}
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {"limits": [defaults]},
    }
    await cluster.create(kinds.LIMIT_RANGES, limits)

    # Its RuntimeClass is missing: no pod could be created.
    await cluster.create(kinds.JOBS, _asking("large", 4, "1500m", runtimeClassName=sandbox))
    words = f'RuntimeClass "{sandbox}" not found'
    await cluster.condition("large", "QuotaReserved", "False", "Misconfigured", words)

    # 4 pods of 1.5 fit a host of 8; those of 1.5 + 0.5 + 0.25 do not.
    await cluster.create(kinds.RUNTIME_CLASSES, runtime_class(sandbox, {"cpu": "250m"}))
    await cluster.condition(
        "large", "QuotaReserved", "False", "TopologyPlacementFailed", "only 3 out of 4 pod(s)"
    )

    await cluster.create(kinds.JOBS, _asking("small", 3, "1500m", runtimeClassName=sandbox))
    pods = await cluster.bound("small", 3)
    assert [answered_sum(pod["spec"])["cpu"] for pod in pods] == [2250] * 3

    async def charged() -> bool:
        return await _usage(cluster) == "6750m"

    await until("the queue is charged what the pods request", charged)

    # What is admitted stays as it was granted when the LimitRange changes; what waits is told.
    outside = {"spec": {"limits": [{**defaults, "max": {"cpu": "1"}}]}}
    await cluster.merge(kinds.LIMIT_RANGES, "limits", outside)
    words = 'maximum cpu usage per Container is 1, but request is 1500m (LimitRange "limits")'
    await cluster.condition("large", "QuotaReserved", "False", "Misconfigured", words)
    assert await _usage(cluster) == "6750m"
