"""Native PodGroups: each is made before the first pod of its gang is released, for one run.

Pods that name a PodGroup are not scheduled until it exists, so it is made last: a gang that is not
complete takes no place, and needs none. Any step may be repeated:

    PodGroup made, no pod released    -> it exists already, and is ours
    run over, PodGroup not deleted    -> deleted at the next look at the Workload
    PodGroup lost while pods wait     -> made again
    deleted, but pods of the next run name it already, so it stays -> it works, and is used

A PodGroup of this name that belongs to anybody else is left alone, and the pods are released: their
PodGroup exists, and it is not for Rackgate to judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
import structlog

from rackgate.gang.native.adapter import Adapter, decode_pod_group
from rackgate.gang.native.model import ObservedPodGroup, PodGroup
from rackgate.kube.client import Client, Deadline
from rackgate.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.kube.native_groups import NativeGroups
from rackgate.runtime import clock
from rackgate_ungater import metrics
from rackgate_ungater.state_machine.gangs import NeededGroup
from rackgate_ungater.state_machine.gated_objects import GatedWorkload, WorkloadKey
from rackgate_ungater.state_machine.ungating_plan import Report

_REJECTED: Final = (ForbiddenError, UnprocessableError, BadRequestError, PayloadTooLargeError)

log = structlog.get_logger()


class Outcome(StrEnum):
    """Whether a PodGroup exists now; values of the metric."""

    CREATED = "created"
    EXISTS = "exists"
    TAKEN = "taken"
    REJECTED = "rejected"
    FAILED = "failed"


_MAY_RELEASE: Final = (Outcome.CREATED, Outcome.EXISTS, Outcome.TAKEN)


@dataclass(frozen=True, slots=True)
class Ensured:
    """What became of the PodGroups that gangs need.

    Attributes:
        held: UIDs of the pods that must not be released now.
        failures: PodGroups to be tried again.
        reports: what users should know.
    """

    held: frozenset[str] = frozenset()
    failures: int = 0
    reports: tuple[Report, ...] = ()


class NativeGroupsController:
    """Makes and deletes the PodGroups of the gangs of this replica."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        on_change: Callable[[WorkloadKey], None],
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: for all requests.
            namespace: of the installation, for dry runs.
            on_change: called with the Workload whose PodGroup appeared, is gone, or is deleted.
        """
        self._client, self._on_change = client, on_change
        self._served = NativeGroups(
            client, on_change=self._group_changed, probe_namespace=namespace
        )
        self._by_owner: dict[str, dict[str, ObservedPodGroup]] = {}  # by UID, then by key
        self._wanted: dict[str, WorkloadKey] = {}  # by key of a PodGroup
        metrics.NATIVE_GROUPS.set_function(lambda: sum(map(len, self._by_owner.values())))

    async def run(self) -> None:
        """Watch the PodGroups, if there are any, until cancelled."""
        await self._served.run()

    def outdated(self, workload_uid: str, run: str) -> list[ObservedPodGroup]:
        """PodGroups of a Workload that are not of its present run and not deleted yet.

        Args:
            workload_uid: of the Workload.
            run: present run, "" if it is not admitted.
        """
        groups = self._by_owner.get(workload_uid, {}).values()
        return [group for group in groups if group.run != run and not group.terminating]

    def forget(self, workload: GatedWorkload) -> None:
        """The Workload is gone; its PodGroups go with it."""
        for key in [key for key, user in self._wanted.items() if user == workload.key]:
            del self._wanted[key]

    async def ensure(
        self, workload: GatedWorkload, needed: Sequence[NeededGroup], deadline: Deadline
    ) -> Ensured:
        """Make the PodGroups that gangs need.

        Args:
            workload: that has the quota.
            needed: of its gangs.
            deadline: monotonic seconds; after it, no request is sent.
        """
        if not self._served.checked.is_set():
            return Ensured(frozenset(uid for one in needed for uid in one.pods), len(needed))
        adapter = self._served.adapter
        if adapter is None:
            return Ensured()
        held: set[str] = set()
        failures, reports = 0, []
        for one in needed:
            if one.foreign:
                reports.append(_foreign_report(one))
            if one.group is None:
                continue
            self._wanted[one.group.key] = workload.key
            known = self._served.store.get(one.group.key)
            if known is not None and known.is_of(workload.uid, one.group.run):
                continue
            outcome, report = await self._create(adapter, one.gang, one.group, deadline)
            metrics.NATIVE_GROUP_REQUESTS.labels(outcome).inc()
            if outcome not in _MAY_RELEASE:
                held |= one.pods
                failures += 1
            if report is not None:
                reports.append(report)
        return Ensured(frozenset(held), failures, tuple(reports))

    async def delete(self, group: ObservedPodGroup) -> bool:
        """Delete a PodGroup, which works until its last pod is gone; False to be tried again."""
        adapter = self._served.adapter
        if adapter is None:
            return True
        body = msgspec.json.encode({"preconditions": {"uid": group.uid}})
        try:
            await self._client.delete(adapter.resource.path(group.namespace, group.name), body)
        except (NotFoundError, ConflictError):
            return True
        except KubeError as error:
            log.warning("native_group_not_deleted", group=group.key, error=str(error))
            return False
        log.info("native_group_deleted", group=group.key, run=group.run)
        return True

    async def _create(
        self, adapter: Adapter, gang: str, group: PodGroup, deadline: Deadline
    ) -> tuple[Outcome, Report | None]:
        """Create it, or find out that it exists; and what users should know."""
        if clock.monotonic() >= deadline():
            return Outcome.FAILED, None
        try:
            await self._client.create(adapter.resource.path(group.namespace), adapter.body(group))
        except AlreadyExistsError:
            return await self._existing(adapter, gang, group)
        except _REJECTED as error:
            log.warning("native_group_rejected", group=group.key, error=str(error))
            message = f"pods stay gated: PodGroup {group.name}: {error.message}"
            return Outcome.REJECTED, Report("NativeGroupRejected", gang, message)
        except KubeError as error:
            if isinstance(error, NotFoundError):
                self._served.check_soon()
            log.warning("native_group_failed", group=group.key, error=str(error))
            return Outcome.FAILED, None
        log.info("native_group_created", group=group.key, min_count=group.min_count, run=group.run)
        return Outcome.CREATED, None

    async def _existing(
        self, adapter: Adapter, gang: str, group: PodGroup
    ) -> tuple[Outcome, Report | None]:
        path = adapter.resource.path(group.namespace, group.name)
        try:
            found = decode_pod_group(await self._client.get(path))
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("native_group_failed", group=group.key, error=str(error))
            return Outcome.FAILED, None
        if found.is_of(group.owner.uid, group.run):
            return Outcome.EXISTS, None
        if not found.run or found.owner_uid != group.owner.uid:
            message = f"PodGroup {group.name} is not of this job: Rackgate leaves it alone"
            return Outcome.TAKEN, Report("NativeGroupTaken", gang, message)
        # Of an earlier run. The pods of this one name it, so it stays until they are gone.
        if not found.terminating:
            await self.delete(found)
            return Outcome.FAILED, None
        if found.min_count == group.min_count:
            return Outcome.EXISTS, None
        message = f"pods stay gated: PodGroup {group.name} of an earlier run is not deleted yet"
        return Outcome.FAILED, Report("NativeGroupFailed", gang, message)

    def _group_changed(
        self, before: ObservedPodGroup | None, after: ObservedPodGroup | None
    ) -> None:
        for group, is_known in ((before, False), (after, True)):
            if group is None or not group.run:
                continue
            own = self._by_owner.setdefault(group.owner_uid, {})
            if is_known:
                own[group.key] = group
            else:
                own.pop(group.key, None)
            if not own:
                del self._by_owner[group.owner_uid]
        group = after or before
        if group is None or (before is not None and after is not None and _same(before, after)):
            return
        users = {self._wanted.get(group.key)}
        if group.run:
            users.add(WorkloadKey(f"{group.namespace}/{group.owner_name}"))
        for user in users:
            if user is not None:
                self._on_change(user)


def _same(one: ObservedPodGroup, other: ObservedPodGroup) -> bool:
    """Whether only what kube-scheduler says differs."""
    return (one.uid, one.run, one.terminating) == (other.uid, other.run, other.terminating)


def _foreign_report(needed: NeededGroup) -> Report:
    names = ", ".join(needed.foreign[:3])
    message = f"pods of gang {needed.gang} are in PodGroups of another controller: {names}"
    return Report("NativeGroupForeign", needed.gang, message)
