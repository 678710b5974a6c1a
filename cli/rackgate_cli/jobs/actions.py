"""Hold, resume, requeue and cancel jobs, with the rights of a namespace user.

A job is held by `spec.active: false` of its Workload, as `kueuectl stop workload` does: the
assigner evicts it and does not admit it again before it is true. Users may write no other field of
a Workload, and no status. So a job gives up its admission by being held until the assigner has
released it, and by being resumed then (ADR 70).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from rackgate.api import resources as kinds
from rackgate.jobframework.registry import KINDS
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TransportError,
    UnprocessableError,
)
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.state import is_managed
from rackgate_assigner.watches import decode_workload
from rackgate_cli.cluster import rights
from rackgate_cli.cluster.lists import list_decoded
from rackgate_cli.cluster.rights import Right
from rackgate_cli.errors import CommandError
from rackgate_cli.explain.manifest import why_job_not_managed
from rackgate_cli.jobs.names import JobName, choose, name_of
from rackgate_cli.spellings import WORKLOAD
from rackgate_cli.verbs import did_you_mean

TRIES: Final = 3
# The object was deleted, and another one may have its name.
_REPLACED: Final = (ConflictError, NotFoundError, UnprocessableError)
POLL_S: Final = 1.0
WORKLOAD_RIGHTS: Final = (
    Right("list", kinds.WORKLOADS),
    Right("patch", kinds.WORKLOADS),
)
Say = Callable[[str], None]


class JobActions:
    """What one user does to jobs of one namespace."""

    def __init__(self, client: Client, namespace: str, say: Say) -> None:
        self._client, self._namespace, self._say = client, namespace, say

    async def find(self, job: JobName, needed: Sequence[Right] = WORKLOAD_RIGHTS) -> list[Workload]:
        """The Workloads of a job that are not finished.

        Raises:
            CommandError: there is none, or the user may not list them.
        """
        listed = await self.workloads(needed)
        found = choose(job, listed)
        left = [one for one in found if not one.is_true("Finished")]
        if found and not left:
            raise CommandError(f"{name_of(found[0])} is finished")
        if not left:
            raise CommandError(await self._why_none(job, listed))
        return left

    async def workloads(self, needed: Sequence[Right]) -> list[Workload]:
        """All Workloads of the namespace.

        Raises:
            CommandError: the user may not list them, or Rackgate is not installed.
        """
        try:
            return await list_decoded(
                self._client, kinds.WORKLOADS, decode_workload, namespace=self._namespace
            )
        except ForbiddenError as error:
            raise await self.rejected(needed, error) from error
        except NotFoundError as error:
            raise CommandError("the cluster has no Workloads: Rackgate is not installed") from error

    async def rejected(self, needed: Sequence[Right], error: ForbiddenError) -> CommandError:
        """The error for a user who lacks some of these rights."""
        return await rights.explain(self._client, self._namespace, needed, error)

    async def hold(self, job: JobName) -> None:
        """Deactivate a job: it gives up its admission, and waits until it is resumed."""
        await self._set_active(job, active=False)

    async def resume(self, job: JobName) -> None:
        """Activate a job: it is queued again."""
        await self._set_active(job, active=True)

    async def _set_active(self, job: JobName, *, active: bool) -> None:
        for attempt in range(TRIES):
            found = await self.find(job)
            changed = [one for one in found if one.spec.active is not active]
            try:
                for one in changed:
                    await self._patch(one, active=active)
            except _REPLACED:
                if attempt == TRIES - 1:
                    raise
                continue
            self._say(_outcome(found, changed, active=active))
            return

    async def _patch(self, workload: Workload, *, active: bool) -> None:
        """Write `spec.active` of exactly this Workload."""
        change = [
            {"op": "test", "path": "/metadata/uid", "value": workload.metadata.uid},
            {"op": "add", "path": "/spec/active", "value": active},
        ]
        path = kinds.WORKLOADS.path(self._namespace, workload.metadata.name)
        try:
            await self._client.patch(path, json.dumps(change).encode(), PatchType.JSON)
        except ForbiddenError as error:
            raise await self.rejected(WORKLOAD_RIGHTS, error) from error

    async def requeue(self, job: JobName, timeout_s: float) -> None:
        """Give up a job's admission and queue it again.

        Raises:
            CommandError: it is held, or did not stop in time: then it stays held.
        """
        found = await self.find(job)
        name = name_of(found[0])
        if any(not one.spec.active for one in found):
            raise CommandError(f"{name} is held: rackgate resume {name} queues it again")
        if all(one.status.admission is None for one in found):
            self._say(f"{name} is pending already: it has no admission to give up")
            return
        held = False
        try:
            for one in found:
                before, held = held, True  # it may be, also if the answer does not arrive
                try:
                    await self._patch(one, active=False)
                except (ServerError, TransportError):
                    raise
                except (KubeError, CommandError):  # rejected
                    held = before
                    raise
            async with asyncio.timeout(timeout_s):
                await self._released({one.metadata.uid for one in found})
            for one in found:
                with contextlib.suppress(*_REPLACED):  # deleted meanwhile
                    await self._patch(one, active=True)
        except TimeoutError:
            raise CommandError(
                f"{name} has not stopped within {timeout_s:g} s, and is held now; when its pods "
                f"are gone, rackgate resume {name} queues it again"
            ) from None
        except BaseException:
            if held:
                self._say(f"{name} may be held now: rackgate resume {name} queues it again")
            raise
        self._say(f"{name} requeued")

    async def _released(self, uids: set[str]) -> None:
        """Wait until none of these Workloads has an admission; deleted ones have none."""
        while True:
            listed = await self.workloads(WORKLOAD_RIGHTS)
            if not any(
                one.status.admission is not None
                for one in listed
                if one.metadata.uid in uids and not one.is_true("Finished")
            ):
                return
            await asyncio.sleep(POLL_S)

    async def _why_none(self, job: JobName, listed: Sequence[Workload]) -> str:
        for kind in self._kinds(job):
            try:
                raw = await self._client.get(kind.resource.path(self._namespace, job.name))
            except (NotFoundError, ForbiddenError):
                continue
            found = kind.decode(raw)
            name = JobName(kind.name, job.name)
            if not is_managed(found):
                return f"Rackgate does not manage {name}: {why_job_not_managed(found)}"
            if kind.finished(found) is not None:
                return f"{name} is finished"
            return f"{name} has no Workload yet. Check that the assigner is running."
        known = [str(name_of(one)) for one in listed if not one.is_true("Finished")]
        names = {one.partition("/")[2]: one for one in known}
        near = did_you_mean(job.name, names) or did_you_mean(str(job), known)
        what = f'"{job}"' if job.kind else f'job and no Workload "{job}"'
        return f'there is no {what} in namespace "{self._namespace}"{near}'

    def _kinds(self, job: JobName) -> list[Any]:
        return [kind for kind in KINDS.values() if job.kind in ("", kind.name)]

    # Cancel.

    async def find_object(self, job: JobName) -> tuple[JobName, str]:
        """The object that `cancel` deletes: name with kind, and UID.

        Raises:
            CommandError: there is none, or several kinds have one of this name.
        """
        needed = [
            Right(verb, kind.resource) for kind in self._kinds(job) for verb in ("get", "delete")
        ]
        found: dict[JobName, str] = {}
        forbidden: ForbiddenError | None = None
        for kind in self._kinds(job):
            try:
                raw = await self._client.get(kind.resource.path(self._namespace, job.name))
            except NotFoundError:
                continue
            except ForbiddenError as error:
                forbidden = error
                continue
            found[JobName(kind.name, job.name)] = kind.decode(raw).metadata.uid
        if len(found) > 1:
            named = " and of ".join(str(name) for name in found)
            raise CommandError(f'"{job}" is the name of {named}: write one of these')
        if found:
            return next(iter(found.items()))
        if job.kind in ("", WORKLOAD):
            workload = next(
                (
                    one
                    for one in await self.workloads((Right("list", kinds.WORKLOADS), *needed))
                    if one.metadata.name == job.name
                ),
                None,
            )
            if workload is not None:
                return await self._owner_of(workload)
        if forbidden is not None:
            raise await self.rejected(needed, forbidden)
        raise CommandError(
            await self._why_none(job, await self.workloads([Right("list", kinds.WORKLOADS)]))
        )

    async def _owner_of(self, workload: Workload) -> tuple[JobName, str]:
        name = name_of(workload)
        if name.kind == WORKLOAD:
            raise CommandError(
                f"{name} belongs to no Job, JobSet, RayCluster or RayJob: delete its pods, or "
                "the object that creates them, with kubectl"
            )
        return await self.find_object(name)

    async def cancel(self, job: JobName, uid: str) -> None:
        """Delete a job of this UID, and its pods.

        Raises:
            CommandError: the user may not, or another job has this name now.
        """
        resource = KINDS[job.kind].resource
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        path = resource.path(self._namespace, job.name)
        try:
            await self._client.delete(path, json.dumps(options).encode())
        except NotFoundError:
            pass  # somebody else was faster
        except ConflictError as error:
            raise CommandError(f"another {job} exists now; nothing was deleted") from error
        except ForbiddenError as error:
            raise await self.rejected([Right("delete", resource)], error) from error
        self._say(f"{job} canceled")


def _outcome(found: Sequence[Workload], changed: Sequence[Workload], *, active: bool) -> str:
    name = name_of(found[0])
    if active:
        return f"{name} resumed" if changed else f"{name} is not held"
    if not changed:
        return f"{name} is held already"
    running = any(one.status.admission is not None for one in changed)
    return f"{name} held: its pods are being stopped" if running else f"{name} held"
