"""Pages of docs/tasks: their commands, files and output, taken from the page and run.

A block of ```bash is run as it is printed. A block of ```yaml (or ```python) that begins with
the line `# FILE: name` is a file for the commands after it. A block of ```console or ```text is
what the commands before it print: each of its lines must appear, with `...` for any text. A block
that cannot run here comes after the line `<!-- not run: reason -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rackgate_cli.locations import deploy_dir

FOLDER: Final = deploy_dir().parent / "docs" / "tasks"
NAMESPACE: Final = "team-a"  # of all examples that are printed
COMMANDS, FILES, OUTPUT = ("bash",), ("yaml", "python"), ("console", "text")
_BLOCK: Final = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_FILE: Final = re.compile(r"# FILE: (?P<name>[\w./-]+)\n")
# What only reads may be asked again until it shows what the page says.
_READS: Final = re.compile(
    r"((rackgate )?kubectl (get|describe|events|version|kustomize)"
    r"|rackgate (explain|get|invariants|status|place|queues|workloads|preflight)"
    r"|rackgate osmo (keys|render|explain|check))\b"
)
WAIT_S: Final = 90.0
# Pages whose commands another test runs.
ELSEWHERE: Final[Mapping[str, str]] = {
    "back-up-and-restore": "tests/integration/test_operators_day.py restores a store",
    "install": "tests/integration/test_operators_day.py installs on a control plane of its own",
    "run-a-gang": "tests/integration/test_gang_jobs.py has a control plane with gang scheduling",
    **dict.fromkeys(
        ("run-a-statefulset", "run-a-leaderworkerset", "run-a-cronjob", "run-a-trainjob"),
        "tests/integration/test_linked_kinds.py has a control plane with these kinds",
    ),
    "run-gangs-of-pods": "tests/integration/test_gang_pods.py has a control plane with gangs",
    "migrate-from-kueue": "tests/integration/test_operators_day.py finds Kueue in the way",
    "open-the-console": "tests/integration/test_console.py serves the page with its own rights",
    "run-a-playground": "tests/integration/test_playground_page.py starts one of its own",
    "run-plain-pods": "tests/integration/test_pod_groups.py applies its manifests",
    "uninstall": "tests/integration/test_operators_day.py uninstalls with jobs running",
    "upgrade": "tests/integration/test_operators_day.py upgrades with jobs running",
    "use-cert-manager": "tests/integration/test_overlays.py builds the overlay",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: of the fence.
        text: what is in it.
        line: of the page, from 1.
        name: of the file, "" where it is none.
        reason: why it is not run, "" where it is.
    """

    language: str
    text: str
    line: int
    name: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """Commands, and what they print according to the page ("" where the page does not tell)."""

    commands: Block
    output: str


def pages() -> list[Path]:
    """All pages of tasks."""
    return sorted(FOLDER.glob("*.md"))


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(
            found["language"],
            found["text"],
            text.count("\n", 0, found.start("language")) + 1,
            name["name"] if (name := _FILE.match(found["text"])) else "",
            found["reason"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def steps(page: Path) -> Iterator[Step | Block]:
    """Files and commands of a page in its order; commands with the output that follows them."""
    found = [block for block in blocks(page.read_text()) if not block.reason]
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.name:
            yield block
        elif block.language in COMMANDS:
            printed = after is not None and after.language in OUTPUT
            yield Step(block, after.text if printed and after else "")


def missing(expected: str, printed: str) -> list[str]:
    """Lines that a page shows and that were not printed, blanks counted as one."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    lacking = []
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        pattern = pattern.replace(r"\ .*", r"\ ?.*").replace(r".*\ ", r".*\ ?")
        if line.strip() and not any(re.search(f"^{pattern}$", found) for found in lines):
            lacking.append(line)
    return lacking


@dataclass
class Runner:
    """Runs a page in a folder, with an environment of its own.

    Attributes:
        folder: where files of the page are written and its commands run.
        environment: of the commands.
        namespace: that the page calls `team-a`.
        replaced: texts of the page that stand for something else here.
    """

    folder: Path
    environment: Mapping[str, str]
    namespace: str = NAMESPACE
    replaced: Mapping[str, str] = field(default_factory=dict)

    def run(self, page: Path) -> None:
        """Write each file and run each block of commands of a page.

        Raises:
            AssertionError: a command failed, or printed something else.
        """
        for step in steps(page):
            if isinstance(step, Block):
                path = self.folder / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._here(step.text))
            else:
                self._step(page, step)

    def _here(self, text: str) -> str:
        text = re.sub(rf"\b{NAMESPACE}\b", self.namespace, text)
        for printed, here in self.replaced.items():
            text = text.replace(printed, here)
        return text

    def _step(self, page: Path, step: Step) -> None:
        where = f"{page.name}:{step.commands.line}"
        text = self._here(step.commands.text)
        lines = [line for line in text.splitlines() if line.strip()]
        joined = re.sub(r"\\\n\s*", " ", text).splitlines()
        again = all(_READS.match(line.strip()) for line in joined if line.strip())
        deadline = time.monotonic() + (WAIT_S if again and step.output else 0.0)
        while True:
            code, printed = self._shell(text)
            lacking = missing(step.output, printed.replace(self.namespace, NAMESPACE))
            if (code == 0 and not lacking) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert code == 0, f"{where}: exit code {code}\n{lines}\n{printed[-4000:]}"
        assert not lacking, f"{where}: not printed: {lacking}\nprinted:\n{printed[-6000:]}"

    def _shell(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            timeout=300,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


def programs(folder: Path, kubectl: str) -> str:
    """A search path with kubectl of the playground's version."""
    folder.mkdir(exist_ok=True)
    if not (folder / "kubectl").exists():
        (folder / "kubectl").symlink_to(kubectl)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
