"""Adds a verb to the command line; few imports, because every `--help` loads it."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

if TYPE_CHECKING:
    # What `add_parser` of a module gets, and a parser or a group; argparse has no public names.
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    Container: TypeAlias = argparse._ActionsContainer

EXIT_CODES: Final = {
    0: "success",
    1: "failure; the message says why",
    2: "the command line is invalid",
}

MIN_WIDTH: Final = 20
MAX_WIDTH: Final = 80

_MISSING: Final = "the following arguments are required"
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$", re.DOTALL)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the known word that is most like this one; "" if none is."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


class VerbParser(argparse.ArgumentParser):
    """A parser that names the choice that was probably meant, and what is missing."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with code 2."""
        found = _INVALID_CHOICE.search(message)
        if found:
            known = [choice.strip(" '\"") for choice in found[2].split(",")]
            message += did_you_mean(found[1], known)
        if message.startswith(_MISSING):
            message = self.get_default("needed") or message
        super().error(message)


def add_verb(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int | None] | None,
    *,
    summary: str,
    description: str,
    examples: Sequence[str],
    exit_codes: Mapping[int, str] = EXIT_CODES,
    note: str = "",
) -> argparse.ArgumentParser:
    """Add a verb whose help has a description, examples and exit codes.

    Args:
        subparsers: of the command.
        name: of the verb.
        run: function of the verb; returns the exit code, None for 0. None for a group of verbs.
        summary: one line for the list of verbs.
        description: what it does, in sentences.
        examples: command lines.
        exit_codes: meaning of each code.
        note: a last sentence.
    """
    width = min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns))
    epilog = ["examples:", *(f"  {example}" for example in examples), "", "exit codes:"]
    epilog += [f"  {code}  {meaning}" for code, meaning in exit_codes.items()]
    if note:
        epilog += ["", textwrap.fill(note, width)]
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, width, break_on_hyphens=False),
        epilog="\n".join(epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """The `type` of an argument that is a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            number = int(text[:20])
        except ValueError:
            raise argparse.ArgumentTypeError(f'"{text[:60]}" is not a whole number') from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f'"{text[:60]}" is not between {least} and {most}')
        return number

    return parse


def add_namespace(parser: Container) -> argparse.Action:
    """Add -n, which names one namespace."""
    return parser.add_argument(
        "-n", "--namespace", help="default: that of the kubeconfig's context"
    )


def add_output(parser: argparse.ArgumentParser, text: str) -> None:
    """Add -o with JSON and YAML, and --json; sets `output`.

    Args:
        parser: of the verb.
        text: the value of -o for people, the default.
    """
    one = parser.add_mutually_exclusive_group()
    choices = (text, "json", "yaml")
    one.add_argument("-o", "--output", choices=choices, default=text, help="default: %(default)s")
    one.add_argument("--json", action="store_const", const="json", dest="output", help="as -o json")


def add_json(parser: argparse.ArgumentParser, explanation: str = "print JSON") -> None:
    """Add --json, and -o json as other verbs have it; sets `json`."""
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--json", action="store_true", help=explanation)
    one.add_argument("-o", "--output", choices=("json",), dest="json", help="as --json")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a cluster; `rackgate_cli.cluster.target` reads them."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--state", metavar="DIR", help="folder of a playground (see $RACKGATE_STATE)"
    )
    where.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config")
    parser.add_argument("--context", help="context of the kubeconfig")
