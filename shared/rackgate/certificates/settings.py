"""Settings of a serving certificate, and of the objects that publish its authority."""

from __future__ import annotations

import ipaddress
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.api.resources import Resource
from rackgate.certificates.rotation import RotationRules
from rackgate.runtime.settings import ConfigModel


class BaseCertificateSettings(ConfigModel):
    """The serving certificate, and where its authority is published.

    A service adds defaults for `secret_name` and `dns_names`, and says what registers it.
    """

    owner: ClassVar[str]
    """Common name of the certificates that replicas issue."""

    source: Literal["issued", "provided"] = "issued"
    """issued: by the service itself. provided: by another tool; the Secret is only read."""
    write_bundle: bool = True
    """Write the authorities into the configurations; false if cert-manager's cainjector does it."""
    secret_name: str
    """Secret that all replicas share."""
    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the Secret."""
    dns_names: list[str] = Field(max_length=32)
    """DNS names of the certificate: those that API servers call."""
    ip_addresses: list[str] = Field(default_factory=list, max_length=32)
    """IP addresses of the certificate."""
    validity: float = Field(default=365 * 86400.0, ge=10, le=10 * 365 * 86400)
    """Seconds that a certificate is valid."""
    renew_before: float = Field(default=30 * 86400.0, ge=1)
    """Seconds before expiry at which the next certificate is published."""
    settle: float = Field(default=30.0, ge=0, le=86400)
    """Seconds between publishing the next authority and serving with it."""
    check_interval: float = Field(default=10.0, gt=0, le=3600)
    """Seconds between reads of Secret and configurations during a rotation."""

    @field_validator("ip_addresses")
    @classmethod
    def _normalize_addresses(cls, addresses: list[str]) -> list[str]:
        return [str(ipaddress.ip_address(address)) for address in addresses]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.dns_names and not self.ip_addresses:
            raise ValueError("dnsNames or ipAddresses must name what API servers call")
        if self.source == "issued" and not self.write_bundle:
            raise ValueError("writeBundle: false goes with source: provided only")
        if self.renew_before >= self.validity:
            raise ValueError(
                f"renewBefore ({self.renew_before:g} s) must be less than validity"
                f" ({self.validity:g} s)"
            )
        return self

    @property
    @abstractmethod
    def registrations(self) -> Mapping[str, tuple[Resource, ...]]:
        """Objects that get the CA bundle: name to the kinds that have an object of that name."""

    @property
    def rules(self) -> RotationRules:
        """The settings as rules of rotation."""
        return RotationRules(
            frozenset((*self.dns_names, *self.ip_addresses)),
            timedelta(seconds=self.renew_before),
        )
