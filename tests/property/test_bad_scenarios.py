"""Whatever a scenario file is turned into: an answer, or an error that names a place in it."""

from __future__ import annotations

import copy
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackgate_assigner.scenario.scenario import ScenarioError, answers

DATA: Final = Path(__file__).parents[1] / "conformance" / "data" / "tas"
SMALL: Final = 6000  # bytes of JSON
PATH: Final = re.compile(r"(scenarios|format|the (document|file)\b).*: |the file ", re.DOTALL)

quantities = st.sampled_from(
    ["0", "-1", "1e30", "1m", "NaN", "", "9" * 300, "0.0001", "1Ei", "--1"]
)
words = st.sampled_from(
    ["", "a", "kubernetes.io/hostname", "topo.example/rack", "main", "workers", "In", "Gt", "é\n\0"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, 1, -1, 2, 3, 2**31 - 1, 2**31, 2**63])
    | st.floats()
    | words
    | quantities,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            words | st.sampled_from(["name", "count", "levels", "values", "topology", "size"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


@cache
def seeds() -> list[dict[str, Any]]:
    """Some of the small questions of each kind of the data."""
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for name in ("table-cases", "gates-cases"):
        file = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
        for one in file["scenarios"]:
            if len(json.dumps(one)) < SMALL:
                kind = {*one, *one["podSets"][0], *one.get("gates", {})}
                kinds.setdefault(tuple(sorted(kind)), one)
    return list(kinds.values())


def spoil(scenario: Any, data: st.DataObject) -> None:
    """Change, remove, double or move something, anywhere."""
    place = scenario
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            break
        place = inner
    match data.draw(st.integers(0, 5)):
        case 0:
            del place[key]
        case 1 if isinstance(place, list):
            place.append(copy.deepcopy(place[key]))
        case 2 if isinstance(place, dict):
            place[data.draw(words)] = place[key]
        case _:
            place[key] = data.draw(values)


def check(body: bytes) -> None:
    try:
        found = list(answers(body))
    except ScenarioError as error:
        said = str(error)
        assert PATH.match(said), said
        assert len(said) < 2000, said
        assert "\n" not in said, said
    else:
        json.dumps(found)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(1, 3), st.data())
def test_a_spoilt_scenario_is_answered_or_rejected_by_its_path(
    seed: int, times: int, data: st.DataObject
) -> None:
    scenario = copy.deepcopy(seeds()[seed % len(seeds())])
    for _ in range(times):
        if scenario:
            spoil(scenario, data)
    check(json.dumps({"format": "tas-scenario/1", "scenarios": [scenario]}).encode())


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(0, SMALL), st.binary(max_size=4), st.integers(0, 4))
def test_spoilt_bytes_are_answered_or_rejected(
    seed: int, at: int, inserted: bytes, removed: int
) -> None:
    whole = json.dumps({"format": "tas-scenario/1", "scenarios": [seeds()[seed % len(seeds())]]})
    body = whole.encode()
    check(body[:at] + inserted + body[at + removed :])
