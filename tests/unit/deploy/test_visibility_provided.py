"""deploy/visibility-provided: the assigner only reads the certificate of the visibility API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rackgate.runtime.settings import load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

DEPLOY = deploy_dir()
FOLDER = DEPLOY / "visibility-provided"


def found(path: Path, kind: str, name: str) -> dict[str, Any]:
    (only,) = [
        document
        for document in install.documents(path)
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return only


@pytest.mark.requirement("OPS-05")
def test_the_assigner_loses_the_rights_to_write_secrets_and_no_other() -> None:
    before = found(DEPLOY / "rbac" / "assigner.yaml", "Role", "rackgate-assigner")["rules"]
    now = found(FOLDER / "rbac.yaml", "Role", "rackgate-assigner")["rules"]
    assert [rule for rule in before if rule["resources"] != ["secrets"]] == [
        rule for rule in now if rule["resources"] != ["secrets"]
    ]
    (read,) = [rule for rule in now if rule["resources"] == ["secrets"]]
    assert read["verbs"] == ["get", "list", "watch"]
    name = AssignerSettings().visibility.certificates.secret_name
    assert read["resourceNames"] == [name]


def test_the_component_sets_where_the_certificate_comes_from(
    tmp_path: Path,
) -> None:
    """The configuration of the base stays, beside it."""
    deployment = found(FOLDER / "setting.yaml", "Deployment", "rackgate-assigner")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    config = found(DEPLOY / "services" / "assigner.yaml", "ConfigMap", "rackgate-assigner")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    environ = {variable["name"]: variable["value"]}
    settings = load_settings(AssignerSettings, service="assigner", config=file, environ=environ)
    certificates = settings.visibility.certificates
    assert certificates.source == "provided"
    assert settings.visibility.port == 8443
    assert certificates.dns_names == ["rackgate-visibility.rackgate-system.svc"]
