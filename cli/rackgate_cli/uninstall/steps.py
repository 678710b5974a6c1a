"""The steps of `rackgate uninstall`; every step may be repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.installation.marker import MARK
from rackgate.installation.uninstall import FINALIZER, remove_finalizer_patch, run_concurrently
from rackgate.jobframework.registry import KINDS
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.wire.core import Meta
from rackgate_assigner.uninstall.controller import UninstallReport, remove_finalizers, uninstall_all
from rackgate_assigner.uninstall.plan import RunningJobsPolicy
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.controlplane.binaries.versions import SERVICES
from rackgate_cli.playground import playground as local_playground
from rackgate_cli.preflight.findings import OURS, PART_OF
from rackgate_cli.uninstall.scope import FOREIGN_KINDS, Scope, name_of, scope_of
from rackgate_ungater.uninstall import gated_pods, release_pods

_LABEL: Final = f"{PART_OF}={OURS}"
_POLL_S: Final = 0.3
# First what can block users: policies, webhooks, and APIServices, without whose server no namespace
# can be deleted.
_BLOCKING: Final = (
    kinds.ADMISSION_POLICY_BINDINGS,
    kinds.ADMISSION_POLICIES,
    kinds.MUTATING_POLICY_BINDINGS,
    kinds.MUTATING_POLICIES,
    kinds.MUTATING_CONFIGS,
    kinds.VALIDATING_CONFIGS,
    kinds.API_SERVICES,
)
_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", True, "PodDisruptionBudget")
_NETWORK: Final = Resource("networking.k8s.io", "v1", "networkpolicies", True, "NetworkPolicy")
_NAMESPACED: Final = (
    _BUDGETS,
    _NETWORK,
    kinds.SERVICES,
    kinds.CONFIG_MAPS,
    kinds.ROLE_BINDINGS,
    kinds.ROLES,
    kinds.SERVICE_ACCOUNTS,
)
_RBAC: Final = (kinds.CLUSTER_ROLE_BINDINGS, kinds.CLUSTER_ROLES)
_QUEUES: Final = (
    kinds.WORKLOADS,
    kinds.LOCAL_QUEUES,
    kinds.CLUSTER_QUEUES,
    kinds.FLAVORS,
    kinds.TOPOLOGIES,
)

PrintLine = Callable[[str], None]


@dataclass
class InstallationSurvey:
    """What exists before anything is done.

    Attributes:
        namespace: of the installation.
        running: managed jobs that are not suspended.
        waiting: managed jobs that are suspended.
        gated: pods with a gate of Rackgate.
        counts: queues, flavors, topologies and Workloads, by kind.
        shared: objects of others in the namespace, which then stays.
        is_active: it manages the jobs, queues and CRDs of the cluster.
    """

    namespace: str
    running: int = 0
    waiting: int = 0
    gated: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    is_active: bool = True


@dataclass
class UninstallResult:
    """What was done, and what is left to do.

    Attributes:
        report: of jobs and finalizers.
        pods: pods that were ungated.
        deleted: objects of the installation.
        crds: that were deleted.
        left: what was not deleted in time, or was rejected.
    """

    report: UninstallReport = field(default_factory=UninstallReport)
    pods: set[str] = field(default_factory=set)
    deleted: int = 0
    crds: int = 0
    left: list[str] = field(default_factory=list)


class Uninstaller:
    """One uninstall."""

    def __init__(self, client: Client, scope: Scope, jobs: str, timeout_s: float) -> None:
        self._client, self._scope, self._namespace = client, scope, scope.namespace
        self._jobs, self._timeout_s = RunningJobsPolicy(jobs), timeout_s

    @classmethod
    async def find(
        cls, client: Client, namespace: str | None, *, jobs: str, timeout_s: float
    ) -> Uninstaller:
        """The installation in `namespace`, by default the active one.

        Raises:
            UsageError: several namespaces may be meant, and none is named.
        """
        bindings = await list_objects(client, kinds.CLUSTER_ROLE_BINDINGS)
        roles = await list_objects(client, kinds.CLUSTER_ROLES, labelSelector=_LABEL)
        return cls(client, scope_of(namespace, bindings, roles), jobs, timeout_s)

    async def survey(self) -> InstallationSurvey:
        """What exists; only reads."""
        found = InstallationSurvey(
            self._namespace, shared=await self._shared(), is_active=self._scope.is_active
        )
        if not self._scope.is_active:
            return found
        found.gated = await gated_pods(self._client)
        for job_kind in KINDS.values():
            for job in await self._found(job_kind.resource, labelSelector=names.QUEUE_LABEL):
                if job["spec"].get("suspend"):
                    found.waiting += 1
                elif not _has_ended(job):
                    found.running += 1
        for kind in _QUEUES:
            found.counts[kind.kind] = len(await self._found(kind))
        return found

    async def run(
        self, *, delete_crds: bool, playground: str | None, local: bool, say: PrintLine
    ) -> UninstallResult:
        """Run all steps.

        Args:
            delete_crds: delete the CRDs, too.
            playground: its folder, None for the default one.
            local: the services are processes of a playground.
            say: called with a line for each step.
        """
        done = UninstallResult()
        say("delete admission policies, webhook configurations and APIServices")
        for kind in _BLOCKING:
            done.deleted += await self._delete(kind, await self._owned(kind))
        say("stop the services")
        if local:
            for service in SERVICES:
                await asyncio.to_thread(local_playground.stop, playground, service)
        done.left += await self._stop_services(done)
        # A service that still runs, for example on an unreachable node, can no longer write.
        # The marker stays to the end: it names the installation for the next run.
        bindings = await self._to_delete(kinds.CLUSTER_ROLE_BINDINGS, delete_crds=False)
        rights = [one for one in bindings if name_of(one) != MARK]
        done.deleted += await self._delete(kinds.CLUSTER_ROLE_BINDINGS, rights)
        if self._scope.is_active:
            say("restore jobs, release Workloads and queues")
            done.report = await uninstall_all(
                self._client,
                system_namespace=self._namespace,
                jobs=self._jobs,
                stop_timeout_s=self._timeout_s,
            )
            # From Kueue, before Rackgate: no controller is left to remove their finalizer.
            await remove_finalizers(self._client, kinds.ADMISSION_CHECKS, done.report)
            released = await release_pods(self._client)
            done.pods = released.pods
            done.left += [f"Pod {pod} stays gated: {why}" for pod, why in released.gated.items()]
        done.left += [f"{label}: still stopping" for label in done.report.stopping]
        done.left += [f"{label}: {words}" for label, words in done.report.failed.items()]
        if delete_crds and self._scope.is_active:
            say("delete the CRDs with all their objects")
            done.crds = await self._delete_crds(done)
        say("delete roles, accounts and namespace")
        await self._delete_rest(done, delete_crds=delete_crds)
        return done

    async def _stop_services(self, done: UninstallResult) -> list[str]:
        own = await self._labelled(kinds.DEPLOYMENTS)
        done.deleted += await self._delete(kinds.DEPLOYMENTS, own)

        async def gone() -> list[str]:
            pods = await self._labelled(kinds.PODS)
            return [f"Pod {self._namespace}/{name_of(pod)} does not end" for pod in pods]

        return await self._until_empty(gone)

    async def _delete_crds(self, done: UninstallResult) -> int:
        crds = await list_objects(self._client, kinds.CRDS)
        groups = (names.GROUP, names.OSMO_GROUP, names.GANG_GROUP)
        own = [crd for crd in crds if crd["spec"]["group"] in groups]
        count = await self._delete(kinds.CRDS, own)

        async def gone() -> list[str]:
            wanted = {name_of(crd) for crd in own}
            left = await list_objects(self._client, kinds.CRDS)
            return [f"CustomResourceDefinition {n}" for n in map(name_of, left) if n in wanted]

        done.left += await self._until_empty(gone)
        return count

    async def _delete_rest(self, done: UninstallResult, *, delete_crds: bool) -> None:
        shared = await self._shared()
        for kind in _NAMESPACED:
            done.deleted += await self._delete(kind, await self._labelled(kind))
        for kind in (kinds.SECRETS, kinds.LEASES):
            there = await self._in_namespace(kind)
            made = [one for one in there if self._scope.is_created_by_services(kind, one)]
            done.deleted += await self._delete(kind, made)
        if not shared:
            done.deleted += await self._delete(kinds.NAMESPACES, await self._read_namespace())
        readers = await self._owned(kinds.ROLE_BINDINGS)
        outside = [one for one in readers if one["metadata"]["namespace"] == "kube-system"]
        done.deleted += await self._delete(kinds.ROLE_BINDINGS, outside)
        for kind in _RBAC:
            going = await self._to_delete(kind, delete_crds=delete_crds)
            done.deleted += await self._delete(kind, going)

        async def gone() -> list[str]:
            left = [
                f"{kind.kind} {name_of(one)}"
                for kind in _RBAC
                for one in await self._to_delete(kind, delete_crds=delete_crds)
            ]
            spaces = [] if shared else await self._read_namespace()
            return left + [f"Namespace {name_of(one)}" for one in spaces]

        done.left += await self._until_empty(gone)

    async def _until_empty(self, look: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """Poll until no object is found; returns those left after the timeout."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._timeout_s
        while True:
            found = await look()
            if not found or clock() > until:
                return found
            await asyncio.sleep(_POLL_S)

    async def _found(
        self, kind: Resource, client: Client | None = None, **params: str
    ) -> list[dict[str, Any]]:
        """All objects of a kind; none if it is not served."""
        try:
            return await list_objects(client or self._client, kind, **params)
        except NotFoundError:
            return []

    async def _labelled(self, kind: Resource) -> list[dict[str, Any]]:
        """Objects of the installation in its namespace."""
        found = await self._found(kind, labelSelector=_LABEL)
        return [one for one in found if one["metadata"].get("namespace") == self._namespace]

    async def _in_namespace(self, kind: Resource) -> list[dict[str, Any]]:
        """Metadata of all objects of a kind in the namespace."""
        return await self._found(kind, self._client.metadata_only(), namespace=self._namespace)

    async def _read_namespace(self) -> list[dict[str, Any]]:
        """The namespace, unless it is gone."""
        return await self._found(kinds.NAMESPACES, fieldSelector=f"metadata.name={self._namespace}")

    async def _owned(self, kind: Resource) -> list[dict[str, Any]]:
        """Cluster-wide objects of this installation."""
        found = await self._found(kind, labelSelector=_LABEL)
        return [one for one in found if self._scope.owns(one)]

    async def _to_delete(self, kind: Resource, *, delete_crds: bool) -> list[dict[str, Any]]:
        """Cluster-wide objects of this installation that do not stay."""
        return [
            one
            for one in await self._owned(kind)
            if not self._scope.is_kept(one, delete_crds=delete_crds)
        ]

    async def _shared(self) -> list[str]:
        """Objects of others in the namespace."""
        return [
            f"{kind.kind} {name_of(one)}"
            for kind in FOREIGN_KINDS
            for one in await self._in_namespace(kind)
            if self._scope.is_foreign(kind, one)
        ]

    async def _delete(self, kind: Resource, found: Iterable[dict[str, Any]]) -> int:
        """Delete objects without waiting for Rackgate's finalizer; returns their number."""
        listed_ = list(found)

        async def one(item: dict[str, Any]) -> None:
            await self._delete_one(kind, item["metadata"])

        await run_concurrently(one, listed_)
        return len(listed_)

    async def _delete_one(self, kind: Resource, metadata: dict[str, Any]) -> None:
        namespace = metadata.get("namespace") if kind.namespaced else None
        path = kind.path(namespace, metadata["name"])
        try:
            if FINALIZER in metadata.get("finalizers", ()):
                meta = Meta(uid=metadata["uid"], finalizers=tuple(metadata["finalizers"]))
                patch = remove_finalizer_patch(meta)
                if patch is not None:
                    await self._client.patch(path, patch, PatchType.JSON)
            await self._client.delete(
                path, json.dumps({"propagationPolicy": "Background"}).encode()
            )
        except (NotFoundError, ConflictError, UnprocessableError):
            return  # gone, or being deleted; `_until_empty` waits


def _has_ended(job: dict[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(
        one["type"] in ("Complete", "Completed", "Failed") and one["status"] == "True"
        for one in conditions
    )
