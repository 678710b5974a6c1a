"""Which collections may be read, now and later, and the difference between the clocks.

Only overdue deletions and the patience of a single check compare this machine's time with times in
objects. The `Date` header of the API server's answers corrects it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, GoneError, KubeError, NotFoundError, TransportError
from rackgate.runtime import clock
from rackgate.runtime.tasks import spawn
from rackgate.wire.lists import decode_page
from rackgate_cli.errors import CommandError, first_error
from rackgate_invariants.reading import SOURCES, Source, is_absent, unreadable_reason

PROBE_S = 2.0
# Longer than a slow answer, and short enough for a user who interrupts.
ANSWER_S = 10.0


async def namespace_is_known(client: Client, namespace: str) -> bool:
    """Whether a namespace certainly exists.

    Returns:
        False if it may not be read; many users may only read the objects in it.

    Raises:
        CommandError: the namespace does not exist.
        KubeError: the API server does not answer.
    """
    try:
        await client.get(kinds.NAMESPACES.path(name=namespace))
    except NotFoundError as error:
        raise CommandError(f'there is no namespace "{namespace}": nothing was checked') from error
    except ForbiddenError:
        return False
    return True


async def unreadable_collections(
    client: Client, namespace: str | None, sources: Iterable[Source] = SOURCES
) -> dict[str, str]:
    """What cannot be listed and watched, plural to reason.

    Raises:
        ExceptionGroup: of KubeErrors: the API server does not answer.
    """
    async with asyncio.TaskGroup() as group:
        asked = {
            source.resource.plural: spawn(
                group, _denied_reason(client, source, namespace), f"probe {source.resource.plural}"
            )
            for source in sources
        }
    return {plural: task.result() for plural, task in asked.items() if task.result()}


async def absent_kinds(client: Client, namespace: str | None) -> frozenset[str]:
    """Plurals of optional kinds that the cluster does not serve."""
    found = []
    for source in SOURCES:
        if source.optional:
            try:
                await client.get(source.path(namespace), {"limit": "1"})
            except KubeError as error:
                if await is_absent(client, source, error):
                    found.append(source.resource.plural)
    return frozenset(found)


async def _denied_reason(client: Client, source: Source, namespace: str | None) -> str:
    """Why a collection cannot be listed or watched; "" if it can, or is not served."""
    path = source.path(namespace)
    try:
        answer = decode_page(await client.get(path, {**source.params, "limit": "1"}))
    except (ForbiddenError, NotFoundError) as error:
        return "" if await is_absent(client, source, error) else unreadable_reason(source, error)
    except msgspec.DecodeError as error:
        raise TransportError("GET", path, reason="Garbage", message=str(error)) from error
    if not answer.metadata.resource_version:
        raise TransportError("GET", path, reason="Garbage", message="no list")
    params = {
        **source.params,
        "resourceVersion": answer.metadata.resource_version,
        "timeoutSeconds": "1",
    }
    try:
        async with asyncio.timeout(PROBE_S), aclosing(client.watch_batches(path, params)) as stream:
            await anext(stream, None)
    except ForbiddenError:
        return f"{source.resource.plural} cannot be watched"
    except (TimeoutError, GoneError):
        pass  # a watch without an error is allowed; an expired version only means that time passed
    return ""


async def reason_to_stop(client: Client, namespace: str | None, sources: Iterable[Source]) -> str:
    """Why these collections cannot be listed and watched any more; "" if they can.

    Either right may be removed without the other.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            return "; ".join((await unreadable_collections(client, namespace, sources)).values())
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except ExceptionGroup as errors:
        _, others = errors.split(KubeError)
        if others is not None:
            raise
        return str(first_error(errors))


async def read_failure(client: Client, source: Source, namespace: str | None) -> str:
    """Why one collection cannot be read now; "" if it can."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await client.get(source.path(namespace), {**source.params, "limit": "1"})
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except KubeError as error:
        return str(error)
    return ""


# A `Date` has whole seconds and is written before the answer arrives: ignore less than this.
TOLERANCE_S: Final = 5.0
# A path that needs no authorization.
VERSION_PATH: Final = "/version"


async def clock_skew_s(client: Client) -> float:
    """Seconds that this machine's clock is ahead of the API server's; 0.0 while they agree.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        await client.get(VERSION_PATH)
    except KubeError as error:
        # A rejection has a `Date`, too.
        if not error.status:
            raise
    return difference(client.server_date, clock.now().timestamp())


def difference(date: str, own: float) -> float:
    """Seconds that `own` is later than a `Date` header.

    Args:
        date: the header; a malformed one counts as no difference.
        own: Unix time when the answer arrived.

    Returns:
        0.0 if rounding and latency explain the difference; negative if `own` is behind.
    """
    try:
        found = own - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0
    return found if abs(found) > TOLERANCE_S else 0.0


def warning(clock_skew: float) -> str:
    """A warning about a difference; "" for none."""
    if not clock_skew:
        return ""
    way = "ahead of" if clock_skew > 0 else "behind"
    return (
        f"this machine's clock is {abs(clock_skew):.0f} s {way} the API server's, "
        "whose time is used instead"
    )
