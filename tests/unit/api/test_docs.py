"""Manifests shown to operators are ones that the models take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rackgate.api.crd import CRD_KINDS
from rackgate.runtime.settings import API_VERSION, load_settings
from rackgate_assigner.settings import AssignerSettings

PAGE = Path(__file__).parents[3] / "docs" / "operation.md"


def manifests() -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_the_first_queue_is_complete_and_valid() -> None:
    models = {kind.model.__name__: kind.model for kind in CRD_KINDS}
    objects = [found for found in manifests() if found["apiVersion"] != API_VERSION]
    shown = {document["kind"]: document for document in objects}
    assert list(shown) == ["Topology", "ResourceFlavor", "ClusterQueue", "LocalQueue"]
    for kind, document in shown.items():
        models[kind].model_validate(document)
    flavor, queue = shown["ResourceFlavor"], shown["ClusterQueue"]
    assert flavor["spec"]["topologyName"] == shown["Topology"]["metadata"]["name"]
    groups = queue["spec"]["resourceGroups"]
    named = {offered["name"] for group in groups for offered in group["flavors"]}
    assert named == {flavor["metadata"]["name"]}
    assert shown["LocalQueue"]["spec"]["clusterQueue"] == queue["metadata"]["name"]


def test_configurations_shown_are_ones_the_assigner_takes(tmp_path: Path) -> None:
    shown = [found for found in manifests() if found["apiVersion"] == API_VERSION]
    assert [document["kind"] for document in shown] == ["AssignerConfiguration"] * 2
    file = tmp_path / "assigner.yaml"
    for document in shown:
        file.write_text(yaml.safe_dump(document))
        load_settings(AssignerSettings, service="assigner", config=file)
