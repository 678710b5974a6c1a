"""Every service refuses settings that it does not know, in words, with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Attempt:
    """A start of one service that must be refused."""

    kind: str
    main: Main
    folder: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def refused(self, text: str | None) -> str:
        """What the service says about a configuration (None: no file) that it refuses."""
        if text is not None:
            self.config.write_text(text)
        service = f"rackgate-{self.kind.lower()}"
        self.monkeypatch.setattr(sys, "argv", [service, "--config", str(self.config)])
        assert self.main() == 2
        said = self.capsys.readouterr().err
        assert "Traceback" not in said
        return said


@pytest.fixture(params=SERVICES, ids=lambda service: str(service[0]))
def attempt(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Attempt:
    kind, main = request.param
    return Attempt(kind, main, tmp_path, capsys, monkeypatch)


HEAD = "apiVersion: config.rackgate.dev/v1alpha1\nkind: {kind}Configuration\n"


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("helth: {port: 1}", 'config: unknown key "helth" (did you mean "health"?)'),
        ("health: {prot: 1}", 'config: health: unknown key "prot" (did you mean "port"?)'),
        ("featureGates: {NoSuchGate: true}", 'unknown feature gate "NoSuchGate"'),
        ("health: {port: many}", "health.port"),
        ("health: [", "config: "),
    ],
)
def test_a_wrong_configuration_ends_a_service_at_once_with_the_field(
    attempt: Attempt, text: str, says: str
) -> None:
    assert says in attempt.refused(HEAD.format(kind=attempt.kind) + text)


def test_a_configuration_of_another_service_is_rejected(attempt: Attempt) -> None:
    assert f"{attempt.kind}Configuration" in attempt.refused(HEAD.format(kind="Other"))


def test_a_configuration_that_is_no_map_is_rejected(attempt: Attempt) -> None:
    assert attempt.refused("- a list").startswith("config: ")


def test_a_configuration_that_is_not_there_is_rejected_with_its_path(attempt: Attempt) -> None:
    assert str(attempt.config) in attempt.refused(None)
