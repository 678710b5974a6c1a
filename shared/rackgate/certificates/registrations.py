"""The objects that make API servers call a service, and their CA bundles.

These are webhook configurations, with a bundle for each webhook, APIServices, and
CustomResourceDefinitions whose versions the service converts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog

from rackgate.api.names import SYSTEM_NAMESPACE, UNMANAGED_NAMESPACES
from rackgate.api.resources import Resource
from rackgate.certificates.certificates import read_bundle
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import KINDS
from rackgate.jobframework.templates import annotations_of, items, section
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.runtime.namespaces import NamespaceSelector

# Annotations with which cert-manager's cainjector writes the bundle.
_CAINJECTOR_ANNOTATIONS: Final = (
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
)
# Resources whose webhooks select the namespaces of managed jobs.
_JOB_GROUPS: Final = frozenset(kind.resource.group for kind in KINDS.values())
# A webhook configuration, an APIService or a CustomResourceDefinition.
Configuration = Mapping[str, Any]
_CONVERSION_BUNDLE: Final = "/spec/conversion/webhook/clientConfig/caBundle"
# The bundle that a configuration should contain; None if it is not to be changed.
DesiredBundle = Callable[[Configuration], bytes | None]
_NOT_KEPT: Final = (
    "v1beta1 cannot be converted: with writeBundle: false, apply deploy/overlays/cert-manager/"
    "cluster instead of deploy/cluster, so that cert-manager writes the CA bundle"
)
_KEPT_BY_OTHERS: Final = (
    "v1beta1 cannot be converted: cert-manager writes another CA bundle; remove the annotation of "
    "cert-manager.io from the CustomResourceDefinition"
)
CHANGED_MEANWHILE: Final[Configuration] = {}

log = structlog.get_logger()


def is_cainjector_managed(configuration: Configuration) -> bool:
    """Whether cert-manager writes the bundle of the configuration."""
    annotations = annotations_of(configuration)
    return any(key in annotations for key in _CAINJECTOR_ANNOTATIONS)


def bundle_patch(configuration: Configuration, bundle: bytes) -> list[JsonPatchOp]:
    """JSON patch that sets the bundle everywhere; empty if it is there already.

    Bound to the resourceVersion that was read, because webhooks are addressed by index.
    """
    desired = base64.b64encode(bundle).decode("ascii")
    operations: list[JsonPatchOp] = [
        {"op": "add", "path": path, "value": desired}
        for path, carried in _bundle_fields(configuration)
        if carried != desired
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
    """Which webhook selects other namespaces than those of managed jobs; empty if none does.

    Args:
        name: of the configuration.
        configuration: the current object.
        selector: as configured for the services.
        unmanaged: namespaces without managed jobs, which configurations exclude.
    """
    if selector.everything:
        return ""  # an administrator may have narrowed the webhooks
    for webhook in items(configuration, "webhooks"):
        groups = {group for rule in items(webhook, "rules") for group in rule.get("apiGroups", ())}
        found = section(webhook, "namespaceSelector")
        if groups & _JOB_GROUPS and selector.differs(found, unmanaged):
            return (
                f'webhook "{webhook.get("name")}" of configuration "{name}" has another '
                f"namespaceSelector than managedJobsNamespaceSelector, which is {selector}: set "
                "webhook, configuration and assigner to the same selector (see deploy/namespaces)"
            )
    return ""


def trusted_authorities(configuration: Configuration) -> frozenset[str]:
    """Fingerprints of the authorities that every bundle of the configuration has."""
    carried = [frozenset(read_bundle(bundle)) for bundle in bundles_of(configuration)]
    return frozenset.intersection(*carried) if carried else frozenset()


def bundles_of(configuration: Configuration) -> list[bytes]:
    """Each CA bundle (PEM) of the configuration; empty where there is none."""
    return [_decode_base64(carried) for _, carried in _bundle_fields(configuration)]


def _bundle_fields(configuration: Configuration) -> list[tuple[str, object]]:
    """JSON pointer and value of each CA bundle."""
    found: list[tuple[str, object]] = [
        (
            f"/webhooks/{index}/clientConfig/caBundle",
            section(webhook, "clientConfig").get("caBundle"),
        )
        for index, webhook in enumerate(items(configuration, "webhooks"))
    ]
    spec = section(configuration, "spec")
    if is_crd(configuration):
        if (called := _conversion_client(configuration)) is not None:
            found.append((_CONVERSION_BUNDLE, called.get("caBundle")))
    elif spec:  # of an APIService
        found.append(("/spec/caBundle", spec.get("caBundle")))
    return found


def _conversion_client(configuration: Configuration) -> Mapping[str, Any] | None:
    """What the API server calls to convert; None if it calls no service, or is no CRD."""
    conversion = section(section(configuration, "spec"), "conversion")
    if conversion.get("strategy") != "Webhook":
        return None
    return section(section(conversion, "webhook"), "clientConfig")


def is_crd(configuration: Configuration) -> bool:
    """Whether it is a CustomResourceDefinition."""
    return "conversion" in section(configuration, "spec")


def is_converted_by(crd: Configuration, names: Collection[str]) -> bool:
    """Whether a CRD is converted by the service with these DNS names and IP addresses.

    Another service may be Kueue's.
    """
    called = _conversion_client(crd)
    if called is None:
        return False
    service = section(called, "service")
    if service:
        return f"{service.get('name')}.{service.get('namespace')}.svc" in names
    return urlsplit(str(called.get("url"))).hostname in names


def _decode_base64(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return b""


@dataclass(frozen=True, slots=True)
class NamedConfiguration:
    """A registration that exists.

    Attributes:
        name: of the object.
        configuration: the current object; `CHANGED_MEANWHILE` if the write conflicted.
    """

    name: str
    configuration: Configuration


class Registrations:
    """The registrations with these names.

    Attributes:
        any_missing: when last read, one of the names had no object.
        selector_mismatch: when last read, how their namespace selectors differ from those of
            managed jobs; empty if they agree.
    """

    def __init__(
        self,
        client: Client,
        kinds: Mapping[str, tuple[Resource, ...]],
        selector: NamespaceSelector | None = None,
        namespace: str = SYSTEM_NAMESPACE,
        names: Collection[str] = (),
        *,
        writes: bool = True,
        issues: bool = True,
    ) -> None:
        """Prepare.

        Args:
            client: for registrations.
            kinds: by name, the kinds that may have an object of that name.
            selector: of the namespaces in which jobs are managed; all by default.
            namespace: of the services, where no job is managed.
            names: DNS names and IP addresses of the service, by which CRDs call it.
            writes: whether bundles are written, or left to cert-manager.
            issues: whether the service issues its own certificate. A CRD whose bundle is not that
                of the service's authority is ignored: v1beta2 is served without it.
        """
        self.any_missing = True
        self.selector_mismatch = ""
        self._selector = selector or NamespaceSelector()
        self._unmanaged = frozenset({*UNMANAGED_NAMESPACES, namespace})
        self._client = client
        self._kinds = kinds
        self._names = names
        self._writes = writes
        self._issues = issues
        self._ignored: set[str] = set()

    async def apply_bundle(self, desired: DesiredBundle) -> list[NamedConfiguration]:
        """Write the wanted bundle into every registration that differs.

        A configuration that does not exist causes no calls, so it delays neither readiness nor a
        switch. It is written when it appears.

        Returns:
            The configurations that exist.

        Raises:
            KubeError: the API server rejected a request, or did not answer.
        """
        configurations: list[NamedConfiguration] = []
        absent = False
        for name, kinds in self._kinds.items():
            found = [
                NamedConfiguration(name, configuration)
                for resource in kinds
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

    def _keeps(self, name: str, crd: Configuration) -> bool:
        """Whether this service, or cert-manager for it, keeps the bundle of a CRD."""
        if not is_converted_by(crd, self._names):
            return False
        injected = is_cainjector_managed(crd)
        if not self._issues if injected else self._writes:
            self._ignored.discard(name)
            return True
        if name not in self._ignored:
            problem = _KEPT_BY_OTHERS if injected else _NOT_KEPT
            log.warning("conversion_bundle_not_kept", crd=name, problem=problem)
            self._ignored.add(name)
        return False

    async def _apply_bundle_to(
        self, resource: Resource, name: str, desired: DesiredBundle
    ) -> Configuration | None:
        path = resource.path(name=name)
        try:
            configuration: Configuration = msgspec.json.decode(await self._client.get(path))
            if is_crd(configuration) and not self._keeps(name, configuration):
                return None
            # If cert-manager writes the bundle, the webhook does not.
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
