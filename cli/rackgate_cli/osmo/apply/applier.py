"""Writes the objects of a workflow to a cluster; may die anywhere and be called again.

Each object is read, judged and written in a loop: a write is bound to the version that was
judged, and whatever happened in between is looked at anew. docs/design/races/osmo.md tells the
rest.
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
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply.plan import (
    Action,
    Create,
    MergePatch,
    Object,
    Reject,
    Replace,
    Unchanged,
    WaitForDeletion,
    is_changed,
    live_pods,
    plan_pod,
    plan_pod_group,
    plan_topology,
    with_hash_annotation,
    with_missing_level,
)
from rackgate_cli.osmo.apply.pod_replacer import PodReplacer, list_objects
from rackgate_cli.osmo.apply.preconditions import topologies_of

MANAGER: Final = "rackgate-osmo"
TRIES: Final = 8
GONE_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.2
_MAX_CONCURRENT: Final = 16
_NAMED: Final = 5

Judge: TypeAlias = Callable[[Object | None], Awaitable[Action]]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one object: created, changed, replaced, deleted or unchanged."""

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
    """What was done so far, in order, and what its user should know."""

    results: list[Result] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Applier:
    """Brings the objects of one workflow to one cluster."""

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
            outcome: grows while objects are settled; after an error it tells what was done.
            dry_run: send every write as one that the server only tries.
            replacing: delete the pods of groups that cannot be changed as they are.
        """
        self._client, self._namespace, self._dry_run = client, namespace, dry_run
        self._params = {"fieldValidation": "Strict", "fieldManager": MANAGER}
        if dry_run:
            self._params["dryRun"] = "All"
        self._outcome, self._replacing = outcome, replacing
        self._deleted_names: frozenset[str] = frozenset()

    async def apply(
        self, topology: Object | None, groups: Sequence[Object], pods: Sequence[Object]
    ) -> None:
        """Write the Topology, then PodGroups, then pods: each needs those before it.

        Nothing is written when one of them would be refused as things are.

        Args:
            topology: None for a pool without keys; then none is touched.
            groups: PodGroups.
            pods: of those groups.

        Raises:
            CommandError: an object is refused, or does not become as it should.
            KubeError: the cluster cannot be read.
        """
        pods = [with_hash_annotation(pod) for pod in pods]
        if self._replacing:
            await self._clear(groups, pods)
        there = await self._check_rejected(groups, pods)
        if topology is not None:
            await self._topology(topology, groups)
        await self._run_all(partial(self._group, group) for group in groups)
        await self._run_all(partial(self._pod, pod, there) for pod in pods)
        made = {done.result for done in self._outcome.results if done.kind == "Pod"}
        if made & {"created", "replaced"} and not self._dry_run:
            await self._check_groups(groups)

    async def _clear(self, groups: Sequence[Object], pods: Sequence[Object]) -> None:
        replacing = PodReplacer(self._client, self._namespace, self._params, self._dry_run)
        try:
            await replacing.clear(groups, pods)
        finally:
            self._deleted_names = frozenset(replacing.deleted)
            self._outcome.results += [
                Result("Pod", self._namespace, name, "deleted") for name in replacing.deleted
            ]

    # -- one object ------------------------------------------------------------------------

    async def _reconcile(
        self,
        kind: Resource,
        wanted: Object,
        judge: Judge,
        known: Sequence[Object | None] = (),
    ) -> None:
        """Read, judge, write, until the object is as it should be.

        Args:
            kind: of the object.
            wanted: as it should be.
            judge: decides from what is stored.
            known: what was read of it already, so that the first look needs no request.

        Raises:
            CommandError: refused, by `judge` or by the server; or it keeps changing.
        """
        name = wanted["metadata"]["name"]
        result = Result(kind.kind, self._namespace if kind.namespaced else None, name, "")
        word, note, last = "", "", None
        for attempt in range(TRIES):
            stored = known[0] if known and not attempt else await self._read(kind, name)
            step = await judge(stored)
            if isinstance(step, Unchanged):
                self._done(result, word or "unchanged", note)
                return
            if isinstance(step, Reject):
                raise CommandError(f"{result.label} stays as it is: {step.message}")
            if isinstance(step, WaitForDeletion):
                await self._wait_deleted(kind, name, result)
                continue
            last = await self._attempt(kind, wanted, step, result)
            if last is None or isinstance(last, TransportError):
                # Without an answer it may have been done; then the next look finds it so.
                word, note = _word(step, word), note or getattr(step, "note", "")
            if last is None and (self._dry_run or not isinstance(step, Replace)):
                self._done(result, word, note)
                return
        why = f": {last}" if last is not None else ""
        raise CommandError(f"{result.label} could not be written in {TRIES} tries{why}")

    async def _attempt(
        self, kind: Resource, wanted: Object, step: Action, result: Result
    ) -> KubeError | None:
        """Send a write; returns the error after which the object is to be looked at again.

        Raises:
            CommandError: the server refuses the object.
        """
        try:
            await self._write(kind, wanted, step)
        except NotFoundError as error:
            if isinstance(step, Create):
                raise _rejected_error(result, error) from error  # there is no such namespace
            return error
        except (ConflictError, TransportError) as error:
            return error
        except KubeError as error:
            raise _rejected_error(result, error) from error
        return None

    def _done(self, result: Result, word: str, note: str) -> None:
        done = Result(result.kind, result.namespace, result.name, word, note)
        if result.kind == "Pod" and result.name in self._deleted_names:
            done = replace(done, result="replaced")
            gone = replace(done, result="deleted")
            self._outcome.results.remove(gone)
        self._outcome.results.append(done)

    async def _write(self, kind: Resource, wanted: Object, step: Action) -> None:
        namespace = self._namespace if kind.namespaced else None
        path = kind.path(namespace, wanted["metadata"]["name"])
        if isinstance(step, Create) and self._dry_run and self._is_deleted(kind, wanted):
            await self._dry_run_create(kind, wanted)
        elif isinstance(step, Create):
            await self._client.create(kind.path(namespace), _body(wanted), self._params)
        elif isinstance(step, MergePatch):
            await self._client.patch(path, _body(step.patch), PatchType.MERGE, self._params)
        elif isinstance(step, Replace):
            if self._dry_run:
                await self._dry_run_create(kind, wanted)
            options: Object = {"preconditions": dict(step.preconditions)}
            if self._dry_run:
                # In the body: where there is one, the server does not look at the query.
                options["dryRun"] = ["All"]
            await self._client.delete(path, _body(options))

    async def _dry_run_create(self, kind: Resource, wanted: Object) -> None:
        """Let the server judge an object whose name is taken until the old one is deleted."""
        metadata = {**wanted["metadata"], "generateName": "rackgate-dry-run-"}
        del metadata["name"]
        namespace = self._namespace if kind.namespaced else None
        await self._client.create(
            kind.path(namespace), _body({**wanted, "metadata": metadata}), self._params
        )

    def _is_deleted(self, kind: Resource, item: Object) -> bool:
        return kind == kinds.PODS and item["metadata"]["name"] in self._deleted_names

    async def _pods(self) -> list[Object]:
        """Pods of the namespace; in a dry run without those that would be gone by now."""
        found = await list_objects(self._client, kinds.PODS.path(self._namespace))
        gone = self._deleted_names if self._dry_run else frozenset()
        return [pod for pod in found if pod["metadata"]["name"] not in gone]

    async def _read(self, kind: Resource, name: str) -> Object | None:
        path = kind.path(self._namespace if kind.namespaced else None, name)
        try:
            found: Object = json.loads(await self._client.get(path))
        except NotFoundError:
            return None
        return found

    async def _wait_deleted(self, kind: Resource, name: str, result: Result) -> None:
        """Wait until an object that is being deleted is gone.

        Raises:
            CommandError: it stays, or this is a dry run, in which nothing is waited for.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (0.0 if self._dry_run else GONE_LIMIT_S)
        while True:
            found = await self._read(kind, name)
            if found is None or not found["metadata"].get("deletionTimestamp"):
                return
            if loop.time() >= deadline:
                waiting = ", ".join(found["metadata"].get("finalizers") or ()) or "its deletion"
                raise CommandError(f"{result.label} is being deleted, held by {waiting}: try again")
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
            found = with_missing_level(
                topology, await list_objects(self._client, kinds.KAI_POD_GROUPS.path())
            )
        except ForbiddenError:
            self._outcome.warnings.append(
                "PodGroups of other namespaces may not be listed: whether one uses a level that "
                "goes away is not known"
            )
            return
        left = [name for name in found if name not in own]
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            self._outcome.warnings.append(
                f"PodGroups {', '.join(left[:_NAMED])}{more} use a level that goes away: what runs "
                "of them stays, what does not will not be scheduled"
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
        known = [there.get(wanted["metadata"]["name"])]

        async def judge(stored: Object | None) -> Action:
            return plan_pod(wanted, stored)

        await self._reconcile(kinds.PODS, wanted, judge, known)

    async def _check_rejected(
        self, groups: Sequence[Object], pods: Sequence[Object]
    ) -> dict[str, Object]:
        """Reject, before anything is written, what would be refused as things are.

        Returns:
            Those of the pods that are there, by name.

        Raises:
            CommandError: all that would be refused.
        """
        refused: dict[str, str] = {}

        async def look(group: Object) -> None:
            stored = await self._read(kinds.KAI_POD_GROUPS, group["metadata"]["name"])
            step = await self._group_judge(group)(stored)
            if isinstance(step, Reject):
                refused[f'PodGroup "{group["metadata"]["name"]}"'] = step.message

        await self._run_all(partial(look, group) for group in groups)
        names = {pod["metadata"]["name"] for pod in pods}
        there = {
            pod["metadata"]["name"]: pod
            for pod in (await self._pods() if pods else ())
            if pod["metadata"]["name"] in names
        }
        for pod in pods:
            step = plan_pod(pod, there.get(pod["metadata"]["name"]))
            if isinstance(step, Reject):
                refused[f'Pod "{pod["metadata"]["name"]}"'] = step.message
        if refused:
            # Groups before pods: they say why.
            warned = sorted(
                refused.items(), key=lambda one: (not one[0].startswith("PodGroup"), one)
            )
            lines = [f"{label}: {message}" for label, message in warned]
            more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
            raise CommandError("\n  ".join(["nothing is written:", *lines[:_NAMED], *more]))
        return there

    async def _check_groups(self, groups: Sequence[Object]) -> None:
        """Tell when a PodGroup took another shape while its pods were made.

        Raises:
            CommandError: one did.
        """
        for group in groups:
            name = group["metadata"]["name"]
            stored = await self._read(kinds.KAI_POD_GROUPS, name)
            if stored is None or is_changed(group, stored):
                raise CommandError(
                    f'PodGroup "{name}" was changed or deleted by somebody else while its pods '
                    "were made, which may keep them from running: look at it, then apply again"
                )

    async def _run_all(self, steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Take steps side by side; after a failure none is begun.

        Raises:
            CommandError: as the first that failed.
            KubeError: the same.
        """
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


def _rejected_error(result: Result, error: KubeError) -> CommandError:
    return CommandError(f"{result.label} is refused: {error.message or error}")


def _body(document: Any) -> bytes:
    return json.dumps(document).encode()
