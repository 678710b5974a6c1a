"""Makes way for a task group that is applied anew: deletes its pods, and waits until they are gone.

Whatever can be known before is looked at before: nothing is deleted if the API server would refuse
what is to come. A pod is deleted by its uid; one that came meanwhile under its name stays.
docs/design/races/osmo.md tells the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, ForbiddenError, KubeError, NotFoundError
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply.plan import (
    MergePatch,
    Object,
    PodDeletion,
    Reject,
    plan_pod_deletion,
    plan_pod_group,
)
from rackgate_osmo.model.model import POD_GROUP_ANNOTATION

# Beside the grace period of the pods.
GONE_LIMIT_S: Final = 60.0
_GRACE_S: Final = 30
_POLL_S: Final = 0.5
_NAMED: Final = 5
_QUOTA: Final = "exceeded quota"


@dataclass(slots=True)
class PodReplacer:
    """What is deleted of one workflow.

    Attributes:
        params: of every write.
        deleted: names of pods that were deleted, in order.
    """

    client: Client
    namespace: str
    params: Mapping[str, str]
    dry_run: bool
    deleted: list[str] = field(default_factory=list)

    async def clear(self, groups: Sequence[Object], pods: Sequence[Object]) -> None:
        """Delete the pods of every group that cannot be changed as it is.

        Args:
            groups: PodGroups as built.
            pods: of these groups, marked.

        Raises:
            CommandError: something is refused, and nothing deleted; or pods do not go.
            KubeError: the cluster cannot be read.
        """
        there = await list_objects(self.client, kinds.PODS.path(self.namespace))
        to_delete: list[Object] = []
        for group in groups:
            name = group["metadata"]["name"]
            mine = [pod for pod in pods if _group_of(pod) == name]
            stored = await self._group(name)
            step = plan_pod_deletion(group, stored, mine, there)
            if isinstance(step, Reject):
                raise CommandError(f'nothing is written:\n  PodGroup "{name}": {step.message}')
            if isinstance(step, PodDeletion):
                await self._try(group, stored, mine)
                to_delete += step.pods
        for pod in to_delete:
            await self._delete(pod)
        if to_delete and not self.dry_run:
            await self._wait_deleted({pod["metadata"]["uid"]: pod for pod in to_delete})

    async def _group(self, name: str) -> Object | None:
        path = kinds.KAI_POD_GROUPS.path(self.namespace, name)
        try:
            found: Object = json.loads(await self.client.get(path))
        except NotFoundError:
            return None
        return found

    async def _try(self, group: Object, stored: Object | None, pods: Sequence[Object]) -> None:
        """Let the server judge what is to come; one pod of each kind.

        Raises:
            CommandError: it would be refused.
        """
        params = {**self.params, "dryRun": "All"}
        name = group["metadata"]["name"]
        try:
            step = plan_pod_group(group, stored, ())
            if isinstance(step, MergePatch):
                path = kinds.KAI_POD_GROUPS.path(self.namespace, name)
                await self.client.patch(path, _body(step.patch), PatchType.MERGE, params)
            for pod in {json.dumps(pod["spec"], sort_keys=True): pod for pod in pods}.values():
                metadata = {**pod["metadata"], "generateName": "rackgate-dry-run-"}
                del metadata["name"]
                body = _body({**pod, "metadata": metadata})
                await self._try_pod(body, params)
        except ConflictError:
            return  # it is looked at again before it is written
        except KubeError as error:
            raise CommandError(
                f'nothing is written:\n  what is to replace PodGroup "{name}" and its pods is '
                f"refused: {error.message or error}"
            ) from error

    async def _try_pod(self, body: bytes, params: Mapping[str, str]) -> None:
        try:
            await self.client.create(kinds.PODS.path(self.namespace), body, params)
        except ForbiddenError as error:
            # The quota may be what the old pods hold.
            if _QUOTA not in str(error):
                raise

    async def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        options: Object = {"preconditions": {"uid": metadata["uid"]}}
        if self.dry_run:
            # In the body: where there is one, the server does not look at the query.
            options["dryRun"] = ["All"]
        path = kinds.PODS.path(self.namespace, metadata["name"])
        try:
            await self.client.delete(path, _body(options))
        except NotFoundError:
            pass
        except ConflictError as error:
            raise CommandError(
                f'Pod "{metadata["name"]}" was replaced by somebody else meanwhile: apply again'
            ) from error
        self.deleted.append(metadata["name"])

    async def _wait_deleted(self, pods: Mapping[str, Object]) -> None:
        """Wait until pods are gone, by their uids.

        Raises:
            CommandError: they stay.
        """
        grace = max(
            int(pod["spec"].get("terminationGracePeriodSeconds") or _GRACE_S)
            for pod in pods.values()
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GONE_LIMIT_S + grace
        while True:
            there = await list_objects(self.client, kinds.PODS.path(self.namespace))
            left = [pod for pod in there if pod["metadata"]["uid"] in pods]
            if not left:
                return
            if loop.time() >= deadline:
                names = sorted(pod["metadata"]["name"] for pod in left)
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                raise CommandError(
                    f"pods {', '.join(names[:_NAMED])}{more} are deleted but do not end (a node "
                    "that does not answer, or a finalizer): apply again when they are gone"
                )
            await asyncio.sleep(_POLL_S)


async def list_objects(client: Client, path: str) -> list[Object]:
    """All objects of a list.

    Raises:
        KubeError: it cannot be read.
    """
    found: list[Object] = []
    async for page in client.list_pages(path):
        found += json.loads(page)["items"]
    return found


def _group_of(pod: Object) -> str:
    return str(pod["metadata"]["annotations"].get(POD_GROUP_ANNOTATION))


def _body(document: Any) -> bytes:
    return json.dumps(document).encode()
