"""What `rackgate osmo` refuses: pools, workflows, files and arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackgate_cli.__main__ import main
from rackgate_cli.osmo import inputs as osmo_crd_documents
from tests.support.osmo_cases import cases, submission
from tests.support.osmo_command import RENDER, WORKFLOW, prepare, refused, rendered

REFUSED = sorted(name for name, case in cases().items() if "refused" in case)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pool and a workflow, and no cluster to be found."""
    prepare(tmp_path, monkeypatch)
    return tmp_path


@pytest.mark.requirement("OSM-02", "OSM-04", "OSM-06", "OSM-07")
@pytest.mark.parametrize("name", REFUSED)
def test_every_rejection_names_its_file_field_and_remedy(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = cases()[name]
    (folder / "pool.yaml").write_text(json.dumps(case["pool"]))
    (folder / "workflow.yaml").write_text(json.dumps(submission(case)))
    words = [*RENDER]
    words += ["--strict"] if case.get("options", {}).get("strict") else []
    said = refused(capsys, *words)
    culprit = {"pool": "pool.yaml", "submission": "workflow.yaml"}[case["refused"]["at"]]
    assert said.startswith(f'rackgate: "{culprit}" is rejected:\n')
    for mention in case["refused"]["mentions"]:
        assert str(mention) in said
    assert main(["osmo", *words, "--json"]) == 2
    (first, *_) = json.loads(capsys.readouterr().out)["refused"]
    assert (first["file"], first["at"]) == (culprit, case["refused"]["at"])
    assert first["why"] == case["refused"]["why"]
    assert first["path"] in said


def test_all_that_is_wrong_is_reported_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = WORKFLOW.replace("key: rack", "key: spine").replace("cpu: 0.5", "cpu: many")
    (folder / "workflow.yaml").write_text(text)
    said = refused(capsys, *RENDER)
    assert "resources.default.cpu: " in said
    text = WORKFLOW.replace("command: [python, train.py]", "command: python\n      args: [1]")
    (folder / "workflow.yaml").write_text(text.replace("EPOCHS: 10", "EPOCHS: [10]"))
    said = refused(capsys, *RENDER)
    assert "workflow.groups[0].tasks[0].command: must be a list of strings" in said
    assert "workflow.groups[0].tasks[0].args[0]: 1 is not a string: put it in quotes" in said
    assert "workflow.groups[0].tasks[0].environment.EPOCHS: a list is not a plain value" in said


def test_part_of_a_gpu_is_rejected_for_a_pod_and_fine_without_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("gpu: 2", "gpu: 0.5"))
    said = refused(capsys, *RENDER)
    assert (
        "resources.default.gpu: 0.5 is not a whole number: a pod can request only whole GPUs"
        in said
    )
    assert len(rendered(capsys, "--no-pods")) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "contains 0 documents, not one workflow"),
        ("a: 1\n---\nb: 2\n", "contains 2 documents, not one workflow"),
        ("a: &x [1]\nb: *x\n", "aliases are not supported"),
        ("name: a\nname: b\n", 'duplicate key "name" in line 2'),
        ("[" * 100_000, "nested more than 100 deep"),
        ("a: !!binary aGVsbG8=\n", "bytes is not JSON serializable"),
        ("a: 1\nNO: 2\n", '"NO" in line 2 is read as false, not as text: put it in quotes'),
        ("a: 1\n1.10: 2\n", '"1.10" in line 2 is read as 1.1, not as text: put it in quotes'),
        ("a: .nan\n", "not JSON compliant"),
        ("a: !!python/object:os.system {}\n", "is not plain YAML data"),
        ("a: !!bool maybe\n", "a value does not fit the tag before it"),
        ("a: \x00\n", "control characters"),
        ("a: [\n", "is not plain YAML data"),
    ],
)
def test_files_that_are_no_plain_data_are_rejected(
    text: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "workflow.yaml").write_text(text)
    said = refused(capsys, *RENDER)
    assert said.startswith('rackgate: "workflow.yaml" ')
    assert why in said


def test_files_that_cannot_be_read_or_are_too_large_are_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "render", "-f", "none.yaml", "--pool", "pool.yaml")
    assert '"none.yaml" cannot be read: No such file or directory' in said
    monkeypatch.setattr(osmo_crd_documents, "MAX_BYTES", 16)
    said = refused(capsys, *RENDER)
    assert "is larger than" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--names", "models"], '"models" is not GROUP=NAME'),
        (["--names", "models=Upper"], '"models=Upper" is not GROUP=NAME'),
        (["--names", "other=a"], 'there is no task group "other" (groups: models)'),
        (["--names", "models=a,models=b"], "repeats a group"),
        (["-l", "pool=a"], "-l requires --nodes"),
        (["--nodes", "nodes.yaml"], "--nodes requires --profile robust"),
        (["-n", "Team A"], 'namespace "Team A" is no name'),
        (["--pool", "pool-of-a-cluster"], "no cluster is configured"),
        (["--state", "x", "--context", "y", "--pool", "p"], "--context selects a context"),
    ],
)
def test_wrong_arguments_are_rejected(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refused(capsys, *RENDER, *words)


def test_two_groups_of_one_name_are_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "  - name: evals\n    tasks: [{name: three}]\nresources:"
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("resources:", more))
    said = refused(capsys, *RENDER, "--names", "models=train-evals")
    assert 'names.evals: "train-evals" is also the PodGroup of task group "models"' in said


def test_names_in_files_cannot_steer_a_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text('name: "a\\u202e\\e[31mb"\n')
    said = refused(capsys, "keys", "--pool-file", "pool.yaml")
    assert "\x1b" not in said
    assert "\u202e" not in said
