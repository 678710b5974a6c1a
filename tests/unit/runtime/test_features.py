from __future__ import annotations

from dataclasses import fields

import pytest

from rackgate.features import (
    ELASTIC_JOBS,
    GATES,
    PLACEMENT_GATES,
    Features,
    FixedGateError,
    Gate,
    Stage,
    UnknownGateError,
    without_effect,
)
from rackgate.kueue_gates import KUEUE_GATES
from tests.support.kueue_names import kueue_names


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


def test_every_gate_of_kueue_is_a_switch_or_has_a_fixed_value_and_none_is_both() -> None:
    ours = {gate.name for gate in GATES}
    assert not ours & set(KUEUE_GATES)
    assert set(kueue_names("gates")) - ours == set(KUEUE_GATES)


@pytest.mark.parametrize("name", sorted(KUEUE_GATES))
def test_a_gate_of_kueue_is_accepted_only_with_the_value_that_rackgate_behaves_as(
    name: str,
) -> None:
    gate = KUEUE_GATES[name]
    for value in (True, False):
        if not gate.replaced_by and gate.behaves in (None, value):
            assert Features.of({name: value}) == Features()
            continue
        with pytest.raises(FixedGateError, match=f'feature gate "{name}" of Kueue'):
            Features.of({name: value})


def test_a_gate_of_kueue_under_another_name_says_that_name() -> None:
    with pytest.raises(FixedGateError, match='is "RackgateStickyPreemptors" in Rackgate: set that'):
        Features.of({"PrioritizePreemptorWorkloads": True})
    assert {gate.replaced_by for gate in KUEUE_GATES.values()} - {""} <= {g.name for g in GATES}


def test_gates_without_effect_are_named_with_what_happens_instead() -> None:
    found = without_effect({"PartialAdmission": True, ELASTIC_JOBS: True})
    assert found == {"PartialAdmission": KUEUE_GATES["PartialAdmission"].note}
