"""What comes back at another port is registered anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate_cli.controlplane import install as installation
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.processes import ProcessRecord
from rackgate_cli.controlplane.services import token_file
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.playground import playground

# For which services, and the ports of the webhooks then.
Installed = list[tuple[tuple[str, ...], int, int]]
BEFORE, AFTER = 20001, 20002


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFolder:
    """A playground whose control plane runs, as far as anybody can tell."""
    folder = StateFolder(tmp_path)
    record = ProcessRecord("kube-apiserver", 1, "now", (), "log", "https://127.0.0.1:1")
    folder.save(
        Playground(
            ports={"webhook": BEFORE, "jobset-webhook": BEFORE},
            replicas={"webhook": 1, "assigner": 1},
            operators=["jobset", "kuberay"],
            processes={record.name: record},
        )
    )
    for service in ("webhook", "assigner"):
        token_file(folder, service).parent.mkdir(parents=True)
        token_file(folder, service).touch()
    monkeypatch.setattr(Cluster, "running", lambda *_: record)
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    seen: Installed = []

    def install(cluster: Cluster, _: int, services: tuple[str, ...]) -> None:
        ports = cluster.playground.ports
        seen.append((services, ports["webhook"], ports["jobset-webhook"]))

    monkeypatch.setattr(installation, "prepare", install)
    return seen


def starts_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Whatever is started finds this port."""

    def start(cluster: Cluster, names: tuple[str, ...]) -> None:
        key = "jobset-webhook" if names == ("jobset",) else "webhook"
        cluster.playground.ports[key] = port

    monkeypatch.setattr(playground, "start_services", start)
    monkeypatch.setattr(playground, "start_operators", start)


def test_a_webhook_whose_port_was_taken_is_registered_at_its_new_one(
    state: StateFolder, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_at(monkeypatch, AFTER)
    playground.start(state.path, "webhook")
    assert installed == [(("webhook",), AFTER, BEFORE)]


def test_an_operator_whose_port_was_taken_is_registered_at_its_new_one(
    state: StateFolder, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_at(monkeypatch, AFTER)
    playground.start(state.path, "jobset")
    assert installed == [((), BEFORE, AFTER)]


@pytest.mark.parametrize("component", ["webhook", "assigner", "jobset", "kuberay"])
def test_what_comes_back_where_it_was_is_not_registered_again(
    state: StateFolder, installed: Installed, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    starts_at(monkeypatch, BEFORE)
    playground.start(state.path, component)
    assert installed == []


def test_gang_scheduling_sets_the_gates_that_use_it_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playground, "find_binaries", lambda *_: {})
    monkeypatch.setattr(playground, "_start", lambda *_: None)
    folder = StateFolder(playground.up(tmp_path / "state", operators=("gang-scheduling",)))
    record = folder.load()
    assert record is not None
    assert (record.features, record.operators) == (["gang-scheduling"], [])
    assert record.feature_gates == {GANG_SCHEDULING: True, NATIVE_POD_GROUPS: True}
    playground.up(folder.path, feature_gates={NATIVE_POD_GROUPS: False})
    record = folder.load()
    assert record is not None
    assert record.features == ["gang-scheduling"]
    assert record.feature_gates == {GANG_SCHEDULING: True, NATIVE_POD_GROUPS: False}
