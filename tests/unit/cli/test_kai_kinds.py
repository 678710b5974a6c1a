"""KAI's kinds, as `rackgate up --with kai-crds` installs them."""

from __future__ import annotations

import argparse

import pytest

from rackgate.api import resources as kinds
from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.binaries.versions import FEATURES, KINDS, OPERATORS, binaries_with
from rackgate_cli.locations import deploy_dir
from rackgate_cli.playground.commands import operators

FOLDER = deploy_dir() / "controlplane" / KINDS["kai-crds"]


def test_every_kind_of_kai_that_is_used_is_installed_in_the_version_that_is_used() -> None:
    found = {
        (document["metadata"]["name"], version["name"])
        for document in install.documents(FOLDER)
        for version in document["spec"]["versions"]
        if version["served"]
    }
    used = (kinds.KAI_TOPOLOGIES, kinds.KAI_POD_GROUPS, kinds.KAI_QUEUES)
    assert found == {(kind.full_name, kind.version) for kind in used}


def test_the_licence_lies_beside_what_it_is_for() -> None:
    assert "Apache License" in (FOLDER / "LICENSE").read_text()
    for path in FOLDER.glob("*.yaml"):
        assert "SPDX-License-Identifier: Apache-2.0" in path.read_text()


def test_kinds_are_asked_for_like_operators_and_are_no_programs() -> None:
    assert operators("kai-crds,jobset") == ("jobset", "kai-crds")
    assert not set(KINDS) & set(OPERATORS)
    assert binaries_with((*KINDS, *FEATURES)) == binaries_with(())
    assert operators("gang-scheduling,jobset") == ("jobset", "gang-scheduling")
    known = "known: jobset, kuberay, lws, kai-crds, gang-scheduling, none"
    with pytest.raises(argparse.ArgumentTypeError, match=known):
        operators("kai")
