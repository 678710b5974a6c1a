"""The generator of the Helm chart."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.features import GATES
from rackgate.runtime.settings_table import fields
from tests.support.chart.__main__ import BY_HAND, CHART, generated, stale
from tests.support.chart.elsewhere import places
from tests.support.chart.templates import FOLDERS, operators
from tests.support.chart.text import Expression, If, Optional, Tree, template
from tests.support.chart.values import rows, schema, values_text
from tests.support.reference.settings import SERVICES

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


def test_the_chart_is_fresh() -> None:
    assert stale() == [], "run `make chart`"


def test_what_is_missing_differs_or_is_too_much_is_stale(tmp_path: Path) -> None:
    for name, text in generated().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    chart = tmp_path / "helm" / "rackgate"
    (chart / "Chart.yaml").write_text("by hand")
    assert stale(tmp_path) == []
    (chart / "values.yaml").unlink()
    (chart / "templates" / "webhook" / "mutating.yaml").write_text("edited")
    (chart / "templates" / "old.yaml").write_text("")
    assert stale(tmp_path) == [
        f"helm/rackgate/{name}"
        for name in ("templates/old.yaml", "templates/webhook/mutating.yaml", "values.yaml")
    ]


def test_every_file_by_hand_is_there() -> None:
    assert [name for name in BY_HAND if not (CHART / name).is_file()] == []


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]
    image = yaml.safe_load_all((DEPLOY / "services" / "webhook.yaml").read_text())
    (deployment,) = [one for one in image if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    values = yaml.safe_load(values_text())
    assert container["image"] == f"{values['image']['repository']}:{chart['appVersion']}"


def test_every_folder_of_deploy_is_in_the_chart_or_a_way_of_kustomize() -> None:
    """A new component is not forgotten."""
    kustomized = {
        str(path.parent.relative_to(DEPLOY)) for path in DEPLOY.rglob("kustomization.yaml")
    }
    # These add no objects of their own: the values say the same.
    ways = {
        ".",
        "elsewhere",
        "gangs/webhook",
        "namespaces",
        "overlays/cert-manager/cluster",
        "reject-unmanaged",
        "visibility-provided",
    }
    assert kustomized - ways == set(FOLDERS)


def resolved(found: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in found:
        found = schema()["$defs"][found["$ref"].removeprefix("#/$defs/")]
    return found


def test_the_schema_has_every_setting_and_knows_no_other() -> None:
    for service, model in SERVICES:
        top = resolved(schema()["properties"][service])["properties"]["config"]
        for path, _ in fields(model):
            found = resolved(top)
            for name in path.replace("[]", "").split("."):
                assert found["additionalProperties"] is False, f"{service}: {path}"
                found = found["properties"][name]
                options = found.get("anyOf", [found])
                found = resolved(options[0])
                found = resolved(found["items"]) if "$ref" in found.get("items", {}) else found


def test_the_schema_has_every_gate_and_knows_no_other() -> None:
    gates = schema()["properties"]["featureGates"]
    assert {gate.name for gate in GATES} <= set(gates["properties"])
    assert gates["additionalProperties"] is False
    for service, model in SERVICES:
        config = schema()["$defs"][f"{service.capitalize()}.{model.__name__}"]
        assert config["properties"]["featureGates"]["properties"] == gates["properties"]


def test_every_block_of_values_rejects_unknown_keys_and_every_value_is_described() -> None:
    def walk(path: str, found: dict[str, Any]) -> None:
        if "default" in found:
            return
        assert found["additionalProperties"] is False, path
        for name, inner in found["properties"].items():
            walk(f"{path}.{name}", inner)

    for name, found in schema()["properties"].items():
        if name != "global":
            walk(name, found)
    assert [path for path, found in rows() if not found["description"].endswith(".")] == []


def test_values_have_the_defaults_of_the_schema() -> None:
    values = yaml.safe_load(values_text())
    for path, found in rows():
        value: Any = values
        for name in path.split("."):
            value = value[name]
        assert value == found["default"], path


def test_the_list_of_operators_is_that_of_the_policies() -> None:
    assert "system:serviceaccount:jobset-system:jobset-controller-manager" in operators()
    assert len(operators()) == len(set(operators()))


@pytest.mark.parametrize(
    "entry",
    [
        {"a": "plain", "b": 1, "c": True, "d": None, "e": [], "f": {}, "g": 0.5},
        {"yes": "no", "on": "1", "empty": "", "colon": "a: b", "hash": "a #b", "dash": "- a"},
        {"lines": "a\n  b\n\nc\n", "no-end": "a\nb", "trailing": "a \nb\n", "tab": "\ta\nb"},
        {"long": "word " * 60, "long-words": " ".join(["x" * 90] * 3), "double": "a  b " * 40},
        {"list": [{"name": "a", "of": [1, 2]}, {"name": "b"}, "c"]},
        {"unicode": "größer ≥ 1", "quotes": "'a' \"b\"", "backslash": "a\\.b"},
    ],
)
def test_text_without_actions_gives_its_object_back(entry: dict[str, Any]) -> None:
    assert yaml.safe_load(template(entry)) == entry


def test_braces_of_the_text_are_no_actions() -> None:
    """Labels in alerts: Helm prints what is in backquotes."""
    text = template({"summary": "{{ $labels.job }} is down"})
    assert text.replace("{{`{{`}}", "{{") == "summary: '{{ $labels.job }} is down'\n"


def test_the_namespace_is_that_of_the_release_and_stays_a_string() -> None:
    """Namespaces may be numbers."""
    text = template({"namespace": "rackgate-system", "name": "rackgate-jobs.rackgate-system"})
    assert yaml.safe_load(text.replace("{{ .Release.Namespace }}", "1234")) == {
        "namespace": "1234",
        "name": "rackgate-jobs.1234",
    }


def test_actions_stand_where_they_are_indented_right() -> None:
    entry = {
        "spec": {
            "image": Expression('include "image" . | quote'),
            "resources": Tree("toYaml .Values.resources"),
            "affinity": Optional(".Values.affinity"),
            "items": [If(".Values.on", [{"name": "a"}]), {"name": "b"}],
            "rules": If(".Values.own", [1], [2]),
        }
    }
    assert (
        template(entry)
        == """\
spec:
  image: {{ include "image" . | quote }}
  resources: {{- toYaml .Values.resources | nindent 4 }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  items:
    {{- if .Values.on }}
    - name: a
    {{- end }}
    - name: b
  {{- if .Values.own }}
  rules:
    - 1
  {{- else }}
  rules:
    - 2
  {{- end }}
"""
    )


def test_the_schema_is_json_that_names_its_version() -> None:
    text = json.loads((CHART / "values.schema.json").read_text())
    assert text["$schema"].startswith("https://json-schema.org/")


def test_a_namespace_within_a_text_cannot_be_moved_and_is_named() -> None:
    found = {
        "spec": {"dnsNames": ["a.rackgate-system.svc"]},
        "webhooks": [{"ns": "rackgate-system"}],
    }
    assert list(places(found)) == [("spec.dnsNames.0", (".", 1)), ("webhooks.*.ns", None)]
    with pytest.raises(ValueError, match=r"^spec.text: .* in 'of rackgate-system here'"):
        list(places({"spec": {"text": "of rackgate-system here"}}))
