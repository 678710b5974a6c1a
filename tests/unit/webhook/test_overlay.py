"""The overlay for cert-manager: who issues, who writes the bundle, and what is left to us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.installation.marker import KUEUE_CONFIGURATION
from rackgate.runtime.settings import load_settings
from rackgate_webhook.settings import CONVERTED_CRDS, WebhookSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
OVERLAY = DEPLOY / "overlays" / "cert-manager"

Object = dict[str, Any]


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def by_name(found: list[Object], kind: str) -> dict[str, Object]:
    return {entry["metadata"]["name"]: entry for entry in found if entry["kind"] == kind}


CERTIFICATES = by_name(documents(OVERLAY / "certificate.yaml"), "Certificate")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WebhookSettings:
    (config,) = documents(OVERLAY / "settings.yaml")
    path = tmp_path_factory.mktemp("overlay") / "config.yaml"
    path.write_text(config["data"]["config.yaml"])
    return load_settings(WebhookSettings, service="webhook", config=path)


@pytest.mark.requirement("HOOK-13")
@pytest.mark.field_note("W6")
def test_certificate_settings_and_roles_mean_one_secret(settings: WebhookSettings) -> None:
    certificates = settings.certificates
    assert (certificates.source, certificates.write_bundle) == ("provided", False)
    issued = CERTIFICATES["rackgate-webhook"]
    assert issued["spec"]["secretName"] == certificates.secret_name
    assert issued["metadata"]["namespace"] == certificates.namespace
    assert set(issued["spec"]["dnsNames"]) == set(certificates.dns_names)
    base = WebhookSettings().certificates
    assert certificates.secret_name != base.secret_name, "its type could not change"


@pytest.mark.requirement("OPS-05")
def test_with_cert_manager_the_webhook_may_read_one_secret_and_write_nothing(
    settings: WebhookSettings,
) -> None:
    roles = documents(OVERLAY / "rbac.yaml")
    base = documents(DEPLOY / "rbac" / "webhook.yaml")
    for kind in ("ClusterRole", "Role"):
        (name,) = by_name(roles, kind)
        assert name in by_name(base, kind)
        for rule in by_name(roles, kind)[name]["rules"]:
            if rule["verbs"] == ["list", "watch"]:
                # Who else is there: the mark of the cluster, and Kueue.
                assert rule["resourceNames"] in (["rackgate"], [KUEUE_CONFIGURATION])
                continue
            assert rule["verbs"] == ["get", "list", "watch"]
            if rule["resources"] == ["secrets"]:
                assert rule["resourceNames"] == [settings.certificates.secret_name]
            elif rule["resources"] == ["customresourcedefinitions"]:
                assert rule["resourceNames"] == list(CONVERTED_CRDS)
            else:
                assert rule["resourceNames"] == settings.certificates.configuration_names
