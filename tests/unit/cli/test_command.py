from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rackgate.runtime.settings import LeaderElectionSettings
from rackgate_cli.__main__ import VERBS, _parse, main
from rackgate_cli.controlplane.binaries.versions import COMPONENTS
from rackgate_cli.controlplane.pki import ensure_pki
from rackgate_cli.controlplane.processes import ProcessRecord
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import cache_dir, deploy_dir, state_dir
from rackgate_cli.playground import commands as playground_verbs


def verbs() -> dict[str, argparse.ArgumentParser]:
    subparsers = argparse.ArgumentParser(prog="rackgate").add_subparsers()
    playground_verbs.add_parser(subparsers)
    return dict(subparsers.choices)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_explains_itself_with_examples(verb: str) -> None:
    text = verbs()[verb].format_help()
    assert "examples:" in text
    assert text.count(f"rackgate {verb}") >= 2


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["up", "--nodes", "-1"],
        ["up", "--nodes", "many"],
        ["up", "--services", "webhook,cook"],
        ["up", "--with", "jobset,airflow"],
        ["up", "--feature-gates", "ElasticJobsViaWorkloadSlices"],
        ["up", "--feature-gates", "ElasticJobs=true"],
        ["up", "--lease-duration", "soon"],
        ["up", "--lease-duration", "0.5"],
        ["up", "--lease-duration", "3601"],
        ["up", "--lease-duration", "nan"],
        ["scale", "etcd", "2"],
        ["stop", "cook"],
    ],
)
def test_wrong_usage_ends_with_code_2(line: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["nonsense"], 'unknown verb "nonsense"; "rackgate --help" lists all verbs'),
        (["gt", "queues"], 'unknown verb "gt" (did you mean "get"?)'),
        (["cancle", "train"], 'unknown verb "cancle" (did you mean "cancel"?)'),
        (["get", "quees"], 'unknown kind "quees" (did you mean "queues"?)'),
        (["get", "queues", "job/train"], '"job/train" and queues cannot be shown together'),
        (["get", "queues", "-l", "a=b"], "--selector selects Workloads, not queues"),
        (["get", "queues", "--level", "rack"], "--level selects domains of a topology, not queues"),
        (["get", "topology", "-w"], "-w works for queues and workloads, not for topology"),
        (["hold", "jbo/train"], 'unknown kind "jbo" in "jbo/train" (did you mean "job"?)'),
        (["hold", "job/"], '"job/" is not a name: write NAME or KIND/NAME'),
    ],
)
def test_a_wrong_word_is_named_with_what_was_probably_meant(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    assert said in capsys.readouterr().err


def test_a_wrong_verb_of_a_verb_is_named_with_what_was_probably_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["osmo", "chekc"])
    assert '(did you mean "check"?)' in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"kubectl"}))
def test_flags_may_stand_between_names(verb: str) -> None:
    # argparse rejects parsers for which it cannot do this, unless the verb has verbs of its own.
    with contextlib.suppress(SystemExit, CommandError):
        main([verb, "--no-such-flag"])
    if verb in ("hold", "resume", "cancel", "requeue"):
        given = _parse([verb, "job/a", "-n", "team-a", "job/b"])
        assert (given.jobs, given.namespace) == (["job/a", "job/b"], "team-a")


def test_get_takes_flags_before_its_kind() -> None:
    given = _parse(["get", "-n", "team-a", "queues", "-o", "json", "gpu"])
    assert (given.kind, given.names, given.namespace) == ("queues", ["gpu"], "team-a")


def test_leases_may_last_as_long_as_the_services_take_and_do_by_default() -> None:
    arguments = playground_verbs
    for text in (f"{arguments.LEAST_LEASE_S}", "7.5", f"{arguments.MOST_LEASE_S}"):
        LeaderElectionSettings(lease_duration=arguments.lease_duration(text))
    for seconds in (arguments.LEAST_LEASE_S - 0.1, arguments.MOST_LEASE_S + 0.1):
        with pytest.raises(ValidationError):
            LeaderElectionSettings(lease_duration=seconds)
    assert Playground().lease_duration == LeaderElectionSettings().lease_duration


@pytest.mark.parametrize("line", [["status"], ["start", "assigner"], ["scale", "webhook", "2"]])
def test_without_a_playground_the_error_says_how_to_make_one(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "none"
    assert main([*line, "--state", str(state)]) == 1
    assert capsys.readouterr().err == (
        f'rackgate: there is no playground in {state}; run "rackgate up"\n'
    )
    assert not state.exists()


def test_kubectl_without_a_kubeconfig_does_not_look_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StateFolder(tmp_path).save(Playground(binaries={"kubectl": sys.executable}))
    assert main(["kubectl", "--state", str(tmp_path), "get", "pods"]) == 1
    missing = tmp_path / "kubeconfig"
    expected = f'rackgate: {missing} is missing; run "rackgate up"\n'
    assert capsys.readouterr().err == expected


def test_down_says_that_there_is_no_playground(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        assert main(["down", "--state", str(tmp_path / name)]) == 1
        said = f"rackgate: there is no playground in {tmp_path / name}\n"
        assert capsys.readouterr().err == said
    # In the default folder, that is what `down` is for.
    monkeypatch.setenv("RACKGATE_STATE", str(tmp_path / "none"))
    assert main(["down"]) == 0
    said = f"there is no playground in {tmp_path / 'none'}: nothing to stop\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("line", [["up", "--nodes", "0"], ["down", "--purge"]])
def test_a_folder_of_other_things_is_never_touched(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main([*line, "--state", str(tmp_path)]) == 1
    assert (
        'is not a playground, and not empty (it contains "thesis.txt")' in capsys.readouterr().err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_playground(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    assert main(["up", "--nodes", "0", "--state", str(thesis)]) == 1
    expected = f"rackgate: {thesis} is not a folder; name another one with --state\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("count", ["many", "1.5", ""])
def test_a_count_that_is_no_number_is_named(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--nodes", count])
    assert f'argument --nodes: "{count}" is not a whole number' in capsys.readouterr().err


def test_status_shows_what_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = StateFolder(tmp_path)
    gone = ProcessRecord("etcd", 1, "an earlier boot/1", ("etcd",), "log", "https://127.0.0.1:1")
    folder.save(
        Playground(
            server="https://127.0.0.1:1",
            replicas={"webhook": 2, "assigner": 0, "ungater": 1},
            processes={"etcd": gone},
        )
    )
    assert main(["status", "--json", "--state", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kubeconfig"] == str(tmp_path / "kubeconfig")
    assert found["server"] == "https://127.0.0.1:1"
    assert found["state"] == str(tmp_path)
    assert list(found["components"]) == [*COMPONENTS, "webhook-0", "webhook-1", "ungater-0"]
    assert found["components"]["etcd"] == {
        "pid": None,
        "ready": False,
        "log": str(tmp_path / "logs" / "etcd.log"),
    }


def test_down_after_a_crash_leaves_foreign_processes_alone(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    foreign = ProcessRecord("etcd", 1, "an earlier boot/1", ("etcd",), "log", "https://127.0.0.1:1")
    folder.save(Playground(processes={"etcd": foreign}))
    assert main(["down", "--state", str(tmp_path)]) == 0
    again = folder.load()
    assert again is not None
    assert again.processes == {}


def test_two_commands_do_not_change_one_playground_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = StateFolder(tmp_path)
    folder.save(Playground())
    with folder.exclusive():
        assert main(["down", "--state", str(tmp_path)]) == 1
    assert "another rackgate command is changing" in capsys.readouterr().err
    assert main(["down", "--state", str(tmp_path)]) == 0


def test_a_record_of_another_version_is_rejected(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.save(Playground(format=2))
    with pytest.raises(CommandError, match="has format 2, and this version"):
        folder.load()
    folder.record.write_text("{")
    with pytest.raises(CommandError, match="cannot be decoded"):
        folder.load()


def test_the_folders_follow_environment_and_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RACKGATE_STATE", "RACKGATE_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert state_dir(None) == Path("/home/me/.local/state/rackgate/default")
    assert cache_dir() == Path("/home/me/.cache/rackgate")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert state_dir(None) == Path("/state/rackgate/default")
    assert cache_dir() == Path("/home/me/.cache/rackgate")
    monkeypatch.setenv("RACKGATE_STATE", "/mine")
    monkeypatch.setenv("RACKGATE_CACHE", "/programs")
    assert state_dir(None) == Path("/mine")
    assert state_dir("/other") == Path("/other")
    assert cache_dir() == Path("/programs")


def test_the_manifests_are_found() -> None:
    assert (deploy_dir() / "controlplane" / "etcd" / "go.mod").is_file()


def test_long_steps_show_that_they_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(heartbeat_s=0.01)
    with progress.step("building etcd"):
        while "still running" not in capsys.readouterr().err:
            pass
    assert "building etcd: done in" in capsys.readouterr().err


def test_authorities_survive_from_one_up_to_the_next(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    ensure_pki(folder.pki, ("127.0.0.1",))
    before = (folder.pki / "ca.crt").read_bytes()
    ensure_pki(folder.pki, ("127.0.0.1",))
    assert (folder.pki / "ca.crt").read_bytes() == before
