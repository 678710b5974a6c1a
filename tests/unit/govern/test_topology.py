"""Topology annotations: what they ask for, and what is refused with which path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.jobframework.topology_request import (
    requests_topology,
    topology_errors,
    topology_request,
)
from tests.support.objects import RACK

PATH = "spec.template"
WHERE = "spec.template.metadata.annotations"
LAYERS = json.dumps([{"topology": "rack", "size": 4}, {"topology": "host", "size": 2}])


def template(**annotations: str) -> dict[str, Any]:
    marks = {getattr(names, key): value for key, value in annotations.items()}
    return {"metadata": {"annotations": marks}}


@pytest.mark.requirement("TAS-06", "TAS-07", "TAS-10")
@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"REQUIRED_TOPOLOGY": RACK}, {"required": RACK}),
        ({"PREFERRED_TOPOLOGY": RACK}, {"preferred": RACK}),
        ({"UNCONSTRAINED_TOPOLOGY": "true"}, {"unconstrained": True}),
        (
            {"SLICE_REQUIRED_TOPOLOGY": RACK, "SLICE_SIZE": "4"},
            {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4},
        ),
        (
            {"SLICE_CONSTRAINTS": LAYERS},
            {"podsetSliceRequiredTopologyConstraints": json.loads(LAYERS)},
        ),
        (
            {"REQUIRED_TOPOLOGY": RACK, "PODSET_GROUP": "g"},
            {"required": RACK, "podSetGroupName": "g"},
        ),
    ],
)
def test_annotations_become_the_request(
    annotations: dict[str, str], request_: dict[str, Any]
) -> None:
    asked = template(**annotations)
    assert topology_request(asked) == request_
    assert topology_request(asked, index_label="i") == {**request_, "podIndexLabel": "i"}
    assert topology_errors(asked, PATH, count=8) == []


@pytest.mark.parametrize(
    "asked",
    [{}, {"metadata": None}, {"metadata": {"annotations": None}}, template(SLICE_SIZE="2")],
)
def test_nothing_asked_is_no_request(asked: dict[str, Any]) -> None:
    assert not requests_topology(asked)
    assert topology_request(asked, index_label="i") is None


def test_unconstrained_false_asks_for_nothing() -> None:
    asked = template(UNCONSTRAINED_TOPOLOGY="false")
    assert topology_request(asked) is None
    assert topology_errors(asked, PATH) == []


def both(count: int, **annotations: str) -> list[str]:
    return [str(error) for error in topology_errors(template(**annotations), PATH, count=count)]


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P6")
def test_two_requests_on_one_template_are_rejected_with_both_values() -> None:
    (error,) = both(2, REQUIRED_TOPOLOGY="rack", PREFERRED_TOPOLOGY="block")
    assert error.startswith(f"{WHERE}: more than one topology request: ")
    assert f'{names.REQUIRED_TOPOLOGY}="rack"' in error
    assert f'{names.PREFERRED_TOPOLOGY}="block"' in error


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P6")
@pytest.mark.parametrize(
    "kinds",
    [
        ("REQUIRED_TOPOLOGY", "UNCONSTRAINED_TOPOLOGY"),
        ("PREFERRED_TOPOLOGY", "UNCONSTRAINED_TOPOLOGY"),
        ("REQUIRED_TOPOLOGY", "PREFERRED_TOPOLOGY", "UNCONSTRAINED_TOPOLOGY"),
    ],
)
def test_every_pair_of_requests_is_rejected_once(kinds: tuple[str, ...]) -> None:
    (error,) = both(2, **dict.fromkeys(kinds, "true"))
    assert error.startswith(f"{WHERE}: more than one topology request: ")
    assert all(f'{getattr(names, kind)}="true"' in error for kind in kinds)


@pytest.mark.requirement("VAL-12")
@pytest.mark.parametrize(
    "key", ["", "Block/x", "a//b", "/rack", "rack/", "-rack", "rack-", "ra ck", "a/b/c", "räck"]
)
def test_a_malformed_level_key_is_rejected_with_its_path(key: str) -> None:
    (error,) = both(2, REQUIRED_TOPOLOGY=key)
    assert error.startswith(f'{WHERE}[{names.REQUIRED_TOPOLOGY}]: "{key}" is not a node label key;')


def test_a_trailing_newline_is_no_part_of_a_level_key() -> None:
    assert len(both(2, REQUIRED_TOPOLOGY="rack\n")) == 1


@pytest.mark.parametrize("key", ["rack", "cloud.provider.com/topology-rack", "a.b/C_d.e-F", "x/1"])
def test_a_well_formed_level_key_is_accepted(key: str) -> None:
    assert both(2, PREFERRED_TOPOLOGY=key) == []


def test_a_level_key_longer_than_a_request_carries_is_rejected() -> None:
    (error,) = both(2, REQUIRED_TOPOLOGY="a" * 40 + "/" + "b" * 40)
    assert "has 81 characters, a request allows 63" in error


@pytest.mark.field_note("P5", "P6", "W8")
@pytest.mark.parametrize(
    ("annotations", "path", "says"),
    [
        ({"SLICE_REQUIRED_TOPOLOGY": "rack"}, names.SLICE_REQUIRED_TOPOLOGY, "without their size"),
        ({"SLICE_SIZE": "2"}, names.SLICE_SIZE, "without the level"),
        ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "3"}, names.SLICE_SIZE, "do not divide"),
        ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "0"}, names.SLICE_SIZE, "not a whole"),
        ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "-2"}, names.SLICE_SIZE, "not a whole"),
        ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "2.5"}, names.SLICE_SIZE, "not a whole"),
        (
            {"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "99999999999999999999"},
            names.SLICE_SIZE,
            "not a whole",
        ),
        ({"UNCONSTRAINED_TOPOLOGY": "maybe"}, names.UNCONSTRAINED_TOPOLOGY, "not a boolean"),
        ({"PODSET_GROUP": "g"}, names.PODSET_GROUP, "needs a required or preferred"),
        ({"REQUIRED_TOPOLOGY": "r", "PODSET_GROUP": "7"}, names.PODSET_GROUP, "not a group name"),
        *(
            ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": size}, names.SLICE_SIZE, "not a who")
            for size in ("", "+4", " 4", "4\n", "4e0", "0x4", "\u0664", "2147483648")
        ),
        ({"SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "16"}, names.SLICE_SIZE, "not divide"),
        (
            {"SLICE_REQUIRED_TOPOLOGY": "a//b", "SLICE_SIZE": "2"},
            names.SLICE_REQUIRED_TOPOLOGY,
            "is not a node label key",
        ),
        (
            {"REQUIRED_TOPOLOGY": "r", "PODSET_GROUP": "g", "SLICE_CONSTRAINTS": LAYERS},
            names.SLICE_CONSTRAINTS,
            f"cannot be combined with {names.PODSET_GROUP}",
        ),
        ({"REQUIRED_TOPOLOGY": "r", "PODSET_GROUP": ""}, names.PODSET_GROUP, "not a group name"),
        (
            {"REQUIRED_TOPOLOGY": "r", "PODSET_GROUP": "g" * 257},
            names.PODSET_GROUP,
            "not a group name",
        ),
        (
            {"SLICE_CONSTRAINTS": LAYERS, "SLICE_SIZE": "2", "SLICE_REQUIRED_TOPOLOGY": "rack"},
            names.SLICE_CONSTRAINTS,
            "cannot be combined",
        ),
    ],
)
def test_wrong_slices_and_groups_are_rejected_with_their_path(
    annotations: dict[str, str], path: str, says: str
) -> None:
    errors = both(8, **annotations)
    assert any(error.startswith(f"{WHERE}[{path}]: ") and says in error for error in errors)


@pytest.mark.field_note("P6")
@pytest.mark.parametrize(
    ("layers", "path", "says"),
    [
        ("not json", "", "is not a list of 1 to 3 layers"),
        ("[" * 4000, "", "is not a list of 1 to 3 layers"),
        ("[]", "", "is not a list of 1 to 3 layers"),
        ('[{"topology": "rack"}]', "", "is not a list of 1 to 3 layers"),
        ('[{"topology": "rack", "size": "4"}]', "", "is not a list of 1 to 3 layers"),
        ('[{"topology": "rack", "size": true}]', "", "is not a list of 1 to 3 layers"),
        *(
            (odd, "", "is not a list of 1 to 3 layers")
            for odd in (
                "",
                "null",
                '"rack"',
                '{"topology": "rack", "size": 4}',
                "[null]",
                '[["rack", 4]]',
                '[{"topology": "rack", "size": 4, "count": 2}]',
                '[{"topology": "rack", "Size": 4}]',
                '[{"topology": null, "size": 4}]',
                '[{"topology": "rack", "size": 4.0}]',
                '[{"topology": "rack", "size": 0}]',
                '[{"topology": "rack", "size": -4}]',
                '[{"topology": "rack", "size": NaN}]',
                '[{"topology": "rack", "size": 2147483648}]',
                json.dumps([{"topology": f"l{n}", "size": 8 >> n} for n in range(4)]),
                " " * 4096 + '[{"topology": "rack", "size": 4}]',
            )
        ),
        ('[{"topology": "", "size": 4}]', "[0].topology", "is not a node label key"),
        ('[{"topology": "a//b", "size": 4}]', "[0].topology", "is not a node label key"),
        (
            '[{"topology": "a", "size": 4}, {"topology": "b", "size": 2},'
            ' {"topology": "a", "size": 1}]',
            "[2].topology",
            "appears twice",
        ),
        (
            '[{"topology": "rack", "size": 2}, {"topology": "host", "size": 4}]',
            "[1].size",
            "size 4 does not divide size 2",
        ),
        ('[{"topology": "rack", "size": 3}]', "[0].size", "do not divide the podset's 8 pods"),
        (
            '[{"topology": "rack", "size": 4}, {"topology": "host", "size": 3}]',
            "[1].size",
            "size 3 does not divide size 4",
        ),
        (
            '[{"topology": "rack", "size": 4}, {"topology": "rack", "size": 2}]',
            "[1].topology",
            "appears twice",
        ),
    ],
)
def test_wrong_layers_are_rejected_with_their_path(layers: str, path: str, says: str) -> None:
    errors = both(8, SLICE_CONSTRAINTS=layers)
    prefix = f"{WHERE}[{names.SLICE_CONSTRAINTS}]{path}: "
    assert any(error.startswith(prefix) and says in error for error in errors), errors


def test_a_request_is_made_even_of_what_is_rejected() -> None:
    asked = template(REQUIRED_TOPOLOGY="a", PREFERRED_TOPOLOGY="b", SLICE_CONSTRAINTS="x")
    assert topology_request(asked) == {"required": "a", "preferred": "b"}


@pytest.mark.requirement("USR-07")
def test_workers_of_a_group_may_be_sliced_below_its_level() -> None:
    """All of the job in one block, the workers of each slice in one rack of it."""
    marks = {"PODSET_GROUP": "g", "SLICE_REQUIRED_TOPOLOGY": "rack", "SLICE_SIZE": "4"}
    assert both(8, REQUIRED_TOPOLOGY="block", **marks) == []
