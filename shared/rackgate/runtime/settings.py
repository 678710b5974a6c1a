"""Settings of a service: a versioned YAML file, overridden by environment, then by flags.

Keys are camelCase everywhere. An override names a field by its path:
`--set leaderElection.leaseDuration=4`, or `RACKGATE_ASSIGNER_LEADER_ELECTION__LEASE_DURATION=4`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from rackgate.features import Features
from rackgate.runtime._overrides import (
    SettingsError,
    from_environment,
    from_flags,
    unknown_keys,
    validation_lines,
)

__all__ = [
    "BaseServiceSettings",
    "ConfigModel",
    "ConnectionSettings",
    "HealthSettings",
    "LeaderElectionSettings",
    "LogSettings",
    "SettingsError",
    "load_settings",
]

API_VERSION = "config.rackgate.dev/v1alpha1"


class ConfigModel(BaseModel):
    """Base of every nested settings block: camelCase keys, unknown ones refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )


class ConnectionSettings(ConfigModel):
    """How to reach the API server. Empty: in-cluster ServiceAccount."""

    server: str | None = None
    """URL of the API server, https. Without it the Pod's ServiceAccount is used."""
    ca_file: Path | None = None
    """Certificates (PEM) that the server's certificate must chain to."""
    token_file: Path | None = None
    """File with a bearer token; read again when it changes."""
    client_certificate_file: Path | None = None
    """Client certificate (PEM), together with clientKeyFile."""
    client_key_file: Path | None = None
    """Private key (PEM) of the client certificate."""
    kubeconfig: Path | None = None
    """A kubeconfig file; excludes the fields above."""
    context: str | None = None
    """Context of the kubeconfig; its current one by default."""
    request_timeout: float = Field(default=10.0, gt=0, le=30)
    """Seconds that one request may take. Take-over of a lease waits for it, too."""
    connections: int = Field(default=128, ge=8, le=4096)
    """Most connections to the API server, watches included."""

    @model_validator(mode="after")
    def _check_one_connection_form(self) -> Self:
        explicit = (self.ca_file, self.token_file, self.client_certificate_file)
        if self.kubeconfig and (self.server or any(explicit)):
            raise ValueError(
                "kubeconfig excludes server, caFile, tokenFile and client certificates"
            )
        if not self.server and any(explicit):
            raise ValueError("server is needed beside caFile, tokenFile or client certificates")
        if bool(self.client_certificate_file) != bool(self.client_key_file):
            raise ValueError("clientCertificateFile and clientKeyFile go together")
        return self


class HealthSettings(ConfigModel):
    """Where /healthz, /readyz and /metrics are served."""

    host: str = "0.0.0.0"  # noqa: S104 - the kubelet probes the Pod's address
    """Address to listen on."""
    port: int = Field(default=8081, ge=0, le=65535)
    """Port to listen on; 0 lets the kernel choose."""


class LeaderElectionSettings(ConfigModel):
    """The Leases that say which replica acts."""

    lease_duration: float = Field(default=15.0, ge=1, le=3600)
    """Seconds after which a silent holder has lost the lease, and is dead."""
    namespace: str = "rackgate-system"
    """Namespace of the Lease and of the services; no job in it is governed."""
    state_dir: Path | None = None
    """Folder of this pod that outlives its containers, as an emptyDir does: a container that is
    restarted takes its own Leases back at once. None: it waits for them as any other."""


class LogSettings(ConfigModel):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto writes colours on a terminal and JSON elsewhere."""


class _LayerSource(InitSettingsSource):
    """One layer of already parsed camelCase keys."""

    def __init__(self, settings_cls: type[BaseSettings], keys: dict[str, Any]) -> None:
        super().__init__(settings_cls, keys)
        # As given: the base class would rewrite aliases, and layers would no longer match.
        self.init_kwargs = keys


class BaseServiceSettings(BaseSettings):
    """What every service can be told. A service adds its own fields and its `kind`.

    Subclasses narrow `kind` to a Literal with a default, and document every field.
    """

    model_config = SettingsConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )
    _layers: ClassVar[Sequence[dict[str, Any]]] = ()

    api_version: Literal["config.rackgate.dev/v1alpha1"] = "config.rackgate.dev/v1alpha1"
    """Version of this file's format."""
    kind: str = ""
    """Kind of this file."""
    connection: ConnectionSettings = ConnectionSettings()
    """How to reach the API server."""
    health: HealthSettings = HealthSettings()
    """Health, readiness and metrics."""
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election."""
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    """Feature gates by name; unknown names are refused."""
    log: LogSettings = LogSettings()
    """Logging."""
    identity: str = ""
    """Name of this replica in Leases; host name, process id and a random part by default."""
    clock_offset: float = Field(default=0.0, ge=-3600, le=3600)
    """Seconds that this replica's wall clock is ahead of the machine's; for tests of clock skew."""

    @property
    def features(self) -> Features:
        """The feature gates with this file's overrides."""
        return Features.of(self.feature_gates)

    @field_validator("feature_gates")
    @classmethod
    def _check_gates(cls, gates: dict[str, bool]) -> dict[str, bool]:
        Features.of(gates)
        return gates

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the layers that `load_settings` parsed: flags, environment, file."""
        return (init_settings, *(_LayerSource(settings_cls, layer) for layer in cls._layers))


S = TypeVar("S", bound=BaseServiceSettings)


def load_settings(
    settings: type[S],
    *,
    service: str,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> S:
    """Read the settings of a service.

    Args:
        settings: the service's settings class.
        service: short name, for the environment prefix `RACKGATE_<SERVICE>_`.
        config: YAML file, or None for defaults.
        environ: environment variables to look at.
        flags: `path.to.key=value` entries, values as YAML.

    Raises:
        SettingsError: with every fault found, each with its field path.
    """
    document = _read_yaml(config) if config else {}
    layers = [
        from_flags(flags),
        from_environment(settings, f"RACKGATE_{service.upper()}_", environ or {}),
        document,
    ]
    _check_version(settings, document)
    faults = [line for layer in layers for line in unknown_keys(settings, layer)]
    if faults:
        raise SettingsError(faults)
    # A class of its own for this call: the layers are no state of the settings class.
    layered: type[S] = type(
        settings.__name__, (settings,), {"_layers": layers, "__module__": __name__}
    )
    try:
        loaded = layered()
    except ValidationError as error:
        raise SettingsError(validation_lines(error)) from error
    return settings.model_construct(
        loaded.model_fields_set,
        **{name: getattr(loaded, name) for name in settings.model_fields},
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SettingsError([f'cannot read "{path}": {error.strerror}']) from error
    except yaml.YAMLError as error:
        raise SettingsError([f'"{path}" is not YAML: {error}']) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError([f'"{path}" must hold a mapping, found {type(document).__name__}'])
    return document


def _check_version(settings: type[BaseServiceSettings], document: Mapping[str, Any]) -> None:
    """Say plainly when the file is of another version or for another service."""
    if not document:
        return
    kinds = get_args(settings.model_fields["kind"].annotation)
    wanted: list[tuple[str, Sequence[str]]] = [("apiVersion", (API_VERSION,))]
    if kinds:
        wanted.append(("kind", kinds))
    faults = [
        f'{key}: "{found}" is not supported (supported: {", ".join(allowed)})'
        for key, allowed in wanted
        if (found := document.get(key, "")) not in allowed
    ]
    if faults:
        raise SettingsError(faults)
