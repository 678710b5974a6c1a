"""What shells complete, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackgate_cli.__main__ import VERBS, main
from rackgate_cli.completion import SHELLS

BIN = Path(sys.executable).parent


def completed(*words: str) -> list[str]:
    """As kubectl asks its plugins; in a process of its own, whose files argcomplete takes over."""
    ran = subprocess.run(
        [BIN / "kubectl_complete-rackgate", *words],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": "/nowhere"},
    )
    *found, directive = ran.stdout.splitlines()
    assert directive == ":4"
    return found


def test_verbs_are_completed() -> None:
    assert set(completed("")) >= set(VERBS)
    assert completed("requ") == ["requeue"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("hold", "--kube"), ["--kubeconfig"]),
        (("get", "queues", "-o", "y"), ["yaml"]),
        (("get", "topo"), ["topologies", "topology"]),
        (("workloads", "--status", "d"), ["deactivated"]),
        (("osmo", "chec"), ["check"]),
        (("completion", "z"), ["zsh"]),
        (("hold", "job/t"), []),  # the cluster cannot be read
    ],
)
def test_flags_and_values_are_completed(words: tuple[str, ...], found: list[str]) -> None:
    assert sorted(completed(*words)) == found


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "kubectl-rackgate" in script
    assert "_ARGCOMPLETE" in script


def test_bash_completes_with_its_script() -> None:
    line = "rackgate canc"
    script = (
        f"source <({BIN}/rackgate completion bash); COMP_LINE='{line}' COMP_POINT={len(line)} "
        'COMP_TYPE=9; _python_argcomplete rackgate; echo "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(
        ["bash", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
    )
    assert ran.stdout.split() == ["cancel"]


def test_a_reader_that_has_enough_is_no_error() -> None:
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {BIN}/rackgate completion bash | head -c 1"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.stderr == ""
