"""Commands that pages of docs/tasks print name everything that they are for."""

from __future__ import annotations

import itertools
import re

import pytest

from rackgate.api.names import VISIBILITY_GROUP
from rackgate.api.resources import ADMISSION_CHECKS, WORKLOADS
from rackgate_assigner.uninstall.controller import FINALIZED_RESOURCES
from rackgate_cli.preflight.findings import OLD_NAMES, OUR_KINDS
from tests.support.runbook import commands

LOOP = re.compile(r"^for (?P<name>\w+) in (?P<values>[^;]+); do\n(?P<body>.*?)^done", re.M | re.S)


def expanded(text: str) -> str:
    """The text with the body of each loop once for each of its values."""

    def bodies(loop: re.Match[str]) -> str:
        return "".join(
            loop["body"].replace(f"${loop['name']}", value) for value in loop["values"].split()
        )

    return LOOP.sub(bodies, text)


@pytest.mark.requirement("OPS-14")
def test_without_the_command_everything_that_is_held_is_let_go() -> None:
    text = expanded(commands("uninstall", "everything else can be deleted:"))
    freed = '--type=merge -p \'{"metadata":{"finalizers":null}}\''
    for kind in (*FINALIZED_RESOURCES, ADMISSION_CHECKS):
        assert f"kubectl get {kind.full_name} " in text
    assert f"patch {WORKLOADS.full_name} $name {freed}" in text
    assert text.count(f"xargs -r -n1 kubectl patch {freed}") == len(FINALIZED_RESOURCES)
    for service in ("assigner", "ungater"):
        pair = f"clusterrole,clusterrolebinding rackgate-{service}.rackgate-system"
        assert f"kubectl patch {pair} {freed}" in text
        assert f"patch serviceaccount rackgate-{service} {freed}" in text


@pytest.mark.requirement("OPS-14")
def test_all_objects_of_old_names_are_deleted_after_the_upgrade() -> None:
    text = expanded(commands("upgrade", "## Upgrade from a version with old names"))
    deleted = [line for line in text.splitlines() if line.strip().startswith("kubectl delete ")]
    words = set(itertools.chain.from_iterable(line.split() for line in deleted))
    named = {word.rpartition("/")[2] for word in words if "rackgate-" in word}
    assert named == OLD_NAMES


def test_every_kind_that_is_taken_over_from_kueue_is_written_once_and_what_it_serves_goes() -> None:
    (kinds,) = re.findall(
        r'kinds="([^"]+)"', commands("migrate-from-kueue", "no older version is stored:")
    )
    assert {f"{kind}.kueue.x-k8s.io" for kind in kinds.split()} == OUR_KINDS
    text = commands("migrate-from-kueue", "no namespace of the cluster can be deleted:")
    assert VISIBILITY_GROUP in text.replace("\\", "")
