"""One workflow for `rackgate osmo apply`, and what may happen to its writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rackgate.api.resources import KAI_POD_GROUPS, KAI_TOPOLOGIES, PODS
from rackgate.kube.client import Client
from rackgate_cli.osmo.apply.applier import Applier, Outcome
from rackgate_osmo import build_podgroups, read_pool, read_workflow
from rackgate_osmo.render.pods import build_pods
from tests.support.apiserver import FakeApiServer, Object, Request
from tests.support.apiserver_faults import Fault, Handler

SPACE = "team-a"
TOPOLOGY = "osmo-pool-my-pool-topology"
LABELS = {"zone": "example.com/zone", "rack": "example.com/rack"}
# Of the story below: the Topology deleted and created, two groups, four pods.
WRITES = 8


def pool(*keys: str) -> Object:
    return {
        "name": "my-pool",
        "topology_keys": [{"key": key, "label": LABELS[key]} for key in keys],
    }


def workflow(second: str = "b") -> Object:
    def tasks(group: str) -> list[Object]:
        return [
            {"name": f"{group}{at}", "resource": name, "image": "trainer:1"}
            for at, name in enumerate(("one", "two"))
        ]

    resources = {
        "one": {"topology": [{"key": "rack", "group": "a"}]},
        "two": {"topology": [{"key": "rack", "group": second}]},
    }
    groups = [{"name": name, "tasks": tasks(name)} for name in ("train", "eval")]
    return {"workflow": {"name": "w", "groups": groups}, "resources": resources}


class Wanted:
    """The objects of a workflow on a pool."""

    def __init__(
        self, keys: tuple[str, ...] = ("zone", "rack"), second: str = "b", image: str = "trainer:1"
    ) -> None:
        document = workflow(second)
        for task in document["workflow"]["groups"][0]["tasks"][:1]:
            task["image"] = image
        self.pool = read_pool(pool(*keys))
        read = read_workflow(document, self.pool)
        built = build_podgroups(self.pool, read, namespace=SPACE)
        assert built.topology is not None
        self.topology, self.groups = built.topology, built.pod_groups
        self.pods = build_pods(self.pool, read, built, document, SPACE)

    async def apply(
        self, client: Client, outcome: Outcome | None = None, **options: bool
    ) -> Outcome:
        outcome = Outcome() if outcome is None else outcome
        applier = Applier(client, SPACE, outcome, **options)
        await applier.apply(self.topology, self.groups, self.pods)
        return outcome

    def is_in(self, server: FakeApiServer) -> bool:
        """Whether the server has all objects as they should be."""
        wanted = [(KAI_TOPOLOGIES, "", self.topology)]
        wanted += [(KAI_POD_GROUPS, SPACE, group) for group in self.groups]
        wanted += [(PODS, SPACE, pod) for pod in self.pods]
        for kind, space, item in wanted:
            found = server.get(kind, item["metadata"]["name"], space)
            if found is None or found["spec"] != item["spec"]:
                return False
        return True


def results(outcome: Outcome) -> dict[str, str]:
    return {f"{done.kind} {done.name}": done.result for done in outcome.results}


def levels(server: FakeApiServer) -> list[str] | None:
    found = server.get(KAI_TOPOLOGIES, TOPOLOGY)
    return None if found is None else [level["nodeLabel"] for level in found["spec"]["levels"]]


def writes(server: FakeApiServer) -> list[str]:
    return [f"{seen.method} {seen.path}" for seen in server.requests if seen.method != "GET"]


class Before(Fault):
    """Somebody acts right before a request of this method and path is answered."""

    def __init__(self, act: Callable[[], object], **match: Any) -> None:
        async def answer(_: web.Request, handle: Handler) -> web.StreamResponse:
            act()
            return await handle()

        super().__init__(answer, **match)


class Death(Fault):
    """The n-th write, done or not, is the last thing of a process."""

    def __init__(self, number: int, *, applied: bool) -> None:
        self.left, self.struck = number, asyncio.Event()

        async def answer(_: web.Request, handle: Handler) -> web.StreamResponse:
            if applied:
                await handle()
            self.struck.set()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        super().__init__(answer)

    def matches(self, request: Request) -> bool:
        if request.method == "GET" or self.left < 0:
            return False
        self.left -= 1
        return self.left < 0


async def dies(run: Awaitable[object], struck: asyncio.Event) -> None:
    running = asyncio.ensure_future(run)
    await asyncio.wait_for(struck.wait(), 60)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
