from __future__ import annotations

from pathlib import Path

import pytest

from rackgate.runtime.settings import SettingsError, load_settings
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing
from rackgate_assigner.settings import AssignerSettings, WaitForPodsReadySettings
from rackgate_assigner.workload.pods_ready_timeout import PodsReadyTimeouts

pytestmark = pytest.mark.requirement("OPS-11")


def test_defaults_stand_without_a_file() -> None:
    found = load_settings(AssignerSettings, service="assigner")
    assert found.cycle.min_interval == 0.02
    assert found.budgets.admission.qps > found.budgets.queues.qps
    assert found.resources.exclude_resource_prefixes == []
    assert found.wait_for_pods_ready.timeouts() == PodsReadyTimeouts(None, None, 60, 3600, None)


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        ({}, True),
        ({"featureGates": {"VisibilityOnDemand": False}}, False),
        ({"visibility": {"enabled": False}}, False),
    ],
)
def test_the_visibility_api_is_served_unless_gate_or_setting_turn_it_off(
    changes: dict[str, object], served: bool
) -> None:
    assert AssignerSettings.model_validate(changes).serves_visibility is served


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        (
            {"admissionFairSharing": {"usageHalfLifeTime": 60}},
            AdmissionFairSharing(half_life_s=60, sampling_interval_s=300),
        ),
        (
            {
                "admissionFairSharing": {
                    "usageHalfLifeTime": 0,
                    "usageSamplingInterval": 10,
                    "resourceWeights": {"nvidia.com/gpu": 100, "cpu": 0},
                }
            },
            AdmissionFairSharing(0, 10, {"nvidia.com/gpu": 100, "cpu": 0}),
        ),
        (
            {
                "admissionFairSharing": {"usageHalfLifeTime": 60},
                "featureGates": {"AdmissionFairSharing": False},
            },
            None,
        ),
    ],
)
def test_admission_fair_sharing_is_on_with_a_half_life_and_its_gate(
    changes: dict[str, object], expected: AdmissionFairSharing | None
) -> None:
    found = AssignerSettings.model_validate(changes)
    assert found.admission_fair_sharing.rules(found.features) == expected


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
    assert found.wait_for_pods_ready.timeouts() == PodsReadyTimeouts(None, 180, 5, 3600)


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
            "waitForPodsReady.timeout=0",
            r"waitForPodsReady.timeout: .*greater than or equal to 1 \(found 0\)",
        ),
        ("waitForPodsReady.recoveryTimeout=-1", "greater than or equal to 0"),
        ("waitForPodsReady.requeuingStrategy.timestamp=Start", "Eviction"),
        ("waitForPodsReady.requeuingStrategy.backoffLimitCount=-1", "backoffLimitCount"),
        ("waitForPodsReady.blockAdmission=true", "blockAdmission requires timeout"),
        ("waitForPodsReady.recoveryTimeout=3m", r"recoveryTimeout: .*found '3m'"),
        ("waitForPodsReady.requeuingStrategy={backoffBaseSeconds: 7200}", "raise the second"),
        ("admissionFairSharing.usageHalfLifeTime=-1", "greater than or equal to 0"),
        ("admissionFairSharing.usageHalfLifeTime=168h", r"usageHalfLifeTime: .*found '168h'"),
        (
            "admissionFairSharing={usageHalfLifeTime: 60, usageSamplingInterval: 0}",
            "greater than or equal to 1",
        ),
        (
            "admissionFairSharing={usageHalfLifeTime: 60, resourceWeights: {cpu: -1}}",
            "greater than or equal to 0",
        ),
        (
            "admissionFairSharing.resourceWeights={cpu: 1}",
            "admissionFairSharing: .*usageHalfLifeTime is required",
        ),
    ],
)
def test_a_wrong_setting_is_named(flag: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(AssignerSettings, service="assigner", flags=[flag])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"timeout": 300}, (300, 300)),
        ({"timeout": 300, "recoveryTimeout": 60}, (300, 60)),
        ({"timeout": 300, "recoveryTimeout": 0}, (300, None)),
        ({"recoveryTimeout": 60}, (None, 60)),
        ({"recoveryTimeout": 0}, (None, None)),
    ],
)
def test_lost_pods_have_the_time_of_a_start_unless_they_have_their_own(
    flags: dict[str, int], expected: tuple[float | None, float | None]
) -> None:
    found = WaitForPodsReadySettings.model_validate(flags).timeouts()
    assert (found.start_s, found.recovery_s) == expected
    assert found.enabled is (expected != (None, None))
