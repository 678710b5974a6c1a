"""The threat model names tests that there are, and every attack that there is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.security.catalog import Attack, Phase, load

ROOT = deploy_dir().parent
PAGE = (ROOT / "docs" / "design" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ATTACKS = sorted(
    {f"tests/security/attacks/{it.group}.py::{it.name.split('[')[0]}" for it in load()}
)
DEFENDED = re.compile(r"^\| (?P<attack>[^|]+) \| (?P<by>[^|]+) \| (?P<tests>[^|]*) \|$")


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(("path", "function"), NAMED, ids="::".join)
def test_a_test_that_the_page_names_exists(path: str, function: str) -> None:
    assert function in functions(ROOT / path)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_has_its_line(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_each_line_of_what_is_enforced_names_a_test() -> None:
    enforced = PAGE.split("## What is enforced where")[1].split("## What is not defended")[0]
    rows = [row for row in map(DEFENDED.match, enforced.splitlines()) if row]
    rows = [row for row in rows if row["attack"] != "attack"]
    assert len(rows) > 30
    assert [row["attack"] for row in rows if "::" not in row["tests"]] == []


def test_users_who_view_write_nothing() -> None:
    roles = {one["metadata"]["name"]: one for one in install.documents(deploy_dir() / "cluster")}
    verbs = {verb for rule in roles["rackgate-users:view"]["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_there_are_sixty_attacks_and_more_in_each_state_with_operators() -> None:
    assert len(ATTACKS) >= 60
    for phase in (Phase.UP, Phase.DOWN):
        assert sum(one.fits(phase) for one in load()) >= 60


def test_attacks_that_land_with_every_change_cover_every_group() -> None:
    def groups(attacks: list[Attack]) -> set[str]:
        return {one.group for one in attacks}

    # Names alone, and what is off by default; `make redteam` has them.
    apart = {"collisions", "gangs", "plain_pods"}
    assert groups([one for one in load() if one.ci]) == groups(load()) - apart
