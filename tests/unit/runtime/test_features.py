from __future__ import annotations

import pytest

from rackgate.features import (
    ELASTIC_INDEXED_JOBS,
    ELASTIC_JOBS,
    GATES,
    FeatureGates,
    Gate,
    Stage,
    UnknownGateError,
)

TABLE = (Gate("On", True, Stage.BETA, "x"), Gate("Off", False, Stage.ALPHA, "y"))


def test_defaults_come_from_the_table() -> None:
    assert FeatureGates(table=TABLE).as_dict() == {"On": True, "Off": False}


@pytest.mark.requirement("SLC-01")
def test_jobs_are_elastic_only_where_somebody_switched_it_on() -> None:
    gates = FeatureGates()
    assert not gates.enabled(ELASTIC_JOBS)
    assert not gates.enabled(ELASTIC_INDEXED_JOBS)
    assert {gate.stage for gate in GATES if gate.name == ELASTIC_JOBS} == {Stage.ALPHA}


def test_overrides_change_only_what_they_name() -> None:
    gates = FeatureGates({"Off": True}, TABLE)
    assert gates.enabled("Off")
    assert gates.enabled("On")


def test_unknown_names_refuse_and_name_the_nearest() -> None:
    with pytest.raises(UnknownGateError, match=r'"Of" \(did you mean "Off"\?\); known: Off, On'):
        FeatureGates({"Of": True}, TABLE)
    with pytest.raises(UnknownGateError):
        FeatureGates(table=TABLE).enabled("Zzz")


def test_names_are_unique_and_purposes_written() -> None:
    assert len({gate.name for gate in GATES}) == len(GATES)
    assert all(gate.purpose for gate in GATES)


def test_what_a_gate_costs_is_said_where_it_is_on() -> None:
    table = (*TABLE, Gate("Dear", False, Stage.ALPHA, "z", "half of it"))
    assert FeatureGates(table=table).prices() == {}
    assert FeatureGates({"Dear": True, "Off": True}, table).prices() == {"Dear": "half of it"}
