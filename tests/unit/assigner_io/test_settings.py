from __future__ import annotations

from pathlib import Path

import pytest

from rackgate.runtime.settings import SettingsError, load_settings
from rackgate_assigner.node_replacement.recovery_timeout import RecoveryTimeout
from rackgate_assigner.settings import AssignerSettings

pytestmark = pytest.mark.requirement("OPS-11")


def test_defaults_stand_without_a_file() -> None:
    found = load_settings(AssignerSettings, service="assigner")
    assert found.cycle.min_interval == 0.1
    assert found.budgets.admission.qps > found.budgets.queues.qps
    assert found.resources.exclude_resource_prefixes == []
    assert found.wait_for_pods_ready.recovery() == RecoveryTimeout(None, 60, 3600)


def test_a_file_sets_every_part(tmp_path: Path) -> None:
    file = tmp_path / "assigner.yaml"
    file.write_text(
        "apiVersion: config.rackgate.dev/v1alpha1\n"
        "kind: AssignerConfiguration\n"
        "cycle: {minInterval: 0.5}\n"
        "budgets: {queues: {qps: 5, burst: 5, concurrency: 2}}\n"
        "queueStatus: {minInterval: 2}\n"
        "resources: {excludeResourcePrefixes: [example.com/, other.example]}\n"
        "waitForPodsReady: {recoveryTimeout: 180, requeuingStrategy: {backoffBaseSeconds: 5}}\n"
        "featureGates: {DeactivateInvalidTopology: false}\n"
    )
    found = load_settings(AssignerSettings, service="assigner", config=file)
    assert found.budgets.queues.concurrency == 2
    assert found.queue_status.min_interval == 2
    assert found.resources.exclude_resource_prefixes == ["example.com/", "other.example"]
    assert found.features.deactivate_invalid_topology is False
    assert found.wait_for_pods_ready.recovery() == RecoveryTimeout(180, 5, 3600)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("cycle.minIntervall=1", "minIntervall"),
        ("queueStatus.minInterval=0.01", "minInterval"),
        ("budgets.jobs.burst=0", "burst"),
        ("featureGates={NoSuchGate: true}", "NoSuchGate"),
        ('resources.excludeResourcePrefixes=[""]', "excludeResourcePrefixes"),
        ("resources.transformations=[]", "transformations"),
        (
            "waitForPodsReady.recoveryTimeout=0",
            r"waitForPodsReady.recoveryTimeout: .*greater than or equal to 1 \(found 0\)",
        ),
        ("waitForPodsReady.recoveryTimeout=3m", r"recoveryTimeout: .*found '3m'"),
        ("waitForPodsReady.requeuingStrategy={backoffBaseSeconds: 7200}", "raise the second"),
    ],
)
def test_a_wrong_setting_is_named(flag: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(AssignerSettings, service="assigner", flags=[flag])
