"""Functions that the writers of Workloads share.

Conditions with timestamps, and a status write that is repeated until its outcome is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import structlog

from rackgate.api.names import FieldManager
from rackgate.api.timestamps import rfc3339
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, ServerError, TransportError
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.wire.depth import tolerant
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.conditions import Change
from rackgate_assigner.workload.status import path_of

log = structlog.get_logger()

decode_workload = tolerant(msgspec.json.Decoder(Workload).decode)


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
    """Write until there is a response; a conflict with our own write is success."""
    path = path_of(workload, "status")
    pause = Backoff(base_s=0.1, cap_s=5.0)
    while True:
        try:
            answer = await client.apply(path, body, FieldManager.ADMISSION)
            return decode_workload(answer)
        except (TransportError, ServerError) as error:
            outcome_unknown = True
            log.warning(
                "admission_outcome_unknown", workload=workload.metadata.key, error=str(error)
            )
            await asyncio.sleep(pause.next())
        except ConflictError:
            if not outcome_unknown:
                raise
            known = workload.metadata.resource_version
            live = decode_workload(await client.get(path_of(workload), known=known))
            if live.metadata.uid != workload.metadata.uid or not is_our_write(live):
                raise
            return live
