from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api.crd import CRD_KINDS, crd_documents, crd_text, kind_schema, main

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
STALE = "run: python -m rackgate.api.crd deploy/crds"
KEYWORDS = {
    "additionalProperties",
    "anyOf",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema node with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def all_nodes() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in CRD_KINDS:
        yield from nodes(kind_schema(kind.model), kind.model.__name__)


@pytest.mark.requirement("OPS-04")
@pytest.mark.parametrize("name", sorted(crd_documents()))
def test_the_files_are_as_generated(name: str) -> None:
    assert (CRDS / name).read_text() == crd_text(crd_documents()[name]), STALE


def test_no_file_is_left_of_a_kind_that_is_gone() -> None:
    found = {path.name for path in CRDS.glob("*.yaml")} - {"kustomization.yaml"}
    assert found == set(crd_documents()), STALE


def test_a_changed_model_would_be_noticed(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    name = "kueue.x-k8s.io_topologies.yaml"
    changed = crd_documents()[name]
    spec = changed["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["levels"]["maxItems"] = 8
    assert (tmp_path / name).read_text() != crd_text(changed)


def test_without_a_folder_the_command_says_how() -> None:
    assert main([]) == 2


def test_schemas_hold_only_what_the_api_server_takes() -> None:
    for path, node in all_nodes():
        assert set(node) <= KEYWORDS, path
        if not node.get("x-kubernetes-int-or-string"):
            assert isinstance(node.get("type"), str), path
            assert "anyOf" not in node, path
        assert node.get("default", "") is not None, path


def test_lists_are_bounded_wherever_a_rule_could_loop_over_them() -> None:
    unbounded = {
        path for path, node in all_nodes() if node.get("type") == "array" and "maxItems" not in node
    }
    selector = "ClusterQueue.spec.namespaceSelector.matchExpressions"
    assert unbounded == {selector, f"{selector}[].values"}


def test_every_list_says_how_it_merges() -> None:
    for path, node in all_nodes():
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "map", "set"), path


@pytest.mark.requirement("OPS-04")
def test_every_kind_is_served_in_both_versions_and_stored_in_the_newer() -> None:
    for document in crd_documents().values():
        versions = document["spec"]["versions"]
        assert [version["name"] for version in versions] == ["v1beta1", "v1beta2"]
        assert [version["served"] for version in versions] == [True, True]
        assert [version["storage"] for version in versions] == [False, True]


@pytest.mark.requirement("OPS-04")
def test_kinds_whose_versions_differ_are_converted_by_the_webhook() -> None:
    for kind, document in zip(CRD_KINDS, crd_documents().values(), strict=True):
        old, new = (schema_of(version)["properties"] for version in document["spec"]["versions"])
        same = without_text(old) == without_text(new)
        # A Topology has the same fields, but its levels are fixed in v1beta1.
        assert kind.converted == (not same and kind.model.__name__ != "Topology"), kind.plural
        conversion = document["spec"]["conversion"]
        if not kind.converted:
            assert conversion == {"strategy": "None"}
            continue
        service = conversion["webhook"]["clientConfig"]["service"]
        assert (service["name"], service["path"]) == ("rackgate-webhook", "/convert")
        # Without one, an apply of the manifests takes nothing away from the webhook.
        assert "caBundle" not in conversion["webhook"]["clientConfig"]


def schema_of(version: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def without_text(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_text(child) for key, child in node.items() if key != "description"}
    return [without_text(child) for child in node] if isinstance(node, list) else node


NEW_NAMES = {
    "ClusterQueue.spec.cohort": "ClusterQueue.spec.cohortName",
    "LocalQueue.status.flavorUsage": "LocalQueue.status.flavorsUsage",
}


@pytest.mark.requirement("OPS-04")
def test_no_rule_of_the_newer_version_is_missing_in_the_older() -> None:
    """Else a write through v1beta1 would be a way around it."""
    for kind, document in zip(CRD_KINDS, crd_documents().values(), strict=True):
        name = kind.model.__name__
        old, new = (schema_of(version) for version in document["spec"]["versions"])
        counts = [
            {path: len(node.get("x-kubernetes-validations", ())) for path, node in nodes(it, name)}
            for it in (old, new)
        ]
        for path, number in counts[1].items():
            if path.startswith("Workload.spec.priorityClassRef"):
                continue  # two fields, of which no pair is wrong
            found = {NEW_NAMES.get(it, it): number for it, number in counts[0].items()}
            assert found.get(path, number and -1) >= number, path


@pytest.mark.requirement("TAS-01", "TAS-02")
def test_levels_have_the_bounds_of_the_appendix() -> None:
    document = crd_documents()["kueue.x-k8s.io_topologies.yaml"]
    for version in document["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        levels = schema["properties"]["levels"]
        assert schema["required"] == ["levels"]
        assert (levels["minItems"], levels["maxItems"]) == (1, 16)
        assert levels["x-kubernetes-list-type"] == "atomic"
        label = levels["items"]["properties"]["nodeLabel"]
        assert (label["minLength"], label["maxLength"]) == (1, 316)
        assert label["pattern"].startswith("^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.")


def test_templates_keep_unknown_fields() -> None:
    schema = dict(nodes(kind_schema(CRD_KINDS[-1].model)))[".spec.podSets[].template"]
    assert schema["x-kubernetes-preserve-unknown-fields"] is True


def test_the_files_are_plain_yaml() -> None:
    for name in crd_documents():
        text = (CRDS / name).read_text()
        assert "&id" not in text
        assert yaml.safe_load(text) == crd_documents()[name]
