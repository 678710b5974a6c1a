"""The webhook configurations that call us: what they carry, and the CA bundle written into them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.names import SYSTEM_NAMESPACE, UNMANAGED_NAMESPACES
from rackgate.api.resources import MUTATING_CONFIGS, VALIDATING_CONFIGS, Resource
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import KINDS
from rackgate.jobframework.templates import annotations_of, items, section
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
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
Configuration = Mapping[str, Any]
# The bundle that a configuration should carry; None to leave it as it is.
DesiredBundle = Callable[[Configuration], bytes | None]
CHANGED_MEANWHILE: Final[Configuration] = {}

log = structlog.get_logger()


def is_cainjector_managed(configuration: Configuration) -> bool:
    """Whether cert-manager has been asked to write the configuration's bundle."""
    annotations = annotations_of(configuration)
    return any(key in annotations for key in _CAINJECTOR_ANNOTATIONS)


def bundle_patch(configuration: Configuration, bundle: bytes) -> list[JsonPatchOp]:
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
    configuration: Configuration,
    selector: NamespaceSelector,
    unmanaged: Collection[str] = UNMANAGED_NAMESPACES,
) -> str:
    """Which webhook is called for other namespaces than jobs are managed in; empty when none is.

    Args:
        name: of the configuration.
        configuration: as it is now.
        selector: as configured for the services.
        unmanaged: namespaces that configurations leave out, because nothing is managed there.
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


def trusted_authorities(configuration: Configuration) -> frozenset[str]:
    """Fingerprints of the authorities that every webhook of the configuration trusts."""
    carried = [frozenset(read_bundle(bundle)) for bundle in bundles_of(configuration)]
    return frozenset.intersection(*carried) if carried else frozenset()


def bundles_of(configuration: Configuration) -> list[bytes]:
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


@dataclass(frozen=True, slots=True)
class NamedConfiguration:
    """An existing configuration.

    Attributes:
        name: of the object.
        configuration: as it is now; `CHANGED_MEANWHILE` when it changed under our hands.
    """

    name: str
    configuration: Configuration


class WebhookConfigurations:
    """The mutating and validating configurations of some names.

    Attributes:
        any_missing: when last read, one of the names had neither configuration.
        selector_mismatch: when last read, why they are called for other namespaces than jobs are
            managed in; empty when they are not.
    """

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        selector: NamespaceSelector | None = None,
        namespace: str = SYSTEM_NAMESPACE,
    ) -> None:
        """Follow the configurations of these names.

        Args:
            client: for webhook configurations.
            names: of both kinds.
            selector: of the namespaces in which jobs are managed; all by default.
            namespace: of the services, where no job is managed.
        """
        self.any_missing = True
        self.selector_mismatch = ""
        self._selector = selector or NamespaceSelector()
        self._unmanaged = frozenset({*UNMANAGED_NAMESPACES, namespace})
        self._client = client
        self._names = names

    async def apply_bundle(self, desired: DesiredBundle) -> list[NamedConfiguration]:
        """Write the wanted bundle into every webhook configuration that differs.

        Configurations that do not exist are waited for, but nothing calls us through them: they
        hold up neither readiness nor a switch.

        Returns:
            Those that exist.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
        """
        configurations: list[NamedConfiguration] = []
        absent = False
        for name in self._names:
            found = [
                NamedConfiguration(name, configuration)
                for resource in (MUTATING_CONFIGS, VALIDATING_CONFIGS)
                if (configuration := await self._apply_bundle_to(resource, name, desired))
                is not None
            ]
            configurations += found
            absent = absent or not found
        self.any_missing = absent
        self._compare_selectors(configurations)
        return configurations

    def _compare_selectors(self, configurations: Sequence[NamedConfiguration]) -> None:
        mismatches = (
            selector_mismatch(there.name, there.configuration, self._selector, self._unmanaged)
            for there in configurations
        )
        found = next((text for text in mismatches if text), "")
        if found and found != self.selector_mismatch:
            log.error("namespace_selectors_differ", error=found)
        self.selector_mismatch = found

    async def _apply_bundle_to(
        self, resource: Resource, name: str, desired: DesiredBundle
    ) -> Configuration | None:
        path = resource.path(name=name)
        try:
            configuration: Configuration = msgspec.json.decode(await self._client.get(path))
            # Where cert-manager has been asked to write it, nobody else should.
            bundle = None if is_cainjector_managed(configuration) else desired(configuration)
            operations = [] if bundle is None else bundle_patch(configuration, bundle)
            if operations:
                body = msgspec.json.encode(operations)
                answer = await self._client.patch(path, body, PatchType.JSON)
                configuration = msgspec.json.decode(answer)
                log.info("ca_bundle_injected", configuration=name)
        except NotFoundError:
            return None
        except (ConflictError, UnprocessableError) as error:
            log.debug("patch_conflicted", resource=resource.full_name, status=error.status)
            return CHANGED_MEANWHILE
        return configuration
