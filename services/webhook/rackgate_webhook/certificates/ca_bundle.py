"""The CA bundle inside webhook configurations: what to patch, and what they carry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any, Final

from rackgate.api.names import UNMANAGED_NAMESPACES
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import KINDS
from rackgate.jobframework.templates import annotations_of, items, section
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate_webhook.certificates.certificates import read_bundle

# cert-manager's annotations that ask its cainjector for the bundle.
_CAINJECTOR_ANNOTATIONS: Final = (
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
)
# Of what the webhooks are called about that follow the namespaces of managed jobs.
_JOB_GROUPS: Final = frozenset(kind.resource.group for kind in KINDS.values())


def is_cainjector_managed(configuration: Mapping[str, Any]) -> bool:
    """Whether cert-manager has been asked to write the configuration's bundle."""
    annotations = annotations_of(configuration)
    return any(key in annotations for key in _CAINJECTOR_ANNOTATIONS)


def bundle_patch(configuration: Mapping[str, Any], bundle: bytes) -> list[JsonPatchOp]:
    """JSON patch that puts the bundle into every webhook of a configuration; empty if there.

    Bound to the version read, because webhooks are addressed by their position.
    """
    desired = base64.b64encode(bundle).decode("ascii")
    operations: list[JsonPatchOp] = [
        {
            "op": "add",
            "path": f"/webhooks/{index}/clientConfig/caBundle",
            "value": desired,
        }
        for index, webhook in enumerate(items(configuration, "webhooks"))
        if section(webhook, "clientConfig").get("caBundle") != desired
    ]
    if not operations:
        return []
    version = section(configuration, "metadata").get("resourceVersion")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]


def selector_mismatch(
    name: str,
    configuration: Mapping[str, Any],
    selector: NamespaceSelector,
    unmanaged: Collection[str] = UNMANAGED_NAMESPACES,
) -> str:
    """Which webhook is called for other namespaces than jobs are managed in; empty when none is.

    Args:
        name: of the configuration.
        configuration: as it is now.
        selector: as the services are told.
        unmanaged: namespaces that registrations leave out, because nothing is managed there.
    """
    if selector.everything:
        return ""  # a cluster may have narrowed its webhooks by itself
    for webhook in items(configuration, "webhooks"):
        groups = {group for rule in items(webhook, "rules") for group in rule.get("apiGroups", ())}
        found = section(webhook, "namespaceSelector")
        if groups & _JOB_GROUPS and selector.differs(found, unmanaged):
            return (
                f'webhook "{webhook.get("name")}" of configuration "{name}" has another '
                f"namespaceSelector than managedJobsNamespaceSelector, which is {selector}: set "
                "both to the same, and that of the assigner (deploy/namespaces does)"
            )
    return ""


def trusted_authorities(configuration: Mapping[str, Any]) -> frozenset[str]:
    """Fingerprints of the authorities that every webhook of the configuration trusts."""
    carried = [frozenset(read_bundle(bundle)) for bundle in bundles_of(configuration)]
    return frozenset.intersection(*carried) if carried else frozenset()


def bundles_of(configuration: Mapping[str, Any]) -> list[bytes]:
    """The CA bundle (PEM) of each webhook of the configuration; empty where there is none."""
    return [
        _decode_base64(section(webhook, "clientConfig").get("caBundle"))
        for webhook in items(configuration, "webhooks")
    ]


def _decode_base64(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return b""
