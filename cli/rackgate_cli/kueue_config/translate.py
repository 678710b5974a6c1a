"""Translates a Configuration of Kueue into settings of Rackgate's services, without any I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from rackgate.features import GATES
from rackgate.kueue_gates import KUEUE_GATES
from rackgate.runtime.settings import API_VERSION, BaseServiceSettings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.kueue_config.table import (
    SETTINGS,
    SUBTREE,
    Conversion,
    KueueSetting,
    Support,
)
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.settings import WebhookSettings

KUEUE_API_VERSION: Final = "config.kueue.x-k8s.io/v1beta2"
SERVICES: Final[Mapping[str, type[BaseServiceSettings]]] = {
    "assigner": AssignerSettings,
    "webhook": WebhookSettings,
    "ungater": UngaterConfiguration,
}
_UNITS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,9})?)(ns|us|µs|ms|s|m|h)")
_HEAD: Final = ("apiVersion", "kind", "metadata")


@dataclass(slots=True)
class Translation:
    """Settings of Rackgate, and what became of the rest.

    Attributes:
        documents: settings by service; only services with any.
        notes: what needs no setting, or differs.
        missing: settings that Rackgate does not have, and values that it rejects.
    """

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def translate(configuration: Mapping[str, Any]) -> Translation:
    """Translate the `Configuration` of Kueue. Every setting in it is translated or named."""
    found = Translation()
    for path, value in leaves({k: v for k, v in configuration.items() if k not in _HEAD}):
        if path == "featureGates":
            _translate_gates(value, found)
        else:
            _translate_setting(path, value, found)
    if "fairSharing" in configuration:  # its presence turns it on
        _put(found, "assigner:fairSharing.enable", value=True)
    timeout = _lookup(found.documents.get("assigner", {}), "waitForPodsReady.timeout")
    if timeout is None:
        found.notes.append(
            "waitForPodsReady.timeout is not set: Kueue evicts a job whose pods are not ready after"
            " 30 minutes, and Rackgate does not; set 1800 for the same"
        )
    for service, document in found.documents.items():
        found.missing += _rejected(service, document)
    return found


def leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each setting: of an object, unless the table has no settings below it."""
    for key, inner in value.items():
        below = f"{path}.{key}" if path else str(key)
        nested = any(
            row.name.startswith(f"{below}.") and row.name != below + SUBTREE for row in SETTINGS
        )
        if isinstance(inner, Mapping) and nested:
            yield from leaves(inner, below)
        elif inner is not None:
            yield below, inner


def setting_of(path: str) -> KueueSetting | None:
    """The setting of Kueue at a path; None if it has none."""
    return next((row for row in SETTINGS if row.covers(path) or row.covers(f"{path}[]")), None)


def _translate_setting(path: str, value: Any, found: Translation) -> None:
    row = setting_of(path)
    if row is None:
        near = difflib.get_close_matches(path, [row.name for row in SETTINGS], n=1)
        hint = f' (did you mean "{near[0]}"?)' if near else ""
        found.missing.append(f"{path}: Kueue has no such setting{hint}")
    elif row.conversion is not None:
        converted = _seconds(value) if row.conversion is Conversion.SECONDS else value
        if converted is None:
            found.missing.append(f"{path}: {str(value)[:60]!r} is not a duration such as 5m0s")
            return
        for setting in row.settings:
            _put(found, setting, value=converted)
    elif row.support is Support.NOT_YET:
        values = value if isinstance(value, list) else [value]
        others = [one for one in values if one not in row.same_values]
        if others or not row.same_values:
            which = f" {_text(others)}" if row.same_values else ""
            found.missing.append(f"{path}{which}: {row.note}")
        else:
            found.notes.append(f"{path} is left out: Rackgate does so anyway")
    else:
        found.notes.append(f"{path} is not translated: {_advice(row)}")


def _text(values: list[Any]) -> str:
    return ", ".join(str(value)[:60] for value in values)[:300]


def _advice(row: KueueSetting) -> str:
    by_hand = " and ".join(setting.replace(":", " ") for setting in row.settings)
    return "; ".join(filter(None, (row.note, by_hand and f"see {by_hand}")))


def _seconds(value: Any) -> float | None:
    """Seconds of a duration such as `1h30m`; None if it is none."""
    if value in ("0", 0):
        return 0
    if not isinstance(value, str) or not value or _DURATION.sub("", value):
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(value))
    return int(total) if total == int(total) else total


def _translate_gates(gates: Any, found: Translation) -> None:
    if not isinstance(gates, Mapping):
        found.missing.append("featureGates: expected names with true or false")
        return
    ours = {gate.name for gate in GATES}
    for name, enabled in gates.items():
        gate = KUEUE_GATES.get(name)
        renamed = name if gate is None else gate.replaced_by
        if renamed in ours:
            for service in SERVICES:
                _put(found, f"{service}:featureGates", value={renamed: enabled})
        elif gate is None:
            found.missing.append(f'featureGates: Rackgate does not know the gate "{name}"')
        elif problem := gate.problem(name, enabled is True):
            found.missing.append(f"featureGates: {problem}")
        else:
            found.notes.append(f'featureGates: "{name}" is left out: {gate.note}')


def _put(found: Translation, setting: str, *, value: Any) -> None:
    service, _, path = setting.partition(":")
    holder = found.documents.setdefault(service, {})
    *parents, last = path.split(".")
    for key in parents:
        holder = holder.setdefault(key, {})
    if isinstance(value, Mapping):
        holder.setdefault(last, {}).update(value)
    else:
        holder[last] = value


def _lookup(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _rejected(service: str, document: Mapping[str, Any]) -> list[str]:
    """Why a service would not start with these settings."""
    try:
        SERVICES[service].model_validate(document)
    except ValidationError as error:
        return [
            f"{service} {'.'.join(str(part) for part in one['loc'])}: {one['msg']}"
            for one in error.errors(include_url=False)
        ]
    return []


def document_of(service: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration file of a service."""
    kind = SERVICES[service].model_fields["kind"].default
    return {"apiVersion": API_VERSION, "kind": kind, **settings}
