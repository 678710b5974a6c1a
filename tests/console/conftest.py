"""A browser, and a console to look at."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.console.pages import Site, chromium, site

# A full machine may stand still for longer than the 5 s that are the default.
expect.set_options(timeout=30_000)
NO_BROWSER = "no Chromium is on the PATH or in $CHROME"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser the tests are skipped; a landing is judged with one."""
    if chromium() is not None or config.getoption("collectonly"):
        return
    if os.environ.get("CI"):
        raise pytest.UsageError(f"{NO_BROWSER}: the pages of the console would not be tested")
    for item in items:
        if "tests/console" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shown() -> AsyncIterator[Site]:
    """A console that no test changes."""
    async with site() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium. As root it has no sandbox, and looks at nothing but these pages."""
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield found
        await found.close()
