from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from rackgate.runtime import settings as settings_module
from rackgate.runtime.settings import (
    BaseServiceSettings,
    ConfigModel,
    SettingsError,
    load_settings,
)

HEAD = "apiVersion: config.rackgate.dev/v1alpha1\nkind: ExampleConfiguration\n"


class Example(BaseServiceSettings):
    kind: Literal["ExampleConfiguration"] = "ExampleConfiguration"
    """Kind."""
    batch_window: float = 1.0
    """Seconds."""
    port: int = 1
    """A field whose variable Kubernetes may set for a Service."""


def load(
    text: str | None = None,
    tmp_path: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: tuple[str, ...] = (),
) -> Example:
    config = None
    if text is not None and tmp_path is not None:
        config = tmp_path / "config.yaml"
        config.write_text(text)
    return load_settings(Example, service="example", config=config, environ=environ, flags=flags)


def faults(text: str, tmp_path: Path, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as error:
        load(text, tmp_path, flags=flags)
    return error.value.lines


def test_without_anything_the_defaults_hold() -> None:
    example = load()
    assert example == Example()
    assert example.leader_election.lease_duration == 15
    assert example.connection.server is None


@pytest.mark.requirement("OPS-11")
def test_flags_beat_the_environment_beats_the_file_beats_defaults(tmp_path: Path) -> None:
    text = HEAD + "leaderElection: {leaseDuration: 5, namespace: file}\nbatchWindow: 5\n"
    environ = {
        "RACKGATE_EXAMPLE_LEADER_ELECTION__LEASE_DURATION": "6",
        "RACKGATE_EXAMPLE_BATCH_WINDOW": "6",
        "RACKGATE_OTHER_BATCH_WINDOW": "9",
    }
    example = load(text, tmp_path, environ, ("batchWindow=7", "log.level=debug"))
    assert example.leader_election.namespace == "file"
    assert example.leader_election.lease_duration == 6
    assert example.batch_window == 7
    assert example.log.level == "debug"
    assert example.log.format == "auto"


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("batchWindw: 1", 'unknown key "batchWindw" (did you mean "batchWindow"?)'),
        ("batch_window: 1", 'unknown key "batch_window" (did you mean "batchWindow"?)'),
        ("zzz: 1", 'unknown key "zzz"'),
        (
            "leaderElection: {leaseDurration: 1}",
            'leaderElection: unknown key "leaseDurration" (did you mean "leaseDuration"?)',
        ),
    ],
)
def test_unknown_keys_are_named_with_their_path(tmp_path: Path, text: str, line: str) -> None:
    assert faults(HEAD + text, tmp_path) == (line,)


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("health: {port: 70000}", "health.port: input should be less than or equal to 65535"),
        ("log: {level: loud}", "log.level: input should be 'debug', 'info', 'warning' or 'error'"),
        ("batchWindow: soon", "batchWindow: "),
        ("leaderElection: 3", "leaderElection: "),
        ("clockOffset: 3601", "clockOffset: input should be less than or equal to 3600"),
        (
            "featureGates: {DeactivateInvalidTopologi: true}",
            'featureGates: unknown feature gate "DeactivateInvalidTopologi" (did you mean '
            '"DeactivateInvalidTopology"?)',
        ),
        ("connection: {kubeconfig: a, server: b}", "connection: kubeconfig excludes server"),
        (
            "connection: {caFile: a}",
            "connection: caFile, tokenFile and client certificates require server",
        ),
        (
            "connection: {server: a, clientKeyFile: b}",
            "connection: clientCertificateFile and clientKeyFile go together",
        ),
    ],
)
def test_bad_values_are_named_with_their_path(tmp_path: Path, text: str, start: str) -> None:
    (line,) = faults(HEAD + text, tmp_path)
    assert line.startswith(start)


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    assert len(faults(HEAD + "a: 1\nb: 2\n", tmp_path, ("log.c=3",))) == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kind: ExampleConfiguration", 'apiVersion: "" is not supported'),
        (HEAD.replace("v1alpha1", "v9"), 'apiVersion: "config.rackgate.dev/v9" is not supported'),
        (HEAD.replace("Example", "Other"), 'kind: "OtherConfiguration" is not supported'),
        ("[1]", "must contain a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, text: str, line: str) -> None:
    assert any(line in fault for fault in faults(text, tmp_path))


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(Example, service="example", config=tmp_path / "none")


def test_variables_that_kubernetes_sets_for_services_are_left_alone() -> None:
    environ = {
        "RACKGATE_EXAMPLE_PORT": "tcp://10.0.0.1:443",
        "RACKGATE_EXAMPLE_SERVICE_HOST": "10.0.0.1",
        "RACKGATE_EXAMPLE_PORT_443_TCP_ADDR": "10.0.0.1",
    }
    assert load(environ=environ).port == 1
    assert load(environ={"RACKGATE_EXAMPLE_PORT": "8"}).port == 8


@pytest.mark.parametrize("flag", ["batchWindow", "=1", "batchWindow=["])
def test_malformed_flags_are_rejected(flag: str) -> None:
    with pytest.raises(SettingsError):
        load(flags=(flag,))


def test_every_field_is_documented() -> None:
    models: list[type[BaseModel]] = [BaseServiceSettings]
    models += [
        kind
        for kind in vars(settings_module).values()
        if isinstance(kind, type) and issubclass(kind, ConfigModel)
    ]
    undocumented = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert not undocumented


@pytest.mark.requirement("OPS-11")
def test_the_namespace_of_the_pod_moves_the_defaults_and_nothing_that_is_configured(
    tmp_path: Path,
) -> None:
    environ = {"POD_NAMESPACE": "team-infra"}
    assert load(environ=environ).leader_election.namespace == "team-infra"
    text = HEAD + "leaderElection: {namespace: file}\n"
    assert load(text, tmp_path, environ).leader_election.namespace == "file"
    assert load(environ={"POD_NAMESPACE": ""}) == Example()
