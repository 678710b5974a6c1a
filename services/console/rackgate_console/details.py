"""Answers about one Workload, or one manifest: computed when they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from rackgate.api import names, resources
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError
from rackgate.runtime.tasks import spawn, start
from rackgate.wire import core
from rackgate.wire.lists import page_items
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.explain.running import find_unhealthy_nodes, pods_of, with_pod_status
from rackgate_assigner.explain.workload import SHOWN
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_cli.explain.manifest import Document
from rackgate_console.console import Console
from rackgate_console.rows.pods import pod_rows
from rackgate_console.rows.timeline import ObservedEvent, timeline
from rackgate_console.viewers.access import Access
from rackgate_console.viewers.visible import visible
from rackgate_console.what_if import Question, answer, namespace_of

MAX_EVENTS: Final = 500

T = TypeVar("T")
# Measures a block that does not wait.
Timed: TypeAlias = Callable[[], AbstractContextManager[None]]

_decode_pod: Final = msgspec.json.Decoder(core.Pod).decode
_decode_event: Final = msgspec.json.Decoder(ObservedEvent).decode
_encode: Final = msgspec.json.Encoder().encode


def _with_pods(
    explanation: Explanation,
    workload: core.Meta,
    info: WorkloadInfo,
    pods: Iterable[core.Pod],
    nodes: Mapping[str, NodeInfo],
) -> Explanation:
    """The explanation of an admitted Workload with what its pods do now."""
    if not explanation.podsets:
        return explanation
    found = pods_of(workload, pods)
    return msgspec.structs.replace(
        explanation,
        podsets=tuple(
            msgspec.structs.replace(
                with_pod_status(one, found.get(one.podset, ()), SHOWN),
                broken_nodes=find_unhealthy_nodes(info, one.podset, nodes, info.unhealthy),
            )
            for one in explanation.podsets
        ),
    )


async def in_thread(compute: Callable[[], T]) -> T:
    """The result of another thread.

    A thread cannot be cancelled. If the viewer goes away, this waits until it ends, so that as many
    run at the same time as are counted.
    """
    work = start(asyncio.to_thread(compute), "thread")
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait([work])


class Details:
    """Reads what the watches do not have: gated pods, and Events."""

    def __init__(self, console: Console, client: Client) -> None:
        self._console, self._client = console, client
        # One at a time: each copy takes as much memory as the cache.
        self._copies = asyncio.Lock()

    async def workload(
        self, namespace: str, name: str, access: Access, timed: Timed
    ) -> bytes | None:
        """JSON about a Workload that the viewer may see; None if it does not exist.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
        """
        console, key = self._console, f"{namespace}/{name}"
        workload = console.workload(key)
        if workload is None:
            return None
        owner = workload.metadata.controller
        regarding = [name] if owner is None else [name, owner.name]
        async with asyncio.TaskGroup() as group:
            listing = spawn(group, self._pods(namespace), "list pods")
            reading = [
                spawn(group, self._events(namespace, one), "list events") for one in regarding
            ]
        events = [one for task in reading for one in task.result()]
        with timed():
            info, explanation = console.cache.workloads.get(key), console.explanation(key)
            if info is None or explanation is None:
                return None
            explanation = visible(explanation, namespace, access)
            explanation = _with_pods(
                explanation, workload.metadata, info, listing.result(), console.cache.nodes
            )
            rows, total = pod_rows(workload, info, listing.result(), console.cache.nodes)
            found = {
                "explanation": explanation,
                "timeline": timeline(workload, events),
                "pods": rows,
                "podsTotal": total,
            }
            return _encode(found)

    async def what_if(
        self, question: Question, document: Document, access: Access, timed: Timed
    ) -> bytes:
        """JSON of where a manifest would go, in a namespace that the viewer may see.

        Raises:
            RejectedError: the question is wrong (422).
        """
        console, namespace = self._console, namespace_of(document, question)
        explain = partial(answer, question, document, fair_sharing=console.fair_sharing)
        if question.empty or question.more_nodes:
            async with self._copies:
                with timed():
                    filled = console.copied(empty=question.empty)
                    explanation, notes = await in_thread(lambda: explain(filled()))
        else:
            with timed():
                explanation, notes = explain(console.reading())
        explanation = visible(explanation, namespace, access)
        return _encode({"explanation": explanation, "notes": notes})

    async def _pods(self, namespace: str) -> list[core.Pod]:
        params = {"labelSelector": names.PODSET_LABEL}
        found: list[core.Pod] = []
        async for page in self._client.list_pages(resources.PODS.path(namespace), params):
            found += map(_decode_pod, page_items(page))
        return found

    async def _events(self, namespace: str, name: str) -> list[ObservedEvent]:
        params: dict[str, Any] = {
            "fieldSelector": f"regarding.name={name}",
            "limit": str(MAX_EVENTS),
        }
        try:
            page = await self._client.get(resources.EVENTS.path(namespace), params)
        except ForbiddenError:
            return []  # the conditions still say what is true now
        return [_decode_event(item) for item in page_items(page)]
