"""Only one installation acts in a cluster; the services of a second one exit.

The marker is the ClusterRoleBinding `rackgate`, the only cluster-scoped object whose name does not
include the namespace of its installation. It binds a role of that installation, and a roleRef is
immutable, so the API server rejects the marker of a second installation. A process of another
namespace exits with code 3 before it acts, also when the marker changes later. Two processes that
start at the same time read the same object, so at most one of them acts. Kueue would admit the same
Workloads; it is detected by its webhook configuration. Both objects are watched.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import CLUSTER_ROLE_BINDINGS, MUTATING_CONFIGS, Resource
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.service import ConflictingInstallationError
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, View

MARK: Final = "rackgate"
KUEUE_CONFIGURATION: Final = "kueue-mutating-webhook-configuration"
# New RBAC rules may take this long to become effective.
STARTUP_GRACE_S: Final = 10.0
DOCUMENTATION_HINT: Final = 'see "One installation per cluster" in docs/tasks/install.md'

log = structlog.get_logger()


class Subject(View, frozen=True):
    """A subject of a role binding."""

    kind: str = ""
    namespace: str = ""


class Marker(View, frozen=True):
    """The fields that are read of a ClusterRoleBinding or a webhook configuration."""

    metadata: Meta = Meta()
    subjects: tuple[Subject, ...] | None = None


def conflict(namespace: str, binding: Marker | None, kueue: Marker | None) -> str:
    """Why a service must not act in this cluster; "" if it may.

    Args:
        namespace: namespace of its installation.
        binding: the marker; None if there is none, which allows the service.
        kueue: Kueue's webhook configuration; None without Kueue.
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
        """Prepare for the installation in `namespace`; nothing is sent."""
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
        """Whether both objects were listed."""
        return self._binding.synced.is_set() and self._kueue.synced.is_set()

    def missing(self) -> list[str]:
        """Reasons why this service is not ready."""
        found = self._binding.missing()
        hint = (
            f"; ClusterRoleBinding {MARK} must name namespace {self._namespace}, "
            f"{DOCUMENTATION_HINT}"
        )
        return [f"{line}{hint}" for line in found] + self._kueue.missing()

    async def wait_until_sole(self) -> None:
        """Wait until it is known that there is no other installation."""
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
