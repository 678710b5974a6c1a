"""Functions that the writers of Workloads share.

Conditions with timestamps, and a status write that recognizes its own earlier tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rackgate.api.names import FieldManager
from rackgate.api.timestamps import rfc3339
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError
from rackgate.runtime import clock
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.conditions import Change
from rackgate_assigner.workload.status import decode_workload, path_of


def listed_conditions(
    workload: Workload,
    owned: Sequence[str],
    changes: Iterable[Change],
    *,
    drop: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """All conditions of one manager after `changes`, see `condition_list`."""
    return conditions.condition_list(
        workload.status.conditions,
        owned,
        changes,
        now=rfc3339(clock.now()),
        generation=workload.metadata.generation,
        drop=drop,
    )


async def apply_status(
    client: Client,
    workload: Workload,
    body: bytes,
    is_our_write: Callable[[Workload], bool],
    *,
    outcome_unknown: bool,
) -> Workload:
    """Write once; a conflict with our own earlier write is success.

    Args:
        client: sends it.
        workload: as decided on.
        body: the apply, bound to that version.
        is_our_write: whether a stored Workload shows this write.
        outcome_unknown: the same write may have been sent before.

    Raises:
        ServerError, TransportError: it may or may not have been applied; write it again.
    """
    try:
        answer = await client.apply(path_of(workload, "status"), body, FieldManager.ADMISSION)
        return decode_workload(answer)
    except ConflictError:
        if not outcome_unknown:
            raise
        known = workload.metadata.resource_version
        live = decode_workload(await client.get(path_of(workload), known=known))
        if live.metadata.uid != workload.metadata.uid or not is_our_write(live):
            raise
        return live
