"""docs/reference/compatibility.md names all of Kueue's API, and what it says is true."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from rackgate.api import names
from rackgate.api.unsupported import WRITTEN_BY_KUEUE, unsupported_fields
from rackgate.features import GATES
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.kueue_config.table import SETTINGS, KueueSetting, Support
from rackgate_cli.migrate.compatibility import FIELDS, KEYS, Outcome, Row
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.admission.validate import validate
from rackgate_webhook.settings import WebhookSettings
from tests.support.kueue_names import kueue_names
from tests.support.manifests import cluster_queue, manifest, workload
from tests.support.objects import job
from tests.support.reference import ROOT
from tests.support.reference.compatibility_page import INTRODUCTION, gate_rows
from tests.unit.webhook.reviews import review

Object = dict[str, Any]
SERVICES: dict[str, type[BaseModel]] = {
    "assigner": AssignerSettings,
    "ungater": UngaterConfiguration,
    "webhook": WebhookSettings,
}
# Parts of every API object that have no rows of their own.
_COMMON = re.compile(
    r"^(apiVersion|kind|metadata|spec|status)$|\.conditions\[\]\.|\.namespaceSelector\.|olerations\[\]\."
    r"|nodeTaints\[\]\.|podSets\[\]\.template\."
)
BASES = {
    "AdmissionCheck": manifest("AdmissionCheck", "c", spec={"controllerName": "acme.example/c"}),
    "ClusterQueue": cluster_queue(queueingStrategy="StrictFIFO"),
    "Workload": workload(),
}


def not_covered(found: list[str], rows: Sequence[Row | KueueSetting]) -> list[str]:
    return [name for name in found if not any(row.covers(name) for row in rows)]


def without_a_name(rows: Sequence[Row | KueueSetting], found: list[str]) -> list[str]:
    return [row.name for row in rows if not any(row.covers(name) for name in found)]


def fields_of_kueue() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in kueue_names("fields"):
        kind, _, path = line.partition(" ")
        found.setdefault(kind, []).append(path)
    return found


def properties(schema: Object, path: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from properties(inner, below)
        yield from properties(inner.get("items") or {}, f"{below}[]")


def fields_of_crds() -> dict[str, list[str]]:
    found = {}
    for path in sorted((ROOT / "deploy" / "crds").glob("kueue.x-k8s.io_*.yaml")):
        crd = yaml.safe_load(path.read_text())
        (version,) = [one for one in crd["spec"]["versions"] if one["name"] == names.VERSION]
        listed = properties(version["schema"]["openAPIV3Schema"])
        found[crd["spec"]["names"]["kind"]] = [one for one in listed if not _COMMON.search(one)]
    return found


def test_every_field_of_kueue_and_of_the_crds_has_a_row() -> None:
    kueue, crds = fields_of_kueue(), fields_of_crds()
    assert set(FIELDS) == set(kueue) == set(kueue) | set(crds)
    for kind, rows in FIELDS.items():
        found = [*kueue[kind], *crds.get(kind, [])]
        assert not_covered(found, rows) == [], kind
        assert without_a_name(rows, found) == [], kind


def test_every_key_of_kueue_has_a_row() -> None:
    rows = tuple(row for _, row in KEYS)
    ours = [
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value.startswith(f"{names.GROUP}/")
    ]
    others = {names.API_VERSION, names.MULTIKUEUE_CONTROLLER, names.PROVISIONING_CONTROLLER}
    found = [*kueue_names("keys"), *(key for key in ours if key not in others)]
    assert not_covered(found, rows) == []
    assert without_a_name(rows, found) == []
    assert len({row.name for row in rows}) == len(rows)


def test_every_setting_of_kueue_has_a_row() -> None:
    found = kueue_names("config")
    assert not_covered(found, SETTINGS) == []
    assert without_a_name(SETTINGS, found) == []


def test_every_gate_of_kueue_has_a_row_and_says_what_happens() -> None:
    rows = {row[0].strip("`"): row for row in gate_rows()}
    assert set(rows) == set(kueue_names("gates"))
    assert [name for name, row in rows.items() if not row[3]] == []


def test_what_is_behind_a_gate_names_one_that_is_off_by_default() -> None:
    off = {gate.name for gate in GATES if not gate.default}
    rows = [*(row for _, row in KEYS), *(row for listed in FIELDS.values() for row in listed)]
    assert {row.gate for row in rows if row.outcome is Outcome.GATED} <= off
    assert [row.name for row in rows if bool(row.gate) != (row.outcome is Outcome.GATED)] == []
    named = {name for row in rows for name in re.findall(r"gate `(\w+)`", row.note)}
    assert named <= {gate.name for gate in GATES}


def test_what_is_not_honoured_says_what_happens_instead() -> None:
    instead = (Outcome.WARNED, Outcome.REJECTED, Outcome.DIFFERS, Outcome.BETTER)
    rows = [*(row for _, row in KEYS), *(row for listed in FIELDS.values() for row in listed)]
    quiet = {row.name for row in rows if row.outcome in instead and not row.note}
    assert quiet == {"status.*"}  # of a kind that the API server does not know


def test_the_page_explains_each_of_its_words() -> None:
    for word in (*Outcome, *Support):
        assert f"\n| {word} | " in INTRODUCTION


def _field(model: type[BaseModel], path: list[str]) -> bool:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    if path[0] not in fields:
        return False
    kinds = (fields[path[0]].annotation, *get_args(fields[path[0]].annotation))
    inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return len(path) == 1 or any(_field(one, path[1:]) for one in inner)


@pytest.mark.parametrize(
    "setting", sorted({setting for row in SETTINGS for setting in row.settings})
)
def test_the_setting_that_replaces_one_of_kueue_exists(setting: str) -> None:
    service, _, path = setting.partition(":")
    assert _field(SERVICES[service], path.split("."))


def test_a_setting_that_differs_or_does_not_exist_has_a_note_or_another_setting() -> None:
    quiet = {
        row.name
        for row in SETTINGS
        if row.support is not Support.SAME and not row.note and not row.settings
    }
    # Objects, of which every field has its own row.
    assert quiet == {"controller", "health", "webhook"}


WARNED_FIELDS = [
    (kind, row) for kind, rows in FIELDS.items() for row in rows if row.outcome is Outcome.WARNED
]


@pytest.mark.parametrize(("kind", "row"), WARNED_FIELDS, ids=lambda it: getattr(it, "name", it))
def test_the_webhook_warns_about_a_field_without_effect(kind: str, row: Row) -> None:
    path = row.name.removesuffix(".*")
    found = copy.deepcopy(BASES[kind])
    found["spec"][path.removeprefix("spec.")] = row.example
    answer = validate(review(f"{names.GROUP}/{kind}", found))
    (warning,) = [text for text in answer.warnings if text.startswith(f"{path} has no effect: ")]
    assert len(warning) <= 256
    assert answer.errors == []
    assert unsupported_fields(kind, BASES[kind]) == []


WARNED_KEYS = [
    (holder, part, row.name + ("ValidUntilSeconds" if row.name.endswith("/") else ""))
    for place, row in KEYS
    if row.outcome is Outcome.WARNED
    for holder in re.findall(r"\b(?:job|template|Workload)\b", place)
    for part in re.findall(r"label|annotation", place)
]


@pytest.mark.parametrize(("holder", "part", "key"), WARNED_KEYS)
def test_the_webhook_warns_about_a_key_without_effect(holder: str, part: str, key: str) -> None:
    if holder == "Workload":
        kind, found = f"{names.GROUP}/Workload", copy.deepcopy(BASES["Workload"])
        target, path = found, "metadata"
    else:
        kind, found = "batch/Job", job("train", 2)
        target, path = found, "metadata"
        if holder == "template":
            target, path = found["spec"]["template"], "spec.template.metadata"
    target.setdefault("metadata", {}).setdefault(f"{part}s", {})[key] = "1"
    answer = validate(review(kind, found))
    assert answer.errors == []
    (warning,) = answer.warnings
    assert warning.startswith(f"{path}.{part}s[{key}] has no effect: ")
    assert "does not know it" not in warning  # a known key has a remedy of its own
    assert len(warning) <= 256


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
        ("metadata", "labels", {names.PODSET_LABEL: "other"}),
        ("metadata", "labels", {names.TAS_LABEL: "true"}),
        ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}]),
    ],
)
def test_a_key_that_the_page_calls_rejected_is_rejected_in_a_template(
    part: str, field: str, value: Any
) -> None:
    (key,) = value if isinstance(value, dict) else [value[0]["name"]]
    assert Outcome.REJECTED in [row.outcome for _, row in KEYS if row.name == key]
    found = job("train", 2, spec={"suspend": True})
    found["spec"]["template"].setdefault(part, {})[field] = value
    assert validate(review("batch/Job", found)).errors


def test_the_keys_that_kueue_leaves_behind_are_those_that_nothing_warns_about() -> None:
    left = {row.name for _, row in KEYS if row.outcome is Outcome.LEFT}
    # Kueue's documents name it, and no version writes it any more.
    older = {f"{names.GROUP}/podset-replica-sizes"}
    read = {names.KUEUE_SLICE_CHAIN_ANNOTATION}
    assert left | read == set(WRITTEN_BY_KUEUE) - older
