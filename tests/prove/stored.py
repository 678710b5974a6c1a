"""Drawn examples that catch planted faults, stored so that every landing tries them.

A landing (`.ci/run`) draws the same examples every time, so a fault that most draws find may stay
green there. For each planted fault that only drawn examples notice, a failing example is kept in
`examples/`, a file for each group of the ledger. `python -m tests.prove.stored` tries them all on
the sound sources, which takes seconds and is a step of `make fast`; developers' runs try them
before they draw.

Examples are kept by the name of their test and not by Hypothesis' key, which changes with every
edit of the test. What is kept are the choices that Hypothesis made: they outlive edits that leave
alone how a test draws. `python -m tests.prove.run` shows for each fault that its own examples
alone notice it, and with `--store` draws anew where they do not.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hypothesis.database import ExampleDatabase

EXAMPLES = Path(__file__).parent / "examples"
# Sets of names are walked in the same order every time: what an example leads to may depend on it.
SAME_ORDER = {"PYTHONHASHSEED": "0"}
# By fault, by test: the choices of one failing example.
Examples = dict[str, dict[str, bytes]]


def load(folder: Path = EXAMPLES) -> Examples:
    """All stored examples."""
    return {
        fault: {test: base64.b64decode(text, validate=True) for test, text in tests.items()}
        for file in sorted(folder.glob("*.json"))
        for fault, tests in json.loads(file.read_text()).items()
    }


def store(group: str, examples: Examples, folder: Path = EXAMPLES) -> None:
    """Write the file of one group of the ledger; without examples there is none."""
    file = folder / f"{group.lower()}.json"
    texts = {
        fault: {test: base64.b64encode(examples[fault][test]).decode() for test in sorted(tests)}
        for fault, tests in sorted(examples.items())
        if tests
    }
    if texts:
        folder.mkdir(exist_ok=True)
        file.write_text(json.dumps(texts, indent=1) + "\n")
    else:
        file.unlink(missing_ok=True)


class StoredExamples(ExampleDatabase):
    """Hands each test its stored examples; nothing is written.

    Attributes:
        test: the test that runs, as pytest names it; set before each.
        given: tests that got examples.
    """

    def __init__(self, examples: Iterable[Mapping[str, bytes]]) -> None:
        super().__init__()
        self.test = ""
        self.given: set[str] = set()
        self.by_test: dict[str, set[bytes]] = {}
        for of_fault in examples:
            for test, example in of_fault.items():
                self.by_test.setdefault(test, set()).add(example)

    def __repr__(self) -> str:
        return f"StoredExamples({len(self.by_test)} tests)"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Examples of the test that runs, whatever its key."""
        found = self.by_test.get(self.test, set())
        if found:
            self.given.add(self.test)
        return iter(sorted(found))

    def save(self, key: bytes, value: bytes) -> None:
        """Not here: only `tests.prove.run --store` writes."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Not here either: on sound sources every example passes."""


class Recorder(ExampleDatabase):
    """Starts empty and keeps the last failing example of each test.

    Attributes:
        test: the test that runs, as pytest names it; set before each.
        saved: the last example that Hypothesis saved for each test.
    """

    def __init__(self) -> None:
        super().__init__()
        self.test = ""
        self.saved: dict[str, bytes] = {}

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Nothing: all examples are drawn."""
        return iter(())

    def save(self, key: bytes, value: bytes) -> None:
        """Keep it."""
        self.saved[self.test] = value

    def delete(self, key: bytes, value: bytes) -> None:
        """What was saved has failed, whatever Hypothesis finds later."""


STORED = StoredExamples(load().values())


def main() -> int:
    """Run every test that has stored examples on these and nothing else."""
    if not STORED.by_test:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-profile=stored"]
    environment = {**os.environ, **SAME_ORDER}
    return subprocess.run(
        [*command, *sorted(STORED.by_test)], check=False, env=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
