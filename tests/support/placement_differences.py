"""Where the engine and the oracle differ on generated questions.

Run: python -m tests.support.placement_differences --first 0 --count 50000 [--histories]; prints
every question that differs and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rackgate_assigner.scenario.scenario import answer, read_scenarios
from tests.support.oracle import expected
from tests.support.placement_generator import scenario
from tests.support.placement_history import history

Json = dict[str, Any]


def engine(question: Json) -> Json:
    """The engine's `expected` of a question, through the format's own reader."""
    body = {"format": "tas-scenario/1", "scenarios": [question]}
    (asked,) = read_scenarios(msgspec.json.encode(body))
    found: Json = msgspec.to_builtins(answer(asked), str_keys=True)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # tuples become lists


def differences(questions: Iterable[Json]) -> Iterator[Json]:
    """Questions answered in two ways, with both answers."""
    for question in questions:
        ours, theirs = engine(question), expected(question)
        if ours != theirs:
            yield {"engine": ours, "oracle": theirs, "question": question}


def differences_of_histories(seeds: Iterable[int]) -> Iterator[Json]:
    """The same where many questions are asked of one living capacity."""
    for seed in seeds:
        for number, (question, ours, theirs) in enumerate(history(seed)):
            if ours != theirs:
                yield {"number": number, "engine": ours, "oracle": theirs, "question": question}
                break


def main() -> int:
    parser = argparse.ArgumentParser(description="compare the engine with the oracle")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1000, help="number of seeds")
    parser.add_argument("--histories", action="store_true", help="many questions of one capacity")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count)
    found_ones = (
        differences_of_histories(seeds) if asked.histories else differences(map(scenario, seeds))
    )
    differing = 0
    for found in found_ones:
        differing += 1
        print(json.dumps(found), flush=True)
    print(f"{differing} of {asked.count} differ", file=sys.stderr)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
