"""Manifests shown to operators are ones that the models take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rackgate.api.crd import KINDS

PAGE = Path(__file__).parents[3] / "docs" / "operation.md"


def manifests() -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_the_first_queue_is_complete_and_valid() -> None:
    models = {kind.model.__name__: kind.model for kind in KINDS}
    shown = {document["kind"]: document for document in manifests()}
    assert list(shown) == ["Topology", "ResourceFlavor", "ClusterQueue", "LocalQueue"]
    for kind, document in shown.items():
        models[kind].model_validate(document)
    flavor, queue = shown["ResourceFlavor"], shown["ClusterQueue"]
    assert flavor["spec"]["topologyName"] == shown["Topology"]["metadata"]["name"]
    groups = queue["spec"]["resourceGroups"]
    named = {offered["name"] for group in groups for offered in group["flavors"]}
    assert named == {flavor["metadata"]["name"]}
    assert shown["LocalQueue"]["spec"]["clusterQueue"] == queue["metadata"]["name"]
