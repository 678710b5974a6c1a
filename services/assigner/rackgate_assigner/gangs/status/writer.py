"""Writes Workloads of gangs, each bound to what it was decided on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.names import FieldManager
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.jobframework.jsonpatch import JsonPatchOp, with_preconditions
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import AlreadyExistsError, NotFoundError
from rackgate.wire.core import Meta, MetadataOnly
from rackgate_assigner.workload.status import status_apply

_decode_metadata: Final = msgspec.json.Decoder(MetadataOnly).decode


class GangWriter:
    """Creates, adopts, deletes and describes Workloads of gangs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, body: Mapping[str, Any]) -> Meta | None:
        """Create one; None if there is one of this name, made by this or another process."""
        path = GANG_WORKLOADS.path(body["metadata"]["namespace"])
        try:
            answer = await self._client.create(path, msgspec.json.encode(body))
        except AlreadyExistsError:
            return None
        return _decode_metadata(answer).metadata

    async def delete(self, meta: Meta) -> None:
        """Delete this version of one; it may be gone."""
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        path = GANG_WORKLOADS.path(meta.namespace, meta.name)
        try:
            await self._client.delete(path, msgspec.json.encode({"preconditions": preconditions}))
        except NotFoundError:
            return

    async def adopt(self, meta: Meta, owner: Mapping[str, Any]) -> None:
        """Add an owner, which does not control it.

        Raises:
            ConflictError: it has changed; it may have another owner.
        """
        metadata = {
            "name": meta.name,
            "namespace": meta.namespace,
            "resourceVersion": meta.resource_version,
            "ownerReferences": [dict(owner)],
        }
        body = {
            "apiVersion": GANG_WORKLOADS.api_version,
            "kind": GANG_WORKLOADS.kind,
            "metadata": metadata,
        }
        path = GANG_WORKLOADS.path(meta.namespace, meta.name)
        await self._client.apply(path, msgspec.json.encode(body), FieldManager.GANG_OWNERS)

    async def patch(self, meta: Meta, operations: Sequence[JsonPatchOp]) -> None:
        """Change this version of one; it may be gone.

        Raises:
            UnprocessableError: it has changed.
        """
        path = GANG_WORKLOADS.path(meta.namespace, meta.name)
        bound = with_preconditions(operations, uid=meta.uid, resource_version=meta.resource_version)
        try:
            await self._client.patch(path, msgspec.json.encode(bound), PatchType.JSON)
        except NotFoundError:
            return

    async def write_status(self, meta: Meta, status: Mapping[str, Any]) -> None:
        """Write all of the status.

        Raises:
            ConflictError: it has changed.
        """
        path = GANG_WORKLOADS.path(meta.namespace, meta.name, "status")
        body = status_apply(GANG_WORKLOADS, meta, status)
        await self._client.apply(path, body, FieldManager.GANGS)
