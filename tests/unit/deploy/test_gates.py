"""Components of deploy/ that need a feature gate: each sets its own, and no other setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from rackgate.features import (
    DEFAULTS,
    GANG_SCHEDULING,
    NATIVE_POD_GROUPS,
    OSMO_POOLS,
    POD_GROUPS,
)
from rackgate.runtime.settings import load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.binaries.versions import SERVICES
from rackgate_cli.locations import deploy_dir

DEPLOY: Final = deploy_dir()
# The services that read the gate.
READERS: Final = {
    OSMO_POOLS: {"webhook", "assigner"},
    POD_GROUPS: {"webhook", "assigner"},
    GANG_SCHEDULING: {"webhook", "assigner", "ungater"},
    NATIVE_POD_GROUPS: {"assigner", "ungater"},
}


@pytest.mark.parametrize("gate", install.COMPONENTS)
def test_the_flag_is_the_last_of_each_service_that_reads_the_gate(gate: str) -> None:
    folder = DEPLOY / install.COMPONENTS[gate]
    patches = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    (target,) = [one["target"] for one in patches if one["path"] == "gate.yaml"]
    deployments = {
        entry["metadata"]["name"]: entry["spec"]["template"]["spec"]["containers"]
        for entry in install.documents(DEPLOY / "services")
        if entry["kind"] == "Deployment"
    }
    assert set(deployments) == {f"rackgate-{service}" for service in SERVICES}
    matched = {name for name in deployments if re.fullmatch(target["name"], name)}
    assert matched == {f"rackgate-{service}" for service in READERS[gate]}
    (operation,) = yaml.safe_load((folder / "gate.yaml").read_text())
    assert operation == {
        "op": "add",
        "path": "/spec/template/spec/containers/0/command/-",
        "value": f"--set=featureGates.{gate}=true",
    }
    for name in matched:
        (container,) = deployments[name]
        assert container["command"][0] == name
        assert "args" not in container, "they would follow the flag"
    assert not DEFAULTS.as_dict()[gate]


def test_all_flags_work_together_and_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    own = {"RackgateRequiredAndPreferred": True}
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.rackgate.dev/v1alpha1",
                "kind": AssignerSettings.model_fields["kind"].default,
                "featureGates": own,
            }
        )
    )
    flags = [
        yaml.safe_load((DEPLOY / folder / "gate.yaml").read_text())[0]["value"]
        for folder in install.COMPONENTS.values()
    ]
    loaded = load_settings(
        AssignerSettings,
        service="assigner",
        config=file,
        environ={},
        flags=[flag.removeprefix("--set=") for flag in flags],
    )
    assert loaded.feature_gates == {**own, **dict.fromkeys(install.COMPONENTS, True)}
