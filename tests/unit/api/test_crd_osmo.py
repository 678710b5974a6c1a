"""The definitions of OSMO's pools and workflows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api.crd import (
    OSMO_CRD_KINDS,
    crd_documents,
    crd_text,
    kind_schema,
    main,
    osmo_crd_documents,
)
from rackgate.api.names import PoolReason
from rackgate.api.osmo import (
    API_VERSION,
    MAX_GROUPS,
    MAX_POOL_NAME,
    MAX_RESOURCES,
    MAX_TASKS,
    Pool,
    Workflow,
)
from rackgate_osmo import read_pool, read_workflow
from rackgate_osmo.model import workflow
from tests.unit.api.test_crd import KEYWORDS, nodes

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "deploy" / "osmo" / "crds"
PAGE = ROOT / "docs" / "reference" / "osmo.md"
REASONS = ROOT / "docs" / "reference" / "conditions-and-reasons.md"
STALE = "run: python -m rackgate.api.crd deploy/osmo/crds osmo"


def schema_of(kind: type[Pool | Workflow]) -> dict[str, dict[str, Any]]:
    """Every node of a kind's schema by its path."""
    return dict(nodes(kind_schema(kind)))


@pytest.mark.requirement("OPS-04")
def test_the_files_are_as_generated_and_no_others_are_there() -> None:
    found = {path.name: path.read_text() for path in CRDS.iterdir()}
    listed = yaml.safe_load(found.pop("kustomization.yaml"))["resources"]
    assert sorted(listed) == sorted(found)
    assert found == {name: crd_text(entry) for name, entry in osmo_crd_documents().items()}, STALE
    assert not set(found) & set(crd_documents())


def test_the_word_osmo_writes_these_and_any_other_word_nothing(tmp_path: Path) -> None:
    assert main([str(tmp_path), "osmo"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(osmo_crd_documents())
    assert main([str(tmp_path), "omso"]) == 2


def test_schemas_hold_only_what_the_api_server_takes() -> None:
    for kind in OSMO_CRD_KINDS:
        for path, node in nodes(kind_schema(kind.model), kind.model.__name__):
            assert set(node) <= KEYWORDS, path
            assert isinstance(node.get("type"), str), path
            if node["type"] == "array":
                assert node["x-kubernetes-list-type"] in ("atomic", "map"), path
                assert "maxItems" in node, path
            if "additionalProperties" in node:
                assert "maxProperties" in node, path


@pytest.mark.requirement("OSM-01")
def test_a_pool_is_spelled_as_users_write_it_with_their_defaults() -> None:
    schema = schema_of(Pool)
    spec = schema[".spec"]["properties"]
    assert set(spec) == {
        *("description", "backend", "scheduler", "topology_keys"),
        *("node_selector", "tolerations", "gpu_toleration"),
    }
    assert (spec["scheduler"]["default"], spec["topology_keys"]["default"]) == ("kai", [])
    assert spec["topology_keys"]["maxItems"] == workflow.MAX_KEYS
    assert set(schema[".spec.topology_keys[]"]["properties"]) == set(
        workflow.TopologyKey.model_fields
    )


def test_the_bounds_are_those_of_the_library() -> None:
    assert (MAX_POOL_NAME, MAX_TASKS) == (workflow.MAX_POOL_NAME, workflow.MAX_TASKS)
    assert (MAX_GROUPS, MAX_RESOURCES) == (workflow.MAX_GROUPS, workflow.MAX_RESOURCES)


@pytest.mark.requirement("OSM-04")
def test_nothing_of_a_workflow_is_pruned_before_it_is_judged() -> None:
    """A misspelt `topology` that vanished would be a job without one."""
    kept = "x-kubernetes-preserve-unknown-fields"
    schema = schema_of(Workflow)
    objects = {
        path for path, node in schema.items() if node["type"] == "object" and "properties" in node
    }
    lost = {path for path in objects if not schema[path].get(kept)}
    assert lost == {"", ".metadata"} & objects
    assert not any(node.get(kept) for node in schema_of(Pool).values())


def test_manifests_shown_to_operators_are_ones_that_are_taken() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = [block for block in blocks if block.startswith(f"apiVersion: {API_VERSION}")]
    pool, workflow = map(yaml.safe_load, shown)
    for manifest, kind in ((pool, Pool), (workflow, Workflow)):
        assert manifest["apiVersion"] == API_VERSION
        kind.model_validate(manifest)
    of = read_pool({"name": pool["metadata"]["name"], **pool["spec"]})
    assert workflow["spec"].pop("pool") == of.name
    read_workflow({"name": "train", **workflow["spec"]}, of)


def test_every_reason_is_explained_to_operators() -> None:
    text = REASONS.read_text()
    assert {reason for reason in PoolReason if f"`{reason}`" not in text} == set()
