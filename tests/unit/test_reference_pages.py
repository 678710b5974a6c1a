"""The pages of docs/reference that people write name every field, and their examples run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rackgate.api.crd import CRD_KINDS, OSMO_CRD_KINDS
from rackgate_assigner.explain import explanation
from rackgate_assigner.quota_scenario.scenario import answers as quota_answers
from rackgate_assigner.scenario import format as scenario_format
from rackgate_assigner.scenario.scenario import answers
from rackgate_osmo.explain import explanation as osmo_explanation
from tests.support.reference import REFERENCE


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


def blocks(name: str, language: str = "") -> list[str]:
    """Code blocks of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    return [text for named, text in found if named == language]


def words(name: str) -> set[str]:
    """Names in code spans: `queue.position` and `ahead[]` count as their parts."""
    spans = re.findall(r"`([^`\n]+)`", page(name))
    return {word for span in spans for word in re.findall(r"\w+", span)}


def properties(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node.get("properties", {})
        for inner in node.values():
            yield from properties(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from properties(inner)


@pytest.mark.parametrize("module", [explanation, osmo_explanation])
def test_every_field_of_an_explanation_is_described(module: Any) -> None:
    fields = set(properties(module.schema()))
    assert len(fields) > 30
    assert sorted(fields - words("explain-json")) == []


def test_every_state_of_an_explanation_is_described() -> None:
    schema = json.dumps(explanation.schema())
    values = {
        v for found in re.findall(r'"enum": \[([^\]]*)\]', schema) for v in json.loads(f"[{found}]")
    }
    assert sorted(values - words("explain-json")) == []


def test_every_field_of_a_scenario_is_described() -> None:
    structs = [
        found
        for found in vars(scenario_format).values()
        if isinstance(found, type)
        and issubclass(found, msgspec.Struct)
        and found.__module__ == scenario_format.__name__
    ]
    fields = {name for struct in structs for name in struct.__struct_encode_fields__}
    assert len(fields) > 30
    assert sorted(fields - words("scenario-format")) == []


def test_the_scenario_on_its_page_gives_the_answers_shown() -> None:
    (text,) = blocks("scenario-format", "json")
    first, second = (json.loads(block.splitlines()[-1]) for block in blocks("scenario-format"))
    assert list(answers(text.encode())) == [first]
    assert list(answers(text.replace('"count": 2', '"count": 3').encode())) == [second]


def test_the_quota_scenario_on_its_page_gives_the_answer_shown() -> None:
    (text,) = blocks("quota-scenario-format", "json")
    (shown,) = (json.loads(block.splitlines()[-1]) for block in blocks("quota-scenario-format"))
    assert list(quota_answers(text.encode())) == [shown]


def test_the_example_of_the_osmo_library_runs() -> None:
    (code,) = blocks("osmo", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "osmo.md", "exec"), names)  # noqa: S102 - it is our own page
    marks = names["built"].pods["train", "t1"]
    assert marks.annotations == {"pod-group-name": "w-train"}


def test_every_kind_is_listed_with_its_short_names() -> None:
    text = page("api")
    for kind in (*CRD_KINDS, *OSMO_CRD_KINDS):
        row = next(
            line for line in text.splitlines() if line.startswith(f"| {kind.model.__name__} ")
        )
        assert not kind.short_names or f"`{kind.short_names[0]}`" in row or "`lq`" in row
        assert ("v1beta1" in row) == (kind.old_version is not None)
        assert ("namespace" in row) == kind.namespaced
