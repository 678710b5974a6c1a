"""Writes the objects of a workflow to a cluster; can be repeated after a crash at any point.

Each object is read, planned (`plan`) and written in a loop. A write is bound to the version that
was read; if the object changed in between, it is read again. Nothing is written, and no pod
deleted, if the current state would cause a rejection. A pod is deleted by its uid, so a new pod
with the same name stays. docs/design/races/osmo.md describes the races.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    TransportError,
)
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply.plan import (
    Action,
    Create,
    MergePatch,
    Object,
    PodDeletion,
    Reject,
    Replace,
    Unchanged,
    WaitForDeletion,
    is_changed,
    live_pods,
    plan_pod,
    plan_pod_deletion,
    plan_pod_group,
    plan_topology,
    some_of,
    with_hash_annotation,
    with_missing_level,
)
from rackgate_cli.osmo.apply.preconditions import topologies_of
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION

MANAGER: Final = "rackgate-osmo"
TRIES: Final = 8
GONE_LIMIT_S: Final = 60.0  # in addition to the grace period of pods
_GRACE_S: Final = 30
_POLL_S: Final = 0.2
_MAX_CONCURRENT: Final = 16
_NAMED: Final = 5

Judge: TypeAlias = Callable[[Object | None], Awaitable[Action]]


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one object: created, changed, replaced, deleted or unchanged."""

    kind: str
    namespace: str | None
    name: str
    result: str
    note: str = ""

    @property
    def label(self) -> str:
        """Kind and name, for messages."""
        return f'{self.kind} "{self.name}"'


@dataclass(slots=True)
class Outcome:
    """What was done so far, in order, and warnings for the user."""

    results: list[Result] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Applier:
    """Applies the objects of one workflow to one cluster."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        outcome: Outcome,
        *,
        dry_run: bool = False,
        replacing: bool = False,
    ) -> None:
        """Prepare.

        Args:
            client: with the user's rights.
            namespace: of PodGroups and pods.
            outcome: grows while objects are written; after an error it shows what was done.
            dry_run: send every write as a server-side dry run.
            replacing: delete the pods of groups that cannot be changed in place.
        """
        self._client, self._namespace, self._dry_run = client, namespace, dry_run
        self._params = {"fieldValidation": "Strict", "fieldManager": MANAGER}
        if dry_run:
            self._params["dryRun"] = "All"
        self._outcome, self._replacing = outcome, replacing
        self._deleted: set[str] = set()  # names of pods that `replacing` deleted

    async def apply(
        self, topology: Object | None, groups: Sequence[Object], pods: Sequence[Object]
    ) -> None:
        """Write the Topology, then PodGroups, then pods: each needs those before it.

        Args:
            topology: None for a pool without keys; then no Topology is written.
            groups: PodGroups.
            pods: of those groups.

        Raises:
            CommandError: an object is rejected, or does not reach the desired state.
            KubeError: the cluster cannot be read.
        """
        pods = [with_hash_annotation(pod) for pod in pods]
        if self._replacing:
            await self._delete_pods(groups, pods)
        there = await self._check_rejected(groups, pods)
        if topology is not None:
            await self._topology(topology, groups)
        await self._run_all(partial(self._group, group) for group in groups)
        await self._run_all(partial(self._pod, pod, there) for pod in pods)
        made = {done.result for done in self._outcome.results if done.kind == "Pod"}
        if made & {"created", "replaced"} and not self._dry_run:
            await self._check_groups(groups)

    # -- before anything is written --------------------------------------------------------

    async def _check_rejected(
        self, groups: Sequence[Object], pods: Sequence[Object]
    ) -> dict[str, Object]:
        """The stored pods of the workflow, by name; fail if the current state causes a rejection.

        Raises:
            CommandError: with all rejections.
        """
        rejected: dict[str, str] = {}

        async def look(group: Object) -> None:
            stored = await self._read(kinds.KAI_POD_GROUPS, group["metadata"]["name"])
            step = await self._group_judge(group)(stored)
            if isinstance(step, Reject):
                rejected[f'PodGroup "{group["metadata"]["name"]}"'] = step.message

        await self._run_all(partial(look, group) for group in groups)
        names = {pod["metadata"]["name"] for pod in pods}
        found = {pod["metadata"]["name"]: pod for pod in (await self._pods() if pods else ())}
        there = {name: pod for name, pod in found.items() if name in names}
        for pod in pods:
            step = plan_pod(pod, there.get(pod["metadata"]["name"]))
            if isinstance(step, Reject):
                rejected[f'Pod "{pod["metadata"]["name"]}"'] = step.message
        if rejected:
            # Groups before pods, because their messages have the cause.
            order = sorted(rejected.items(), key=lambda one: (one[0].startswith("Pod "), one))
            lines = [f"{label}: {message}" for label, message in order]
            more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
            raise CommandError("\n  ".join(["nothing is written:", *lines[:_NAMED], *more]))
        return there

    async def _delete_pods(self, groups: Sequence[Object], pods: Sequence[Object]) -> None:
        """Delete the pods of every group that cannot be changed in place; wait until they are gone.

        Raises:
            CommandError: something is rejected, and nothing deleted; or pods are not gone in time.
        """
        there = await self._pods()
        to_delete: list[Object] = []
        for group in groups:
            name = group["metadata"]["name"]
            mine = [
                pod for pod in pods if pod["metadata"]["annotations"][POD_GROUP_ANNOTATION] == name
            ]
            stored = await self._read(kinds.KAI_POD_GROUPS, name)
            step = plan_pod_deletion(group, stored, mine, there)
            if isinstance(step, Reject):
                raise CommandError(f'nothing is written:\n  PodGroup "{name}": {step.message}')
            if isinstance(step, PodDeletion):
                await self._try(group, stored, mine)
                to_delete += step.pods
        for pod in to_delete:
            name = pod["metadata"]["name"]
            try:
                await self._delete(kinds.PODS, name, {"uid": pod["metadata"]["uid"]})
            except NotFoundError:
                pass
            except ConflictError as error:
                raise CommandError(
                    f'Pod "{name}" was replaced in the meantime: run the command again'
                ) from error
            self._deleted.add(name)
            self._outcome.results.append(Result("Pod", self._namespace, name, "deleted"))
        if to_delete and not self._dry_run:
            await self._wait_until_gone(to_delete)

    async def _try(self, group: Object, stored: Object | None, pods: Sequence[Object]) -> None:
        """Dry-run the coming writes, one pod of each kind, before pods are deleted."""
        params, name = {**self._params, "dryRun": "All"}, group["metadata"]["name"]
        try:
            step = plan_pod_group(group, stored, ())
            if isinstance(step, MergePatch):
                path = kinds.KAI_POD_GROUPS.path(self._namespace, name)
                await self._client.patch(path, _body(step.patch), PatchType.MERGE, params)
            for pod in {json.dumps(pod["spec"], sort_keys=True): pod for pod in pods}.values():
                try:
                    await self._dry_run_create(kinds.PODS, pod)
                except ForbiddenError as error:
                    # The old pods may use up the quota.
                    if "exceeded quota" not in str(error):
                        raise
        except ConflictError:
            return  # it is read again before it is written
        except KubeError as error:
            raise CommandError(
                f'nothing is written:\n  the new PodGroup "{name}" and its pods are rejected: '
                f"{error.message or error}"
            ) from error

    async def _wait_until_gone(self, pods: Sequence[Object]) -> None:
        grace = max(
            int(pod["spec"].get("terminationGracePeriodSeconds") or _GRACE_S) for pod in pods
        )
        uids = {pod["metadata"]["uid"] for pod in pods}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GONE_LIMIT_S + grace
        while left := [pod for pod in await self._pods() if pod["metadata"]["uid"] in uids]:
            if loop.time() >= deadline:
                names = sorted(pod["metadata"]["name"] for pod in left)
                raise CommandError(
                    f"pods {some_of(names, _NAMED)} are being deleted but do not end (a node that "
                    "does not respond, or a finalizer): run the command again when they are gone"
                )
            await asyncio.sleep(_POLL_S)

    # -- one object ------------------------------------------------------------------------

    async def _reconcile(
        self, kind: Resource, wanted: Object, judge: Judge, known: Sequence[Object | None] = ()
    ) -> None:
        """Read, plan and write until the object is as desired.

        Args:
            kind: of the object.
            wanted: the desired object.
            judge: decides from what is stored.
            known: the object if it was read already, so that the first pass needs no request.

        Raises:
            CommandError: rejected, by `judge` or by the server; or it keeps changing.
        """
        name = wanted["metadata"]["name"]
        result = Result(kind.kind, self._namespace if kind.namespaced else None, name, "")
        word, note, last = "", "", None
        for attempt in range(TRIES):
            stored = known[0] if known and not attempt else await self._read(kind, name)
            step = await judge(stored)
            if isinstance(step, Unchanged):
                self._done(replace(result, result=word or "unchanged", note=note))
                return
            if isinstance(step, Reject):
                raise CommandError(f"{result.label} was not changed: {step.message}")
            if isinstance(step, WaitForDeletion):
                await self._wait_deleted(kind, name, result)
                continue
            last = await self._attempt(kind, wanted, step, result)
            if last is None or isinstance(last, TransportError):
                # Unknown outcome: if the write succeeded, the next pass finds the object unchanged.
                word, note = _word(step, word), note or getattr(step, "note", "")
            if last is None and (self._dry_run or not isinstance(step, Replace)):
                self._done(replace(result, result=word, note=note))
                return
        why = f": {last}" if last is not None else ""
        raise CommandError(f"{result.label} could not be written in {TRIES} tries{why}")

    async def _attempt(
        self, kind: Resource, wanted: Object, step: Action, result: Result
    ) -> KubeError | None:
        """Send a write; the error after which the object is to be read again, or None."""
        try:
            await self._write(kind, wanted, step)
        except (ConflictError, TransportError) as error:
            return error
        except KubeError as error:
            # Not found on create: the namespace does not exist.
            if isinstance(error, NotFoundError) and not isinstance(step, Create):
                return error
            message = f"{result.label} is rejected: {error.message or error}"
            raise CommandError(message) from error
        return None

    async def _write(self, kind: Resource, wanted: Object, step: Action) -> None:
        name = wanted["metadata"]["name"]
        path = kind.path(self._namespace if kind.namespaced else None, name)
        is_taken = kind == kinds.PODS and name in self._deleted
        if isinstance(step, Create) and self._dry_run and is_taken:
            await self._dry_run_create(kind, wanted)
        elif isinstance(step, Create):
            await self._client.create(path.removesuffix(f"/{name}"), _body(wanted), self._params)
        elif isinstance(step, MergePatch):
            await self._client.patch(path, _body(step.patch), PatchType.MERGE, self._params)
        elif isinstance(step, Replace):
            if self._dry_run:
                await self._dry_run_create(kind, wanted)
            await self._delete(kind, name, step.preconditions)

    async def _dry_run_create(self, kind: Resource, wanted: Object) -> None:
        """Dry-run the creation of an object whose name is in use until the old one is deleted."""
        metadata = {**wanted["metadata"], "generateName": "rackgate-dry-run-"}
        del metadata["name"]
        path = kind.path(self._namespace if kind.namespaced else None)
        params = {**self._params, "dryRun": "All"}
        await self._client.create(path, _body({**wanted, "metadata": metadata}), params)

    async def _delete(self, kind: Resource, name: str, preconditions: Mapping[str, str]) -> None:
        options: Object = {"preconditions": dict(preconditions)}
        if self._dry_run:
            # In the body: if there is one, the server ignores the query.
            options["dryRun"] = ["All"]
        path = kind.path(self._namespace if kind.namespaced else None, name)
        await self._client.delete(path, _body(options))

    def _done(self, done: Result) -> None:
        if done.kind == "Pod" and done.name in self._deleted:
            done = replace(done, result="replaced")
            self._outcome.results.remove(replace(done, result="deleted", note=""))
        self._outcome.results.append(done)

    async def _pods(self) -> list[Object]:
        """Pods of the namespace; in a dry run without those that would be deleted by now."""
        found = await list_objects(self._client, kinds.PODS, namespace=self._namespace)
        gone = self._deleted if self._dry_run else ()
        return [pod for pod in found if pod["metadata"]["name"] not in gone]

    async def _read(self, kind: Resource, name: str) -> Object | None:
        path = kind.path(self._namespace if kind.namespaced else None, name)
        try:
            found: Object = json.loads(await self._client.get(path))
        except NotFoundError:
            return None
        return found

    async def _wait_deleted(self, kind: Resource, name: str, result: Result) -> None:
        """Wait until an object that is being deleted is gone; not in a dry run."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (0.0 if self._dry_run else GONE_LIMIT_S)
        while True:
            found = await self._read(kind, name)
            if found is None or not found["metadata"].get("deletionTimestamp"):
                return
            if loop.time() >= deadline:
                waiting = ", ".join(found["metadata"].get("finalizers") or ()) or "its deletion"
                raise CommandError(
                    f"{result.label} is being deleted, and waits for {waiting}: try again later"
                )
            await asyncio.sleep(_POLL_S)

    # -- what a workflow has ---------------------------------------------------------------

    async def _topology(self, wanted: Object, groups: Sequence[Object]) -> None:
        warned = False

        async def judge(stored: Object | None) -> Action:
            nonlocal warned
            step = plan_topology(wanted, stored)
            if isinstance(step, Replace) and not warned:
                warned = True
                await self._warn_of_missing_levels(wanted, groups)
            return step

        await self._reconcile(topologies_of(wanted["apiVersion"]), wanted, judge)

    async def _warn_of_missing_levels(self, topology: Object, ours: Sequence[Object]) -> None:
        own = {f"{self._namespace}/{group['metadata']['name']}" for group in ours}
        try:
            groups = await list_objects(self._client, kinds.KAI_POD_GROUPS)
        except ForbiddenError:
            self._outcome.warnings.append(
                "PodGroups of other namespaces cannot be listed, so it is not known whether they "
                "use a level that is removed"
            )
            return
        left = [name for name in with_missing_level(topology, groups) if name not in own]
        if left:
            self._outcome.warnings.append(
                f"PodGroups {some_of(left, _NAMED)} use a level that is removed: their "
                "running pods stay, but their pending pods are no longer scheduled"
            )

    async def _group(self, wanted: Object) -> None:
        await self._reconcile(kinds.KAI_POD_GROUPS, wanted, self._group_judge(wanted))

    def _group_judge(self, wanted: Object) -> Judge:
        async def judge(stored: Object | None) -> Action:
            live: list[str] = []
            if is_changed(wanted, stored):
                live = live_pods(await self._pods(), wanted["metadata"]["name"])
            return plan_pod_group(wanted, stored, live)

        return judge

    async def _pod(self, wanted: Object, there: Mapping[str, Object]) -> None:
        async def judge(stored: Object | None) -> Action:
            return plan_pod(wanted, stored)

        known = [there.get(wanted["metadata"]["name"])]
        await self._reconcile(kinds.PODS, wanted, judge, known)

    async def _check_groups(self, groups: Sequence[Object]) -> None:
        """Warn if a PodGroup changed while its pods were created."""
        for group in groups:
            name = group["metadata"]["name"]
            stored = await self._read(kinds.KAI_POD_GROUPS, name)
            if stored is None or is_changed(group, stored):
                raise CommandError(
                    f'PodGroup "{name}" was changed or deleted while its pods were created, so '
                    "they may not run: check it, then run the command again"
                )

    async def _run_all(self, steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Run steps concurrently; after a failure start no more, and raise the first error."""
        gate = asyncio.Semaphore(_MAX_CONCURRENT)
        failed: list[CommandError | KubeError] = []

        async def one(step: Callable[[], Awaitable[None]]) -> None:
            async with gate:
                if failed:
                    return
                try:
                    await step()
                except (CommandError, KubeError) as error:
                    failed.append(error)

        await asyncio.gather(*(one(step) for step in steps))
        if failed:
            raise failed[0]


def _word(step: Action, before: str) -> str:
    if before == "replaced" or isinstance(step, Replace):
        return "replaced"
    return "changed" if isinstance(step, MergePatch) else "created"


def _body(document: Any) -> bytes:
    return json.dumps(document).encode()
