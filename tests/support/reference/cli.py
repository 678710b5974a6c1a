"""The page of the command line, from the parsers of its verbs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from rackgate_cli.__main__ import build_parser
from tests.support.reference import page, table

PURPOSE: Final = (
    "This page lists every verb of the `rackgate` command and of the services' commands."
)
INTRODUCTION: Final = """\
`kubectl-rackgate` is the same command, so that `kubectl rackgate VERB` works too. Every verb prints this text
with `--help`.

Exit codes of all verbs: 0 for success, 1 for failure, 2 for a wrong command line or a wrong file. A verb
whose codes mean more says so below."""
SERVICES: Final = """\
## rackgate-webhook, rackgate-assigner, rackgate-ungater

The commands of the services. They have the same flags.

| Flag | Meaning |
|---|---|
| `--config FILE` | [Settings](settings.md), a YAML file |
| `--set KEY=VALUE` | Overrides one setting; may be repeated |
| `--version` | Prints the version |"""


def verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all verbs, verbs of verbs after their parent."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield inner
                yield from verbs(inner)


def _name(action: argparse.Action) -> str:
    value = action.metavar
    if isinstance(value, tuple):
        value = " ".join(value)
    if value is None and action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    if not action.option_strings:
        shown = str(value or action.dest)
        return f"`{shown} ...`" if action.nargs in ("*", "+", argparse.REMAINDER) else f"`{shown}`"
    if action.nargs == 0:
        return ", ".join(f"`{option}`" for option in action.option_strings)
    shown = str(value or action.dest.upper().replace("-", "_"))
    return ", ".join(f"`{option} {shown}`" for option in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {key: getattr(value, "__name__", value) for key, value in vars(action).items()} | {
        "prog": parser.prog
    }
    if action.choices is not None:
        values["choices"] = ", ".join(str(choice) for choice in action.choices)
    return (action.help or "") % values


def _section(parser: argparse.ArgumentParser) -> str:
    rows = [
        (_name(action), _help(parser, action))
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    blocks = [f"## {parser.prog}", " ".join((parser.description or "").split())]
    if rows:
        blocks.append(table(("Argument", "Meaning"), rows))
    if parser.epilog:
        blocks.append(f"```\n{parser.epilog.strip()}\n```")
    return "\n\n".join(block for block in blocks if block)


def text() -> str:
    """The page."""
    return page(
        "Command line", PURPOSE, INTRODUCTION, *map(_section, verbs(build_parser())), SERVICES
    )
