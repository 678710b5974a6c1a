"""What `rackgate uninstall` reads and writes, step by step; every step may be repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.kube import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.kube.installation import MARK
from rackgate.kube.resources import Resource
from rackgate.kube.uninstall import FINALIZER, at_once, without_finalizer
from rackgate.wire.core import Meta
from rackgate_assigner.uninstall import Report, release_all
from rackgate_assigner.uninstall_plan import Jobs
from rackgate_cli import playground as local_playground
from rackgate_cli.controlplane.components import SERVICES
from rackgate_cli.preflight import listed
from rackgate_cli.preflight_findings import OLD_NAMES, OURS, PART_OF
from rackgate_ungater.uninstall import gated_pods, release_pods

_LABEL: Final = f"{PART_OF}={OURS}"
_POLL_S: Final = 0.3
_KEPT_ROLES: Final = "rackgate-users:"
# What blocks users goes first: policies refuse, and webhooks are called.
_BLOCKING: Final = (
    kinds.ADMISSION_POLICY_BINDINGS,
    kinds.ADMISSION_POLICIES,
    kinds.MUTATING_CONFIGS,
    kinds.VALIDATING_CONFIGS,
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

Say = Callable[[str], None]


@dataclass
class Survey:
    """What there is before anything is done.

    Attributes:
        namespace: of the installation.
        running: managed jobs that are not suspended.
        waiting: managed jobs that are.
        gated: pods behind a gate of ours.
        counts: queues, flavors, topologies and Workloads, by kind.
        shared: what else lives in the namespace, which is kept then.
        acts: it is the installation that the cluster is marked with: what is held is its own.
    """

    namespace: str
    running: int = 0
    waiting: int = 0
    gated: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    acts: bool = True


@dataclass
class Done:
    """What was done, and what is left to do.

    Attributes:
        report: of jobs and finalizers.
        pods: that were released to the scheduler.
        deleted: objects of the installation.
        crds: that were deleted.
        left: what did not go in time, or was refused.
    """

    report: Report = field(default_factory=Report)
    pods: set[str] = field(default_factory=set)
    deleted: int = 0
    crds: int = 0
    left: list[str] = field(default_factory=list)


class Uninstalling:
    """One uninstall."""

    def __init__(self, client: Client, namespace: str, jobs: str, timeout_s: float) -> None:
        self._client, self._namespace = client, namespace
        self._acts = True
        self._jobs, self._timeout_s = Jobs(jobs), timeout_s

    @classmethod
    async def find(
        cls, client: Client, namespace: str | None, *, jobs: str, timeout_s: float
    ) -> Uninstalling:
        """The installation in `namespace`, by default the one that the cluster is marked with."""
        marks = await listed(
            client, kinds.CLUSTER_ROLE_BINDINGS, fieldSelector=f"metadata.name={MARK}"
        )
        subjects = marks[0].get("subjects") or () if marks else ()
        acting = next((one["namespace"] for one in subjects if one.get("namespace")), None)
        found = cls(client, namespace or acting or names.SYSTEM_NAMESPACE, jobs, timeout_s)
        found._acts = acting in (None, found._namespace)
        return found

    async def survey(self) -> Survey:
        """What there is; only reads."""
        found = Survey(self._namespace, shared=await self._shared(), acts=self._acts)
        if not self._acts:
            return found
        found.gated = await gated_pods(self._client)
        for kind in (kinds.JOBS, kinds.JOBSETS, kinds.RAY_CLUSTERS):
            for job in await self._found(kind, labelSelector=names.QUEUE_LABEL):
                if job["spec"].get("suspend"):
                    found.waiting += 1
                elif not _ended(job):
                    found.running += 1
        for kind in _QUEUES:
            found.counts[kind.kind] = len(await self._found(kind))
        return found

    async def run(
        self, *, delete_crds: bool, playground: str | None, local: bool, say: Say
    ) -> Done:
        """Do it all.

        Args:
            delete_crds: delete the kinds, too.
            playground: its folder, None for the default one.
            local: the services are processes of a playground.
            say: told of each step.
        """
        done = Done()
        say("policies and webhook configurations: nothing is refused or called any more")
        for kind in _BLOCKING:
            done.deleted += await self._delete(kind, await self._mine(kind))
        say("services: they stop")
        if local:
            for service in SERVICES:
                await asyncio.to_thread(local_playground.stop, playground, service)
        done.left += await self._stop_services(done)
        # Whatever still runs, on a node that does not answer perhaps, may write no more. The mark
        # stays to the end: it tells the next run whose the installation is.
        bindings = await self._mine(kinds.CLUSTER_ROLE_BINDINGS)
        rights = [one for one in bindings if _name(one) != MARK]
        done.deleted += await self._delete(kinds.CLUSTER_ROLE_BINDINGS, rights)
        if self._acts:
            say("jobs, Workloads, queues: what was held is given back")
            done.report = await release_all(
                self._client,
                system_namespace=self._namespace,
                jobs=self._jobs,
                patience_s=self._timeout_s,
            )
            released = await release_pods(self._client)
            done.pods = released.pods
            done.left += [f"Pod {pod} stays gated: {why}" for pod, why in released.gated.items()]
        done.left += [f"{label}: still stopping" for label in done.report.stopping]
        done.left += [f"{label}: {words}" for label, words in done.report.refused.items()]
        if delete_crds and self._acts:
            say("kinds: they are deleted with all their objects")
            done.crds = await self._delete_crds(done)
        say("roles, accounts, namespace")
        await self._delete_rest(done, users=delete_crds and self._acts)
        return done

    async def _stop_services(self, done: Done) -> list[str]:
        own = await self._labelled(kinds.DEPLOYMENTS)
        done.deleted += await self._delete(kinds.DEPLOYMENTS, own)

        async def gone() -> list[str]:
            pods = await self._labelled(kinds.PODS)
            return [f"Pod {self._namespace}/{_name(pod)} does not end" for pod in pods]

        return await self._until_empty(gone)

    async def _delete_crds(self, done: Done) -> int:
        crds = await listed(self._client, kinds.CRDS)
        own = [crd for crd in crds if crd["spec"]["group"] in (names.GROUP, names.OSMO_GROUP)]
        count = await self._delete(kinds.CRDS, own)

        async def gone() -> list[str]:
            wanted = {_name(crd) for crd in own}
            left = await listed(self._client, kinds.CRDS)
            return [f"CustomResourceDefinition {n}" for n in map(_name, left) if n in wanted]

        done.left += await self._until_empty(gone)
        return count

    async def _delete_rest(self, done: Done, *, users: bool) -> None:
        shared = await self._shared()
        for kind in _NAMESPACED:
            done.deleted += await self._delete(kind, await self._labelled(kind))
        done.deleted += await self._delete(kinds.SECRETS, await self._named(kinds.SECRETS))
        done.deleted += await self._delete(kinds.LEASES, await self._named(kinds.LEASES))
        if not shared:
            spaces = [
                one for one in await self._found(kinds.NAMESPACES) if _is(one, self._namespace)
            ]
            done.deleted += await self._delete(kinds.NAMESPACES, spaces)
        for kind in _RBAC:
            mine = [
                one
                for one in await self._mine(kind)
                if users or not _name(one).startswith(_KEPT_ROLES)
            ]
            done.deleted += await self._delete(kind, mine)

        async def gone() -> list[str]:
            left = [one for kind in _RBAC for one in await self._mine(kind)]
            found = [f"{one['kind']} {_name(one)}" for one in left if _leaves(one)]
            spaces = await self._found(kinds.NAMESPACES)
            if not shared:
                found += [f"Namespace {_name(n)}" for n in spaces if _is(n, self._namespace)]
            return found

        done.left += await self._until_empty(gone)

    async def _until_empty(self, look: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """Look until nothing is found; what still is at the end of the time."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._timeout_s
        while True:
            found = await look()
            if not found or clock() > until:
                return found
            await asyncio.sleep(_POLL_S)

    async def _found(self, kind: Resource, **params: str) -> list[dict[str, Any]]:
        """All objects of a kind; none where it is not served."""
        try:
            return await listed(self._client, kind, **params)
        except NotFoundError:
            return []

    async def _labelled(self, kind: Resource) -> list[dict[str, Any]]:
        """Objects of the installation in its namespace."""
        found = await self._found(kind, labelSelector=_LABEL)
        return [one for one in found if one["metadata"].get("namespace") == self._namespace]

    async def _named(self, kind: Resource) -> list[dict[str, Any]]:
        """Objects in the namespace that the services made: their names are ours."""
        found = await self._found(kind)
        return [
            one
            for one in found
            if one["metadata"].get("namespace") == self._namespace
            and _name(one).startswith("rackgate-")
        ]

    async def _mine(self, kind: Resource) -> list[dict[str, Any]]:
        """Cluster-wide objects of this installation: by label, and by name."""
        return [one for one in await self._found(kind, labelSelector=_LABEL) if self._owns(one)]

    def _owns(self, found: dict[str, Any]) -> bool:
        name = _name(found)
        if name == MARK:
            subjects = found.get("subjects") or ()
            return any(one.get("namespace") == self._namespace for one in subjects)
        return (
            name.endswith(f".{self._namespace}")
            or name.startswith(_KEPT_ROLES)
            or (name in OLD_NAMES and self._namespace == names.SYSTEM_NAMESPACE)
        )

    async def _shared(self) -> list[str]:
        """What others have in the namespace."""
        found = []
        for kind in (kinds.DEPLOYMENTS, kinds.JOBS, kinds.PODS):
            for one in await self._found(kind):
                labels = one["metadata"].get("labels") or {}
                if one["metadata"]["namespace"] == self._namespace and labels.get(PART_OF) != OURS:
                    found.append(f"{kind.kind} {_name(one)}")
        return found

    async def _delete(self, kind: Resource, found: Iterable[dict[str, Any]]) -> int:
        """Delete objects, our own finalizer taken off first; how many there were."""
        listed_ = list(found)

        async def one(item: dict[str, Any]) -> None:
            await self._delete_one(kind, item["metadata"])

        await at_once(one, listed_)
        return len(listed_)

    async def _delete_one(self, kind: Resource, metadata: dict[str, Any]) -> None:
        namespace = metadata.get("namespace") if kind.namespaced else None
        path = kind.path(namespace, metadata["name"])
        try:
            if FINALIZER in metadata.get("finalizers", ()):
                meta = Meta(uid=metadata["uid"], finalizers=tuple(metadata["finalizers"]))
                patch = without_finalizer(meta)
                if patch is not None:
                    await self._client.patch(path, patch, PatchType.JSON)
            await self._client.delete(
                path, json.dumps({"propagationPolicy": "Background"}).encode()
            )
        except (NotFoundError, ConflictError, UnprocessableError):
            return  # gone, or going: the end is waited for


def _name(found: dict[str, Any]) -> str:
    return str(found["metadata"]["name"])


def _is(found: dict[str, Any], name: str) -> bool:
    return _name(found) == name


def _leaves(found: dict[str, Any]) -> bool:
    return not _name(found).startswith(_KEPT_ROLES) or bool(
        found["metadata"].get("deletionTimestamp")
    )


def _ended(job: dict[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(
        one["type"] in ("Complete", "Completed", "Failed") and one["status"] == "True"
        for one in conditions
    )
