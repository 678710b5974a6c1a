"""Gates of placement: which there are, what they default to, where they are known."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rackgate.features import (
    BOTH_LEVELS,
    ELASTIC_INDEXED_JOBS,
    GATES,
    HOLD_FOR_TERMINATING,
    NODES_BY_NAME,
    OSMO_POOLS,
    RENDER_FOR_KAI,
    SKIP_IMPOSSIBLE,
)
from rackgate_assigner.scheduler.cycle import GATE_SKIP_IMPOSSIBLE
from rackgate_assigner.topology.gates import GATE_BOTH_LEVELS, GATE_FIELDS, Gates, read_gates

OURS = sorted(name for name in GATE_FIELDS if name.startswith("Rackgate"))


def test_every_placement_gate_of_ours_is_off_by_default_and_can_be_configured() -> None:
    table = {gate.name: gate for gate in GATES}
    # Not placement's to know.
    elsewhere = {
        ELASTIC_INDEXED_JOBS,
        HOLD_FOR_TERMINATING,
        NODES_BY_NAME,
        OSMO_POOLS,
        RENDER_FOR_KAI,
        SKIP_IMPOSSIBLE,
    }
    found = {name for name in table if name.startswith("Rackgate")}
    assert sorted(found - elsewhere) == OURS
    assert not any(table[name].default for name in OURS)
    assert not any(getattr(Gates(), GATE_FIELDS[name]) for name in OURS)


def test_gates_that_services_can_set_default_to_what_placement_defaults_to() -> None:
    for gate in GATES:
        if gate.name in GATE_FIELDS:
            assert getattr(Gates(), GATE_FIELDS[gate.name]) == gate.default, gate.name


def test_each_field_has_one_name() -> None:
    assert sorted(GATE_FIELDS.values()) == sorted(field.name for field in fields(Gates))
    assert GATE_BOTH_LEVELS == BOTH_LEVELS
    assert GATE_SKIP_IMPOSSIBLE == SKIP_IMPOSSIBLE


@pytest.mark.parametrize("name", OURS)
def test_gates_of_ours_are_read_like_any_other(name: str) -> None:
    assert getattr(read_gates({name: True}), GATE_FIELDS[name])
    assert read_gates({name: False}) == Gates()
    with pytest.raises(ValueError, match=f"known: .*{name}"):
        read_gates({f"{name}s": True})
