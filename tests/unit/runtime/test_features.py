from __future__ import annotations

from dataclasses import fields

import pytest

from rackgate.features import (
    ELASTIC_JOBS,
    GATES,
    PLACEMENT_GATES,
    Features,
    Gate,
    Stage,
    UnknownGateError,
)


def test_defaults_come_from_the_table() -> None:
    assert Features.of().as_dict() == {gate.name: gate.default for gate in GATES}
    assert Features.of({}) == Features()


@pytest.mark.requirement("SLC-01")
def test_jobs_are_elastic_only_where_somebody_switched_it_on() -> None:
    assert not Features().elastic_jobs
    assert not Features().elastic_indexed_jobs
    assert {gate.stage for gate in GATES if gate.name == ELASTIC_JOBS} == {Stage.ALPHA}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_an_override_changes_its_gate_alone(gate: Gate) -> None:
    name, default = gate.name, gate.default
    changed = Features.of({name: not default}).as_dict()
    assert changed == {**Features().as_dict(), name: not default}


def test_unknown_names_are_rejected_and_the_nearest_is_named() -> None:
    with pytest.raises(
        UnknownGateError, match=r'"TASProfileMixd" \(did you mean "TASProfileMixed"\?\); known: '
    ):
        Features.of({"TASProfileMixd": True})


def test_names_are_unique_and_purposes_written() -> None:
    assert len({gate.name for gate in GATES}) == len(GATES) == len(fields(Features))
    assert all(gate.purpose for gate in GATES)
    assert {gate.name for gate in GATES} >= PLACEMENT_GATES


def test_gates_of_ours_that_change_placements_are_off_by_default() -> None:
    ours = {name for name in PLACEMENT_GATES if name.startswith("Rackgate")}
    assert ours
    assert not any(gate.default for gate in GATES if gate.name in ours)


def test_the_cost_of_a_gate_is_reported_where_it_is_on() -> None:
    assert Features().costs() == {}
    assert list(Features(fewest_domains=True).costs()) == ["RackgateFewestDomains"]
