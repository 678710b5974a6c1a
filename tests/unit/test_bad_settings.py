"""Every service refuses settings that it does not know, in words, with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rackgate_assigner.__main__
import rackgate_ungater.__main__
import rackgate_webhook.__main__

Main = Callable[[], int]

SERVICES: list[tuple[str, Main]] = [
    ("Assigner", rackgate_assigner.__main__.main),
    ("Ungater", rackgate_ungater.__main__.main),
    ("Webhook", rackgate_webhook.__main__.main),
]


@pytest.fixture(params=SERVICES, ids=lambda service: str(service[0]))
def service(request: pytest.FixtureRequest) -> tuple[str, Main]:
    found: tuple[str, Main] = request.param
    return found


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("helth: {port: 1}", 'config: unknown key "helth" (did you mean "health"?)'),
        ("health: {prot: 1}", 'config: health: unknown key "prot" (did you mean "port"?)'),
        ("featureGates: {NoSuchGate: true}", 'unknown feature gate "NoSuchGate"'),
        ("health: {port: many}", "health.port"),
        ("health: [", "config: "),
        ("- a list", "config: "),
    ],
)
def test_a_wrong_configuration_ends_a_service_at_once_with_the_field(
    service: tuple[str, Main],
    text: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, main = service
    head = f"apiVersion: config.rackgate.dev/v1alpha1\nkind: {kind}Configuration\n"
    config = tmp_path / "config.yaml"
    config.write_text(text if text.startswith("-") else head + text)
    monkeypatch.setattr(sys, "argv", [f"rackgate-{kind.lower()}", "--config", str(config)])
    assert main() == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_a_configuration_of_another_service_is_refused(
    service: tuple[str, Main],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, main = service
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: config.rackgate.dev/v1alpha1\nkind: OtherConfiguration\n")
    monkeypatch.setattr(sys, "argv", [f"rackgate-{kind.lower()}", "--config", str(config)])
    assert main() == 2
    assert f"{kind}Configuration" in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_refused_with_its_path(
    service: tuple[str, Main],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, main = service
    config = tmp_path / "absent.yaml"
    monkeypatch.setattr(sys, "argv", [f"rackgate-{kind.lower()}", "--config", str(config)])
    assert main() == 2
    assert str(config) in capsys.readouterr().err
