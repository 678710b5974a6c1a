"""The webhook configurations that call us: read, and given the CA bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.names import SYSTEM_NAMESPACE, UNMANAGED_NAMESPACES
from rackgate.api.resources import MUTATING_CONFIGS, VALIDATING_CONFIGS, Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate_webhook.certificates.ca_bundle import (
    bundle_patch,
    is_cainjector_managed,
    selector_mismatch,
)

Configuration = Mapping[str, Any]
# The bundle that a configuration should carry; None to leave it as it is.
DesiredBundle = Callable[[Configuration], bytes | None]
CHANGED_MEANWHILE: Final[Configuration] = {}

log = structlog.get_logger()


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
        absent: at the last look, one of the names had neither configuration.
        selector_mismatch: at the last look, why they are called for other namespaces than jobs are
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
        """Write the wanted bundle into every registration that differs.

        Configurations that do not exist are waited for, but nothing calls us through them: they
        hold up neither readiness nor a switch.

        Returns:
            Those that exist.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        registrations: list[NamedConfiguration] = []
        absent = False
        for name in self._names:
            found = [
                NamedConfiguration(name, configuration)
                for resource in (MUTATING_CONFIGS, VALIDATING_CONFIGS)
                if (configuration := await self._apply_bundle_to(resource, name, desired))
                is not None
            ]
            registrations += found
            absent = absent or not found
        self.any_missing = absent
        self._compare_selectors(registrations)
        return registrations

    def _compare_selectors(self, registrations: Sequence[NamedConfiguration]) -> None:
        mismatches = (
            selector_mismatch(there.name, there.configuration, self._selector, self._unmanaged)
            for there in registrations
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
