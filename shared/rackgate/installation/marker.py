"""One installation acts in a cluster; a second one is told so, and ends.

The mark is the ClusterRoleBinding `rackgate`, the one cluster-wide object whose name does not carry
the namespace of its installation. What it binds is a role of that installation, and a roleRef never
changes: the API server refuses the mark of a second one. A process of another namespace ends with
exit code 3 before it acts, and so does one that runs already when the mark changes. Two that start
at once read the same object, so at most one of them acts. Kueue is known by its webhook
configuration: it would admit the same Workloads.

Both objects are watched, so that at rest nobody asks for them again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import CLUSTER_ROLE_BINDINGS, MUTATING_CONFIGS, Resource
from rackgate.kube.client import Client
from rackgate.kube.informer.informer import Informer
from rackgate.runtime.service import ConflictingInstallationError
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, View

MARK: Final = "rackgate"
KUEUE_CONFIGURATION: Final = "kueue-mutating-webhook-configuration"
# Rights that were granted a moment ago may take as long to hold.
STARTUP_GRACE_S: Final = 10.0
DOCUMENTATION_HINT: Final = 'see "One installation per cluster" in docs/tasks/install.md'

log = structlog.get_logger()


class Subject(View, frozen=True):
    """Who is granted a role."""

    kind: str = ""
    namespace: str = ""


class Marker(View, frozen=True):
    """What is read of a ClusterRoleBinding, and of a webhook configuration."""

    metadata: Meta = Meta()
    subjects: tuple[Subject, ...] | None = None


def conflict(namespace: str, binding: Marker | None, kueue: Marker | None) -> str:
    """Why a service must not act in this cluster, "" when it may. Pure.

    Args:
        namespace: of its own installation.
        binding: the mark as it is; None when there is none, which says nothing.
        kueue: Kueue's webhook configuration, None without Kueue.
    """
    if kueue is not None:
        return (
            "Kueue is installed in this cluster (MutatingWebhookConfiguration "
            f"{KUEUE_CONFIGURATION}) and would admit the same Workloads. Remove Kueue or "
            f"Rackgate: {DOCUMENTATION_HINT}"
        )
    subjects = (binding.subjects or ()) if binding is not None else ()
    named = {one.namespace for one in subjects if one.kind == "ServiceAccount"}
    others = ", ".join(sorted(named - {namespace}))
    if not others:
        return ""
    return (
        f"Rackgate is installed in namespace {others} (ClusterRoleBinding {MARK}), and this "
        f"service belongs to an installation in namespace {namespace}. Both would admit the same "
        f"Workloads. Remove one of the two: {DOCUMENTATION_HINT}"
    )


class Installation:
    """Whether a service may act in this cluster."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Prepare; nothing is sent.

        Args:
            client: its budget is charged for lists and watches.
            namespace: of the installation.
        """
        self._namespace = namespace
        self._changed = asyncio.Event()
        self._binding = self._informer(client, CLUSTER_ROLE_BINDINGS, MARK)
        self._kueue = self._informer(client, MUTATING_CONFIGS, KUEUE_CONFIGURATION)

    def _informer(self, client: Client, resource: Resource, name: str) -> Informer[Marker]:
        return Informer(
            client,
            resource,
            msgspec.json.Decoder(Marker).decode,
            on_upsert=lambda _before, _now: self._changed.set(),
            on_delete=lambda _gone: self._changed.set(),
            params={"fieldSelector": f"metadata.name={name}"},
        )

    @property
    def known(self) -> bool:
        """Whether both objects were looked for."""
        return self._binding.synced.is_set() and self._kueue.synced.is_set()

    def missing(self) -> list[str]:
        """What keeps this service from being ready."""
        found = self._binding.missing()
        hint = (
            f"; ClusterRoleBinding {MARK} must name namespace {self._namespace}, "
            f"{DOCUMENTATION_HINT}"
        )
        return [f"{line}{hint}" for line in found] + self._kueue.missing()

    async def wait_until_sole(self) -> None:
        """Wait until it is known that no other installation is there."""
        await self._binding.synced.wait()
        await self._kueue.synced.wait()
        self._check_conflict()

    async def run(self) -> None:
        """Follow both objects until cancelled.

        Raises:
            ConflictingInstallationError: this service must not act in this cluster.
        """
        async with asyncio.TaskGroup() as group:
            spawn(group, self._binding.run(), f"watch clusterrolebinding {MARK}")
            spawn(group, self._kueue.run(), f"watch {KUEUE_CONFIGURATION}")
            spawn(group, self._log_if_unknown(), "installation unknown")
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._check_conflict()

    def _check_conflict(self) -> None:
        binding = self._binding.store.get(MARK)
        kueue = self._kueue.store.get(KUEUE_CONFIGURATION)
        found = conflict(self._namespace, binding, kueue)
        if found:
            raise ConflictingInstallationError(found)

    async def _log_if_unknown(self) -> None:
        await asyncio.sleep(STARTUP_GRACE_S)
        if not self.known:
            log.error("installation_unknown", missing=self.missing())
