"""What the verbs say to wrong, missing and ended input."""

from __future__ import annotations

import argparse
import io

import msgspec
import pytest

from rackgate_cli.__main__ import build_parser
from rackgate_cli.confirming import confirmed
from rackgate_cli.errors import UsageError
from rackgate_cli.get.output import print_changes
from rackgate_cli.jobs.command import show_logs
from rackgate_cli.queues.model import QueueReport, local_queue_row
from rackgate_cli.queues.view import queue_blocks
from rackgate_cli.tables import plain
from rackgate_cli.verbs import add_verb
from tests.unit.assigner.builders import local_queue


class Terminal(io.StringIO):
    """What a user types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "expected"), [("yes\n", True), ("no\n", False), ("", False)])
def test_the_end_of_the_input_is_a_no(
    monkeypatch: pytest.MonkeyPatch, typed: str, expected: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert confirmed("Delete it?") is expected


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(UsageError, match="--yes"):
        confirmed("Delete it?")


def test_equal_names_in_two_namespaces_are_two_rows(capsys: pytest.CaptureFixture[str]) -> None:
    row = local_queue_row(local_queue(), None)
    here = msgspec.structs.replace(row, namespace="a")
    there = msgspec.structs.replace(row, namespace="b", pending_workloads=7)
    both = QueueReport((here, there), ())
    print_changes(both, both, "name", all_namespaces=True)
    assert capsys.readouterr().out == ""
    print_changes(both, QueueReport((there,), ()), None, all_namespaces=True)
    printed = capsys.readouterr()
    assert (printed.out, "in namespace a is not shown" in printed.err) == ("", True)


def test_a_queue_without_a_condition_has_no_empty_reason() -> None:
    row = msgspec.structs.replace(
        local_queue_row(local_queue(), None), active=None, reason="", message=""
    )
    text = plain(queue_blocks(QueueReport((row,), ())))
    assert "unknown" in text
    assert "()" not in text


def test_flags_that_a_component_ignores_are_refused() -> None:
    words = ["logs", "assigner", "--tail", "5", "--rank", "1", "-n", "x", "-c", "y"]
    given = build_parser("logs").parse_args(words)
    with pytest.raises(UsageError, match="--tail, --rank, --container, --namespace"):
        show_logs(given)


def test_get_without_a_kind_names_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser("get").parse_args(["get"])
    assert "queues, workloads or topology" in capsys.readouterr().err


@pytest.mark.parametrize(("columns", "longest"), [("50", 50), ("200", 80)])
def test_descriptions_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str, longest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    described = add_verb(
        argparse.ArgumentParser().add_subparsers(),
        "verb",
        None,
        summary="",
        description="word " * 100,
        examples=(),
        note="word " * 100,
    )
    text = f"{described.description}\n{described.epilog}"
    assert longest - 5 <= max(map(len, text.splitlines())) <= longest
