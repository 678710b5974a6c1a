"""Which objects belong to an installation, which of them stay, and which belong to others.

The cluster's marker names the active installation. `kubectl delete` removes the marker at once,
while the roles and bindings of active services stay until these have cleaned up; then the roles and
bindings identify it. Only cluster-wide objects count: in a namespace any user may create objects
with the labels of Rackgate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.installation.marker import MARK
from rackgate.installation.uninstall import FINALIZER
from rackgate_cli.cluster.roles import is_for_people
from rackgate_cli.errors import UsageError
from rackgate_cli.preflight.findings import OLD_NAMES, OURS, PART_OF
from rackgate_ungater.shards.handover import MEMBERS_LEASE, SHARDS, lease_name

Object = Mapping[str, Any]

_ENDING: Final = "rackgate-uninstall"
_SERVICE: Final = re.compile(r"rackgate-(?:assigner|ungater|webhook)\.(?P<namespace>.+)")
_REST: Final = re.compile(r"rackgate(?:-[^.]+)?\.(?P<namespace>.+)")

DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", True, "DaemonSet")
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", True, "CronJob")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", True, "PersistentVolumeClaim")
# Kinds of objects that others may have in the namespace.
FOREIGN_KINDS: Final = (
    kinds.DEPLOYMENTS,
    kinds.STATEFUL_SETS,
    DAEMON_SETS,
    kinds.JOBS,
    CRON_JOBS,
    kinds.PODS,
    CLAIMS,
    kinds.SECRETS,
    kinds.CONFIG_MAPS,
    kinds.SERVICES,
)
# Objects without labels: the certificate (of the webhook or cert-manager), and Leases.
CREATED_BY_SERVICES: Final[Mapping[Resource, frozenset[str]]] = {
    kinds.SECRETS: frozenset(
        {
            *("rackgate-webhook-tls", "rackgate-webhook-ca", "rackgate-webhook-certificate"),
            "rackgate-visibility-tls",
        }
    ),
    kinds.LEASES: frozenset(
        {"rackgate-assigner", MEMBERS_LEASE, *(lease_name(shard) for shard in range(SHARDS))}
    ),
}
# What Kubernetes creates in every namespace.
_EVERYWHERE: Final = frozenset({(kinds.CONFIG_MAPS, "kube-root-ca.crt")})
# Tokens of these accounts do not keep the namespace.
_TOKEN_OF: Final = "kubernetes.io/service-account.name"  # noqa: S105 - an annotation
_ACCOUNTS: Final = frozenset(
    {"default", "rackgate-assigner", "rackgate-ungater", "rackgate-webhook"}
)


def name_of(found: Object) -> str:
    """The name of an object."""
    return str(found["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Scope:
    """One installation.

    Attributes:
        namespace: of the installation.
        is_active: it manages the jobs, queues and CRDs of the cluster.
        old_names: cluster-wide objects whose names have no namespace belong to it, too.
    """

    namespace: str
    is_active: bool = True
    old_names: bool = False

    def owns(self, found: Object) -> bool:
        """Whether a cluster-wide object with Rackgate's label belongs to this installation."""
        name = name_of(found)
        if name == MARK:
            return self.namespace in _subjects(found)
        return (
            name.endswith(f".{self.namespace}")
            or is_for_people(name)
            or _served_from(found) == self.namespace
            or (self.old_names and name in OLD_NAMES)
        )

    def is_kept(self, found: Object, *, delete_crds: bool) -> bool:
        """Whether a role or binding stays, with the CRDs or because others use it."""
        if self.is_active and delete_crds:
            return False
        name = name_of(found)
        return is_for_people(name) or (self.is_active and name == f"{_ENDING}.{self.namespace}")

    def is_created_by_services(self, kind: Resource, found: Object) -> bool:
        """Whether an object of the namespace was created by the services."""
        return name_of(found) in CREATED_BY_SERVICES.get(kind, ())

    def is_foreign(self, kind: Resource, found: Object) -> bool:
        """Whether an object of the namespace belongs to others, so that the namespace stays."""
        metadata = found["metadata"]
        token_of = (metadata.get("annotations") or {}).get(_TOKEN_OF)
        return not (
            (metadata.get("labels") or {}).get(PART_OF) == OURS
            or metadata.get("deletionTimestamp")
            or self.is_created_by_services(kind, found)
            or (kind, name_of(found)) in _EVERYWHERE
            or (kind == kinds.SECRETS and token_of in _ACCOUNTS)
        )


def scope_of(chosen: str | None, bindings: Iterable[Object], roles: Iterable[Object]) -> Scope:
    """The installation to remove.

    Args:
        chosen: its namespace as the user named it; None to find it.
        bindings: all ClusterRoleBindings.
        roles: all ClusterRoles.

    Raises:
        UsageError: several namespaces may be meant, and none is named.
    """
    bindings, roles = list(bindings), list(roles)
    marked = {one for found in bindings if name_of(found) == MARK for one in _subjects(found)}
    ours = [one for one in (*bindings, *roles) if _is_ours(one)]
    old_ones = (one for one in bindings if _is_ours(one) and name_of(one) in OLD_NAMES)
    old = {subject for found in old_ones for subject in _subjects(found)}
    finalized = (one for one in ours if FINALIZER in (one["metadata"].get("finalizers") or ()))
    held = _namespaces(_SERVICE, finalized)
    named = _namespaces(_SERVICE, ours) | old
    acting = marked or held or named
    signs = (acting, _namespaces(_REST, ours), {names.SYSTEM_NAMESPACE})
    namespace = chosen or _only(next(found for found in signs if found))
    return Scope(
        namespace,
        is_active=not acting or namespace in acting,
        old_names=namespace in old if old else not acting or namespace in acting,
    )


def _only(found: set[str]) -> str:
    if len(found) > 1:
        raise UsageError(
            f"Rackgate is, or was, installed in the namespaces {', '.join(sorted(found))}: "
            "name one with --namespace"
        )
    return next(iter(found))


def _namespaces(pattern: re.Pattern[str], found: Iterable[Object]) -> set[str]:
    matches = (pattern.fullmatch(name_of(one)) for one in found)
    return {match["namespace"] for match in matches if match}


def _served_from(api_service: Object) -> str:
    """The namespace of the Service of an APIService; "" for other objects."""
    service = (api_service.get("spec") or {}).get("service") or {}
    return str(service.get("namespace") or "")


def _is_ours(found: Object) -> bool:
    return (found["metadata"].get("labels") or {}).get(PART_OF) == OURS


def _subjects(binding: Object) -> set[str]:
    return {one["namespace"] for one in binding.get("subjects") or () if one.get("namespace")}
