"""Every command and manifest of docs/tasks, run as the page prints it.

Pages for users run here, each in a namespace and a folder of its own. Pages in `ELSEWHERE` need a
control plane of their own, or only show what other tests run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.playground import Playground
from tests.support.task_cluster import nodes_and_queue, runner
from tests.support.task_pages import ELSEWHERE, pages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
HERE = [page for page in pages() if page.stem not in ELSEWHERE]


@pytest.fixture(scope="module")
def cluster_of_the_pages(playground: Playground) -> Iterator[Playground]:
    with nodes_and_queue(playground):
        yield playground


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.stem)
def test_every_command_of_the_page_does_what_it_says(
    page: Path, cluster_of_the_pages: Playground, tmp_path: Path
) -> None:
    with runner(cluster_of_the_pages, tmp_path, page) as run:
        run.run(page)
