"""`rackgate kueue-config`: every setting of Kueue is translated, or named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.runtime.settings import load_settings
from rackgate_cli.__main__ import main
from rackgate_cli.kueue_config.table import SETTINGS, SUBTREE, Conversion, KueueSetting, Support
from rackgate_cli.kueue_config.translate import SERVICES, document_of, translate

HEAD = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
FULL = {
    **HEAD,
    "manageJobsWithoutQueueName": True,
    "managedJobsNamespaceSelector": {"matchLabels": {"kueue": "yes"}},
    "waitForPodsReady": {
        "timeout": "5m0s",
        "recoveryTimeout": "1h30m",
        "blockAdmission": True,
        "requeuingStrategy": {"timestamp": "Creation", "backoffBaseSeconds": 30},
    },
    "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
    "objectRetentionPolicies": {"workloads": {"afterFinished": "24h"}},
    "resources": {"excludeResourcePrefixes": ["example.com/"]},
    "leaderElection": {"leaderElect": True, "leaseDuration": "20s"},
    "featureGates": {
        "TASBalancedPlacement": True,
        "PartialAdmission": True,
        "PrioritizePreemptorWorkloads": False,
    },
}


def value_of(row: KueueSetting) -> Any:
    """A configuration with this setting alone."""
    path = row.name.removesuffix(SUBTREE)
    value: Any = "20s" if row.conversion is Conversion.SECONDS else ["x"]
    for key in reversed(path.removesuffix("[]").split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_each_setting_is_translated_or_named(row: KueueSetting) -> None:
    path = row.name.removesuffix(SUBTREE).removesuffix("[]")
    if "[]" in path:
        return  # within a list, which is named as a whole
    found = translate(HEAD | value_of(row))
    named = [line for line in (*found.notes, *found.missing) if line.startswith((path, "feature"))]
    if row.conversion is None:
        assert named
        assert bool(found.missing) == (row.support is Support.NOT_YET or path == "featureGates")
    else:
        assert found.documents


def test_a_full_configuration_becomes_files_with_which_the_services_start(tmp_path: Path) -> None:
    found = translate(FULL)
    assert found.missing == []
    for service, settings in found.documents.items():
        path = tmp_path / f"{service}.yaml"
        path.write_text(yaml.safe_dump(document_of(service, settings)))
        load_settings(SERVICES[service], service=service, config=path)
    assert found.documents["assigner"]["waitForPodsReady"]["timeout"] == 300
    assert found.documents["assigner"]["waitForPodsReady"]["recoveryTimeout"] == 5400
    assert found.documents["assigner"]["fairSharing"]["enable"] is True
    assert found.documents["webhook"]["manageJobsWithoutQueueName"] is True
    gates = {"TASBalancedPlacement": True, "RackgateStickyPreemptors": False}
    assert all(found.documents[service]["featureGates"] == gates for service in SERVICES)
    assert any('"PartialAdmission" is left out' in line for line in found.notes)


def test_the_timeout_that_kueue_has_by_default_is_named() -> None:
    found = translate(HEAD)
    assert found.documents == {}
    (note,) = found.notes
    assert "30 minutes" in note


def test_values_that_ask_for_what_rackgate_does_are_left_out_and_others_named() -> None:
    kinds = ["batch/job", "ray.io/raycluster"]
    same = {
        "integrations": {"frameworks": kinds},
        "resources": {"quotaCheckStrategy": "BlockUndeclared"},
    }
    assert translate(HEAD | same).missing == []
    (line,) = translate(HEAD | {"integrations": {"frameworks": [*kinds, "pod"]}}).missing
    assert line.startswith("integrations.frameworks pod: ")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"resources": {"transformations": [{"input": "x"}]}}, "resources.transformations: "),
        ({"multiKueue": {"gcInterval": "1m"}}, "multiKueue: "),
        ({"waitForPodsReady": {"enable": True}}, "waitForPodsReady.enable: Kueue has no such"),
        ({"waitForPodsReady": {"timeout": "soon"}}, "waitForPodsReady.timeout: 'soon' is not"),
        ({"waitForPodsReady": {"timeout": "-5m"}}, "waitForPodsReady.timeout: '-5m' is not"),
        ({"waitForPodsReady": {"blockAdmission": True}}, "assigner waitForPodsReady: "),
        ({"featureGates": {"MultiKueue": True}}, 'featureGates: feature gate "MultiKueue"'),
        ({"featureGates": {"Nonsense": True}}, "featureGates: Rackgate does not know"),
        ({"featureGates": ["MultiKueue"]}, "featureGates: expected names"),
    ],
)
def test_what_rackgate_cannot_follow_is_named(part: dict[str, Any], named: str) -> None:
    (line,) = translate(HEAD | part).missing
    assert line.startswith(named)


def test_the_command_reads_the_config_map_of_kueue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "map.yaml"
    data = {"controller_manager_config.yaml": yaml.safe_dump(FULL)}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "data": data}))
    assert main(["kueue-config", str(path)]) == 0
    printed = capsys.readouterr()
    kinds = [one["kind"] for one in yaml.safe_load_all(printed.out)]
    assert sorted(kinds) == [
        "AssignerConfiguration",
        "UngaterConfiguration",
        "WebhookConfiguration",
    ]
    assert "note: leaderElection.leaderElect is not translated" in printed.err


def test_the_exit_code_says_that_something_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kueue.yaml"
    path.write_text(yaml.safe_dump(HEAD | {"multiKueue": {"origin": "here"}}))
    assert main(["kueue-config", str(path)]) == 3
    assert "not translated: multiKueue: " in capsys.readouterr().err


def test_a_file_without_a_configuration_of_kueue_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration\n")
    assert main(["kueue-config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "has no config.kueue.x-k8s.io/v1beta2 Configuration" in said
    assert "it has config.kueue.x-k8s.io/v1beta1 Configuration" in said
