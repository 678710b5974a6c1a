"""The page about gangs, run as it is printed, on a control plane with gang scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate.features import GANG_SCHEDULING
from tests.support.playground import Playground, start_playground
from tests.support.task_cluster import nodes_and_queue, runner
from tests.support.task_pages import FOLDER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("gang-page") / "state"
    # The runner deletes jobs of all kinds in the end.
    kinds = ("jobset", "kuberay")
    running = start_playground(folder, operators=kinds, gates=(GANG_SCHEDULING,))
    try:
        with nodes_and_queue(running):
            yield running
    finally:
        running.stop()


def test_every_command_of_the_page_does_what_it_says(gangs: Playground, tmp_path: Path) -> None:
    page = FOLDER / "run-a-gang.md"
    with runner(gangs, tmp_path, page) as run:
        run.run(page)
