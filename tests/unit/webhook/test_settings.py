"""Settings of the webhook: bounds, and words for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackgate.runtime.settings import SettingsError, load_settings
from rackgate_webhook.settings import WebhookSettings

HEAD = "apiVersion: config.rackgate.dev/v1alpha1\nkind: WebhookConfiguration\n"


def load(folder: Path, text: str) -> WebhookSettings:
    file = folder / "config.yaml"
    file.write_text(HEAD + text)
    return load_settings(WebhookSettings, service="webhook", config=file)


@pytest.mark.requirement("GNG-30")
def test_defaults_of_gangs_are_off_until_they_are_set(tmp_path: Path) -> None:
    assert load(tmp_path, "").gang_defaults.fields() == {}
    text = "gangDefaults: {scheduleTimeoutSeconds: 300, reschedulingPolicy: TerminateAll}\n"
    found = load(tmp_path, f"{text}featureGates: {{WorkloadRevN: true}}\n").gang_defaults.fields()
    assert found == {"scheduleTimeoutSeconds": 300, "reschedulingPolicy": "TerminateAll"}


def test_defaults_serve_a_cluster(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    assert settings.certificates.secret_name == "rackgate-webhook-tls"
    assert "rackgate-webhook.rackgate-system.svc" in settings.certificates.rules.names
    assert settings.serving.port == 9443


@pytest.mark.field_note("W6")
def test_another_name_and_namespace_can_be_reported(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "certificates: {secretName: s, namespace: n, dnsNames: [a.n.svc], ipAddresses: ['::1'],"
        " configurationNames: [mine]}\n",
    )
    found = settings.certificates
    assert (found.secret_name, found.namespace) == ("s", "n")
    assert found.rules.names == {"a.n.svc", "::1"}
    assert found.configuration_names == ["mine"]


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("certificates: {ipAddresses: [nowhere]}", "certificates.ipAddresses"),
        ("certificates: {dnsNames: []}", "dnsNames or ipAddresses"),
        ("certificates: {validity: 60, renewBefore: 60}", "renewBefore (60 s) must be less"),
        ("certificates: {writeBundle: false}", "writeBundle: false goes with source: provided"),
        ("certificates: {source: cert-manager}", "certificates.source"),
        ("serving: {maxConnections: 3}", "serving.maxConnections"),
        ("serving: {port: 70000}", "serving.port"),
        ("gangDefaults: {scheduleTimeoutSeconds: 0}", "gangDefaults.scheduleTimeoutSeconds"),
        ("gangDefaults: {reschedulingPolicy: Never}", "gangDefaults.reschedulingPolicy"),
        (
            "gangDefaults: {reschedulingPolicy: TerminateAll}",
            "requires the feature gate WorkloadRevN",
        ),
        ("serving: {prot: 1}", 'serving: unknown key "prot"'),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert any(path in line for line in caught.value.lines)
