"""Findings that prevent an installation of Rackgate into a cluster, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.installation.marker import MARK

Object = Mapping[str, Any]

PART_OF: Final = "app.kubernetes.io/part-of"
OURS: Final = "rackgate"
# Oldest API server with the ValidatingAdmissionPolicies and selectable fields that are needed.
OLDEST_VERSION: Final = (1, 30)
# Kueue's leader election; a recent renewal shows that Kueue runs.
KUEUE_LEASE: Final = "c1f6bfd2.kueue.x-k8s.io"
LEASE_FRESHNESS: Final = timedelta(seconds=60)
# CRDs that Rackgate installs; Kueue has more of the same group.
OUR_KINDS: Final = frozenset(
    kind.full_name
    for kind in (
        kinds.WORKLOADS,
        kinds.LOCAL_QUEUES,
        kinds.CLUSTER_QUEUES,
        kinds.COHORTS,
        kinds.TOPOLOGIES,
        kinds.FLAVORS,
        kinds.WORKLOAD_PRIORITY_CLASSES,
        kinds.ADMISSION_CHECKS,
    )
)
_MIGRATE: Final = "docs/tasks/migrate-from-kueue.md"
_UPGRADE: Final = "docs/tasks/upgrade.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding before an installation.

    Attributes:
        conflict: it prevents an installation.
        what: what was found.
        remedy: what to do about it.
    """

    conflict: bool
    what: str
    remedy: str


@dataclass(slots=True)
class ClusterSnapshot:
    """What was read of a cluster: objects as JSON.

    Attributes:
        version: of the API server, as `/version` says.
        webhooks: mutating and validating webhook configurations.
        policies: ValidatingAdmissionPolicies and their bindings.
        api_services: APIServices.
        crds: CustomResourceDefinitions of Kueue's group.
        deployments: of all namespaces.
        leases: with the name of Kueue's Lease, in any namespace.
        bindings: ClusterRoleBindings.
        namespace: the one to install into, None if it does not exist.
        now: by this machine's clock.
    """

    version: Mapping[str, Any] = field(default_factory=dict)
    webhooks: Sequence[Object] = ()
    policies: Sequence[Object] = ()
    api_services: Sequence[Object] = ()
    crds: Sequence[Object] = ()
    deployments: Sequence[Object] = ()
    leases: Sequence[Object] = ()
    bindings: Sequence[Object] = ()
    namespace: Object | None = None
    now: datetime | None = None


def findings(seen: ClusterSnapshot, namespace: str) -> list[Finding]:
    """All conflicts with an installation into `namespace`, and warnings."""
    return [
        *_version(seen),
        *_kueue(seen),
        *_kueue_crds(seen),
        *_other_installations(seen, namespace),
        *_uninstall_in_progress(seen, namespace),
        *_old_name_objects(seen, namespace),
    ]


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _is_ours(found: Object) -> bool:
    return (found["metadata"].get("labels") or {}).get(PART_OF) == OURS


def _version(seen: ClusterSnapshot) -> Iterator[Finding]:
    digits = [
        "".join(c for c in str(seen.version.get(key, "")) if c.isdigit())
        for key in ("major", "minor")
    ]
    if not all(digits):
        return
    found = (int(digits[0]), int(digits[1]))
    if found < OLDEST_VERSION:
        yield Finding(
            True,
            f"the API server is of Kubernetes {found[0]}.{found[1]}",
            f"Rackgate needs {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]} or newer",
        )


def _kueue(seen: ClusterSnapshot) -> Iterator[Finding]:
    """A running Kueue, which would admit the same Workloads."""
    remedy = (
        "both would admit the same Workloads, and each would change the other's objects: remove "
        f"Kueue first ({_MIGRATE}), or do not install Rackgate here"
    )
    for found in seen.webhooks:
        if "kueue" in _name(found) and not _is_ours(found):
            yield Finding(True, f"Kueue's {found['kind']} {_name(found)}", remedy)
    for found in seen.deployments:
        if _is_kueue(found) and found["spec"].get("replicas") != 0:
            where = f"{found['metadata']['namespace']}/{_name(found)}"
            yield Finding(True, f"Kueue's Deployment {where}", remedy)
    for found in seen.leases:
        if _name(found) == KUEUE_LEASE and _is_fresh(found, seen.now):
            where = f"{found['metadata']['namespace']}/{_name(found)}"
            holder = found["spec"].get("holderIdentity")
            yield Finding(True, f"Kueue's Lease {where}, held by {holder}", remedy)
    for found in seen.api_services:
        if found["spec"].get("group") == names.VISIBILITY_GROUP and not _is_ours(found):
            yield Finding(
                True,
                f"Kueue's APIService {_name(found)}",
                "without Kueue nothing serves it, and then no namespace of the cluster can be "
                f"deleted: delete it with Kueue ({_MIGRATE})",
            )


def _is_kueue(deployment: Object) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    containers = deployment["spec"]["template"]["spec"].get("containers") or ()
    images = (str(one.get("image", "")).rpartition("/")[2] for one in containers)
    return (
        labels.get("app.kubernetes.io/name") == "kueue"
        or _name(deployment) == "kueue-controller-manager"
        or any(image.split("@")[0].split(":")[0] == "kueue" for image in images)
    )


def _is_fresh(lease: Object, now: datetime | None) -> bool:
    renewed = lease["spec"].get("renewTime")
    if now is None or not renewed or not lease["spec"].get("holderIdentity"):
        return False
    return now - datetime.fromisoformat(renewed) < LEASE_FRESHNESS


def _kueue_crds(seen: ClusterSnapshot) -> Iterator[Finding]:
    """CRDs that an uninstalled Kueue has left in the cluster."""
    ours = [crd for crd in seen.crds if _name(crd) in OUR_KINDS]
    unknown = _stored_beside(ours, names.VERSION, names.OLD_VERSION)
    if unknown:
        yield Finding(
            True,
            f"objects may be stored in older versions of {', '.join(unknown)}",
            f"with a Kueue that serves {names.VERSION}, write each object once while it still "
            "converts, and remove the old versions from status.storedVersions ("
            f"{_MIGRATE}); or delete these CRDs with all their objects",
        )
    old = sorted({*_stored_beside(ours, names.VERSION)} - {*unknown})
    if old:
        yield Finding(
            False,
            f"objects may be stored as {names.OLD_VERSION}: {', '.join(old)}",
            "the webhook converts them; when it is ready, write each object once, and remove "
            f"{names.OLD_VERSION} from status.storedVersions ({_MIGRATE})",
        )
    unread = sorted({_name(crd) for crd in seen.crds} - OUR_KINDS)
    if unread:
        yield Finding(
            False,
            f"CRDs of Kueue that Rackgate does not have: {', '.join(unread)}",
            "nothing reads objects of these kinds once Kueue is gone: delete these CRDs with "
            f"their objects ({_MIGRATE})",
        )
    converted = sorted(_name(crd) for crd in ours if _is_converted(crd))
    if converted:
        yield Finding(
            False,
            f"CRDs of Kueue with a conversion webhook: {', '.join(converted)}",
            "once Kueue is gone, take them over by --force-conflicts with the first of the two "
            "installation commands; until then the API server rejects that command",
        )


def _stored_beside(crds: Iterable[Object], *known: str) -> list[str]:
    """Names of the CRDs whose objects may be stored in another version."""
    return sorted(
        _name(crd)
        for crd in crds
        if set((crd.get("status") or {}).get("storedVersions") or ()) - set(known)
    )


def _is_converted(crd: Object) -> bool:
    """Whether the API server calls another service than Rackgate's to convert."""
    conversion = crd["spec"].get("conversion") or {}
    if conversion.get("strategy", "None") != "Webhook":
        return False
    client = (conversion.get("webhook") or {}).get("clientConfig") or {}
    # On a playground, Rackgate's has a URL.
    own = "url" in client or (client.get("service") or {}).get("name") == names.WEBHOOK_SERVICE
    return not own


def _other_installations(seen: ClusterSnapshot, namespace: str) -> Iterator[Finding]:
    """Another installation of Rackgate."""
    others: dict[str, list[str]] = {}
    for binding in seen.bindings:
        if _name(binding) == MARK:
            for subject in binding.get("subjects") or ():
                others.setdefault(subject.get("namespace", ""), []).append(
                    f"ClusterRoleBinding {MARK}"
                )
    for found in seen.deployments:
        if _is_ours(found):
            where = found["metadata"]["namespace"]
            others.setdefault(where, []).append(f"Deployment {_name(found)}")
    for where, signs in sorted(others.items()):
        if where not in ("", namespace):
            yield Finding(
                True,
                f"Rackgate is installed in namespace {where} ({', '.join(sorted(signs))})",
                f"a cluster has one Rackgate: upgrade that one, or remove it first "
                f"(rackgate uninstall --namespace {where})",
            )


def _uninstall_in_progress(seen: ClusterSnapshot, namespace: str) -> Iterator[Finding]:
    """An uninstall that is in progress, or was interrupted."""
    leaving = [
        f"ClusterRoleBinding {_name(found)}"
        for found in seen.bindings
        if found["metadata"].get("deletionTimestamp")
        and (_is_ours(found) or _name(found).endswith(f".{namespace}"))
    ]
    if seen.namespace is not None and seen.namespace["metadata"].get("deletionTimestamp"):
        leaving.insert(0, f"Namespace {namespace}")
    crds = [_name(crd) for crd in seen.crds if crd["metadata"].get("deletionTimestamp")]
    leaving += [f"CustomResourceDefinition {name}" for name in crds]
    if leaving:
        yield Finding(
            True,
            f"being deleted: {', '.join(leaving)}",
            "wait until it is deleted; if that takes long, run rackgate uninstall again",
        )


def _old_name_objects(seen: ClusterSnapshot, namespace: str) -> Iterator[Finding]:
    """Objects of a version whose cluster-wide names did not include the namespace."""
    old = [
        f"{found['kind']} {_name(found)}"
        for found in (*seen.webhooks, *seen.policies, *seen.bindings)
        if _is_ours(found) and _name(found) in OLD_NAMES
    ]
    if old:
        yield Finding(
            False,
            f"cluster-wide objects of an older version: {', '.join(sorted(old))}",
            f"after the upgrade, delete them ({_UPGRADE}); the new ones of "
            f"namespace {namespace} have other names",
        )


OLD_NAMES: Final = frozenset(
    f"rackgate-{name}"
    for name in (
        *("mutating", "validating"),
        *("hints", "jobs", "jobsets", "orphans", "part-deletions"),
        *("parts", "pods", "rayclusters", "workloads"),
        *("assigner", "ungater", "webhook", "assigner:osmo", "webhook:osmo"),
    )
)
