"""Which Lease a write needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackgate_ungater.shards.handover import lease_name, shard_of
from tests.support.proxy_records import Write

ASSIGNER_LEASE = "rackgate-assigner"


def lease_of(uids: Mapping[str, str]) -> Callable[[Write], str | None]:
    """A function from a write to the Lease under which alone it may happen.

    Args:
        uids: UID of each Workload by `namespace/name`.
    """

    def needed(write: Write) -> str | None:
        service = write.sender.split("-")[0]
        if service == "assigner":
            return ASSIGNER_LEASE
        if service == "ungater" and write.resource == "pods":
            uid = uids.get(write.workload)
            return lease_name(shard_of(uid)) if uid else None
        return None

    return needed
