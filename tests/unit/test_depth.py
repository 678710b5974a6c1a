"""Objects nested without end are read without what nobody could read."""

from __future__ import annotations

import json

import msgspec
import pytest

from rackgate.wire.depth import MAX_DEPTH, tolerant, truncate_depth
from rackgate_assigner import watches
from rackgate_assigner.workload.decisions import Admit, Requeue
from tests.unit.assigner.builders import cache_with, fx_a, plan_cycle, podset, workload


def nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


def test_what_is_not_deep_stays_as_it_is() -> None:
    text = json.dumps({"a": [1, {"b": '"]}\\"'}, "[[["], "c": nested(5000)}).encode()
    assert truncate_depth(text) == text
    deepest = nested(MAX_DEPTH, "1").encode()
    assert truncate_depth(deepest) == deepest


def test_what_is_below_becomes_null_and_the_rest_stays() -> None:
    strange = nested(MAX_DEPTH + 3, '"[", {"x": "]}"}')
    text = f'{{"a": {strange}, "b": "]", "c": [{nested(5000)}, {nested(2, "1")}, 7]}}'
    found = json.loads(truncate_depth(text.encode()))
    assert (found["b"], found["c"][1], found["c"][2]) == ("]", [[1]], 7)
    place = found["a"]
    for _ in range(MAX_DEPTH - 2):
        (place,) = place
    assert place == [None]


def test_only_decoding_that_fails_looks_at_the_depth() -> None:
    read = tolerant(msgspec.json.decode)
    assert read(nested(400).encode()) == json.loads(nested(400))
    assert read(b'{"x": %s, "y": 1}' % nested(50_000).encode())["y"] == 1
    with pytest.raises(msgspec.DecodeError):
        read(b"[")


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("depth", [100, 500, 850, *range(900, 1010, 10), 5000])
@pytest.mark.parametrize("place", ["unknown", "affinity", "containers", "tolerations"])
def test_a_workload_nested_without_end_is_judged_all_the_same(depth: int, place: str) -> None:
    deep = json.dumps({"nodeAffinity": {"unknown": 0}}) if place == "affinity" else "0"
    odd_podset = podset()
    odd_podset["template"]["spec"][place] = "DEEP"
    body = {
        "metadata": {"name": "a-odd", "namespace": "team"},
        "spec": {"queueName": "lq", "podSets": [odd_podset]},
    }
    text = json.dumps(body).replace('"DEEP"', deep.replace("0", nested(depth)))
    cache = cache_with(fx_a())
    cache.set_workload(tolerant(watches.decode_workload)(text.encode()))
    cache.set_workload(workload("b-right"))
    odd, right = plan_cycle(cache)
    assert isinstance(odd, Admit if place in ("unknown", "affinity") else Requeue)
    assert isinstance(right, Admit)
    assert not isinstance(odd, Requeue) or odd.reason == "Misconfigured"
