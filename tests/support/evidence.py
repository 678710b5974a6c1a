"""What a failed test leaves in its report: its namespace in short, and what the services logged.

Nothing here may hide why the test failed: what cannot be read is told in a line, never raised.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import NotFoundError
from tests.support import in_short
from tests.support.cluster import Cluster
from tests.support.elsewhere import Elsewhere
from tests.support.objects import Object
from tests.support.playground import Playground

LIMIT_S: Final = 20.0
EVENTS: Final = 25  # the last so many
LOG_LINES: Final = 60  # of each service, the last so many
LOG_WIDTH: Final = 400  # characters of a line
SHOWN: Final[tuple[tuple[Resource, Callable[[Object], str]], ...]] = (
    (kinds.WORKLOADS, in_short.workload),
    (kinds.JOBS, in_short.job),
    (kinds.JOBSETS, in_short.job),
    (kinds.RAY_CLUSTERS, in_short.job),
    (kinds.PODS, in_short.pod),
    (kinds.EVENTS, in_short.event),
)


def sections(arguments: Mapping[str, object]) -> list[tuple[str, str]]:
    """Report sections about the namespaces of a test.

    Args:
        arguments: values of the test's fixtures by name. Without a `Cluster` and a playground
            among them there is nothing to show.

    Returns:
        Titles and texts.
    """
    found: list[tuple[str, str]] = []
    try:
        values = list(arguments.values())
        where = [value for value in values if isinstance(value, Playground | Elsewhere)]
        for cluster in (value for value in values if isinstance(value, Cluster)):
            for place in where[:1]:
                found += about(place, cluster.namespace)
    except Exception as error:  # noqa: BLE001 - the test's own failure matters more
        found.append(("evidence", f"cannot be gathered: {error!r}"))
    return found


def about(place: Playground | Elsewhere, namespace: str) -> list[tuple[str, str]]:
    """Sections about one namespace: its objects, and each service's log."""
    playground = place.playground if isinstance(place, Elsewhere) else place
    found = [(f"namespace {namespace}", _objects(playground, namespace))]
    for name, log in place.service_logs().items():
        found.append((f"log of {name} about {namespace}", mentions(log, namespace)))
    return found


def text(place: Playground | Elsewhere, namespace: str) -> str:
    """The same as one text."""
    try:
        found = about(place, namespace)
    except Exception as error:  # noqa: BLE001 - the test's own failure matters more
        return f"no evidence about {namespace}: {error!r}"
    return "\n".join(f"---- {title} ----\n{words}" for title, words in found)


def mentions(log: Path, namespace: str) -> str:
    """The last lines of a log that mention a namespace."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"cannot be read: {error}"
    chosen = [line[:LOG_WIDTH] for line in lines if namespace in line]
    if not chosen:
        return f"no line of {len(lines)}"
    left_out = len(chosen) - LOG_LINES
    head = [f"({left_out} earlier lines)"] if left_out > 0 else []
    return "\n".join([*head, *chosen[-LOG_LINES:]])


def _objects(playground: Playground, namespace: str) -> str:
    """What is in a namespace, read in a thread: the test's own event loop stays as it is."""

    async def read() -> str:
        async with asyncio.timeout(LIMIT_S), playground.client() as client:
            return await shown(client, namespace)

    try:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(asyncio.run, read()).result()
    except Exception as error:  # noqa: BLE001 - the test's own failure matters more
        return f"cannot be read: {error!r}"


async def shown(client: Client, namespace: str) -> str:
    """Workloads, Jobs, pods and the last Events of a namespace, in short."""
    lines: list[str] = []
    for kind, short in SHOWN:
        try:
            found = await _listed(client, kind, namespace)
        except NotFoundError:
            continue  # a kind of an operator that this playground does not have
        except Exception as error:  # noqa: BLE001 - the other kinds are worth seeing still
            lines.append(f"{kind.kind}: cannot be read: {error!r}")
            continue
        lines += in_lines(kind, short, found)
    return "\n".join(lines)


def in_lines(kind: Resource, short: Callable[[Object], str], found: Iterable[Object]) -> list[str]:
    """Objects of one kind, a head line before them; of Events the last ones, by time."""
    objects = list(found)
    if kind is kinds.EVENTS:
        objects = sorted(objects, key=in_short.event_time)[-EVENTS:]
    return [f"{kind.kind}: {len(objects)}", *(f"  {short(one)}" for one in objects)]


async def _listed(client: Client, kind: Resource, namespace: str) -> list[Object]:
    pages = [page async for page in client.list_pages(kind.path(namespace))]
    return [one for page in pages for one in json.loads(page)["items"]]
