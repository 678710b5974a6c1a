"""Settings of a service: a versioned YAML file, overridden by environment, then by flags.

Keys are camelCase everywhere. An override names a field by its path:
`--set leaderElection.leaseDuration=4`, or `RACKGATE_ASSIGNER_LEADER_ELECTION__LEASE_DURATION=4`.
`load_settings` parses the three layers to nested mappings, checks them for unknown keys, merges
them and validates the result with the pydantic model of the service. Below them, the variable
POD_NAMESPACE moves the defaults that name the namespace of the services.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.features import Features

API_VERSION: Final = "config.rackgate.dev/v1alpha1"
# The Deployments set it to the namespace of their pods.
NAMESPACE_VARIABLE: Final = "POD_NAMESPACE"
# For a Service named rackgate-webhook, Kubernetes sets RACKGATE_WEBHOOK_PORT=tcp://10.0.0.1:443 in
# the Pods of its namespace.
_SERVICE_LINK: Final = re.compile(r"^(tcp|udp|sctp)://")


class SettingsError(ValueError):
    """The configuration is invalid; each of `lines` is one error."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


class ConfigModel(BaseModel):
    """Base of all settings: camelCase keys, unknown keys are rejected."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )


class ConnectionSettings(ConfigModel):
    """Connection to the API server. Empty: the ServiceAccount of the Pod."""

    server: str | None = None
    """URL of the API server, https. Default: in-cluster, with the ServiceAccount of the Pod."""
    ca_file: Path | None = None
    """CA certificates (PEM) for the certificate of the server."""
    token_file: Path | None = None
    """File with a bearer token. It is read again when it changes."""
    client_certificate_file: Path | None = None
    """Client certificate (PEM), together with clientKeyFile."""
    client_key_file: Path | None = None
    """Private key (PEM) of the client certificate."""
    kubeconfig: Path | None = None
    """A kubeconfig file, instead of the fields above."""
    context: str | None = None
    """Context of the kubeconfig. Default: its current context."""
    request_timeout: float = Field(default=10.0, gt=0, le=30)
    """Seconds after which a request times out. Taking over a Lease takes longer by this time."""
    connections: int = Field(default=128, ge=8, le=4096)
    """Maximum number of connections to the API server, including watches."""

    @model_validator(mode="after")
    def _check_one_connection_form(self) -> Self:
        explicit = (self.ca_file, self.token_file, self.client_certificate_file)
        if self.kubeconfig and (self.server or any(explicit)):
            raise ValueError(
                "kubeconfig excludes server, caFile, tokenFile and client certificates"
            )
        if not self.server and any(explicit):
            raise ValueError("caFile, tokenFile and client certificates require server")
        if bool(self.client_certificate_file) != bool(self.client_key_file):
            raise ValueError("clientCertificateFile and clientKeyFile go together")
        return self


class HealthSettings(ConfigModel):
    """Address of /healthz, /readyz and /metrics."""

    host: str = "0.0.0.0"  # noqa: S104 - the kubelet probes the Pod's address
    """Address to listen on."""
    port: int = Field(default=8081, ge=0, le=65535)
    """Port to listen on; 0: the kernel chooses one."""


class MetricsSettings(ConfigModel):
    """What /metrics has in addition."""

    kueue_names: bool = False
    """Serve what Kueue has, too, under Kueue's names (kueue_...), so that dashboards and alerts
    that were made for Kueue work."""


class LeaderElectionSettings(ConfigModel):
    """The Leases that elect the active replica."""

    lease_duration: float = Field(default=15.0, ge=1, le=3600)
    """Seconds after its last renewal at which a holder loses the Lease, and its process ends."""
    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the Leases and of the services. Jobs in it are not managed."""
    state_dir: Path | None = None
    """Directory that outlives the containers of the Pod, such as an emptyDir. A restarted container
    then takes its own Leases back at once; without it, the container waits until they expire."""


class LogSettings(ConfigModel):
    """Level and format of logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else JSON."""


class BaseServiceSettings(ConfigModel):
    """Settings of every service. A service adds its fields, and narrows `kind` to a Literal."""

    api_version: Literal["config.rackgate.dev/v1alpha1"] = "config.rackgate.dev/v1alpha1"
    """API version of the file."""
    kind: str = ""
    """Kind of the file."""
    connection: ConnectionSettings = ConnectionSettings()
    """Connection to the API server."""
    health: HealthSettings = HealthSettings()
    """Address of the health and metrics endpoints."""
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election."""
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    """Feature gates by name."""
    log: LogSettings = LogSettings()
    """Logging."""
    identity: str = ""
    """Identity of this replica in Leases. Default: host name, process ID and a random part."""
    clock_offset: float = Field(default=0.0, ge=-3600, le=3600)
    """Seconds by which the wall clock of this replica is ahead; for tests of clock skew."""

    @property
    def features(self) -> Features:
        """The feature gates with the overrides of `featureGates`."""
        return Features.of(self.feature_gates)

    @field_validator("feature_gates")
    @classmethod
    def _check_gates(cls, gates: dict[str, bool]) -> dict[str, bool]:
        Features.of(gates)
        return gates


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
        environ: environment variables.
        flags: `path.to.key=value` entries, values as YAML.

    Raises:
        SettingsError: with all errors found, each with its field path.
    """
    document = _read_yaml(config) if config else {}
    overrides = _from_flags(flags)
    environment = _from_environment(settings, f"RACKGATE_{service.upper()}_", environ or {})
    _check_version(settings, document)
    layers = (overrides, environment, document)
    if errors := [line for layer in layers for line in _unknown_keys(settings, layer)]:
        raise SettingsError(errors)
    own_namespace = (environ or {}).get(NAMESPACE_VARIABLE) or SYSTEM_NAMESPACE
    merged = _in_namespace(settings().model_dump(mode="json", by_alias=True), own_namespace)
    for layer in (document, environment, overrides):
        merged = _merge(merged, layer)
    try:
        return settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_validation_lines(error)) from error


def _in_namespace(defaults: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The defaults that name the namespace of the services, for a service in `namespace`."""
    layer: dict[str, Any] = {}
    for key, value in defaults.items():
        if isinstance(value, Mapping):
            if inner := _in_namespace(value, namespace):
                layer[key] = inner
        elif SYSTEM_NAMESPACE in str(value):
            layer[key] = (
                [entry.replace(SYSTEM_NAMESPACE, namespace) for entry in value]
                if isinstance(value, list)
                else value.replace(SYSTEM_NAMESPACE, namespace)
            )
    return layer


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, nested ones as well; `upper` takes precedence."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


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
        raise SettingsError([f'"{path}" must contain a mapping, found {type(document).__name__}'])
    return document


def _check_version(settings: type[BaseServiceSettings], document: Mapping[str, Any]) -> None:
    """Reject a file of another version, or of another service."""
    if not document:
        return
    allowed = {
        "apiVersion": (API_VERSION,),
        "kind": get_args(settings.model_fields["kind"].annotation),
    }
    errors = [
        f'{key}: "{found}" is not supported (supported: {", ".join(values)})'
        for key, values in allowed.items()
        if values and (found := document.get(key, "")) not in values
    ]
    if errors:
        raise SettingsError(errors)


def _from_flags(flags: Sequence[str]) -> dict[str, Any]:
    """`a.b=value` entries as a nested mapping; later entries take precedence."""
    layer: dict[str, Any] = {}
    for flag in flags:
        path, equals, text = flag.partition("=")
        if not equals or not path:
            raise SettingsError([f'--set "{flag}": expected key=value'])
        _put(layer, path.split("."), _scalar(f"--set {path}", text))
    return layer


def _from_environment(
    model: type[BaseModel], prefix: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Variables named `prefix` and field names joined by `__`, as a nested mapping.

    Other names are ignored: for each Service, Kubernetes sets variables that may have this prefix.
    """
    layer: dict[str, Any] = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(prefix) or _SERVICE_LINK.match(text):
            continue
        path = _field_path(model, name.removeprefix(prefix).lower().split("__"))
        if path:
            _put(layer, path, _scalar(name, text))
    return layer


def _scalar(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError([f"{name}: value is not YAML: {text!r}"]) from error


def _put(layer: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        inner = layer.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = layer[key] = {}
        layer = inner
    layer[path[-1]] = value


def _field_path(model: type[BaseModel], names: Sequence[str]) -> list[str]:
    """The camelCase path of the fields `names`, or [] when there is no such field."""
    field = model.model_fields.get(names[0])
    if field is None:
        return []
    head = field.alias or names[0]
    if len(names) == 1:
        return [head]
    inner = _inner_model(field)
    rest = _field_path(inner, names[1:]) if inner else []
    return [head, *rest] if rest else []


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The settings model of a field, also if it is optional."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _unknown_keys(model: type[BaseModel], layer: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """One line for each key of `layer` that is not a field of `model`."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in layer.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f' (did you mean "{near[0]}"?)' if near else ""
            yield f'{at + ": " if at else ""}unknown key "{key}"{hint}'
        elif isinstance(value, Mapping) and (inner := _inner_model(fields[key])):
            yield from _unknown_keys(inner, value, f"{at}.{key}" if at else key)


def _validation_lines(error: ValidationError) -> list[str]:
    """Pydantic's errors as `path: what is wrong (found ...)`."""
    lines = []
    for found in error.errors(include_url=False):
        path = ".".join(str(part) for part in found["loc"])
        text = found["msg"].removeprefix("Value error, ")
        message = text[:1].lower() + text[1:]
        if not isinstance(found["input"], Mapping | BaseModel):
            message += f" (found {found['input']!r})"
        lines.append(f"{path}: {message}" if path else message)
    return lines
