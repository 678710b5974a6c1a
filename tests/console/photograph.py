"""Photographs every view and state of the console for the documentation.

    python -m tests.console.photograph [FOLDER]     (default: docs/pictures/console)

Each is taken at 390 and 1440 pixels, dark and light, of the cluster of the tests. Look at them
after a change of the page.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, async_playwright

from tests.console.pages import MANIFEST, READY, VIEWS, WAITS_FOR, chromium, site

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures" / "console"
WIDTHS: Final = (390, 1440)
SCHEMES: Final = ("light", "dark")
LOST: Final = "body[data-connection=lost]"
DRAWN: Final = "() => globalThis.rackgate?.view?.facts?.().frames > 1"
Act = Callable[[Page], Awaitable[object]]


async def _ask(page: Page) -> None:
    await page.get_by_role("textbox", name="Manifest").fill(MANIFEST % 16)
    await page.get_by_role("button", name="Ask").click()
    await page.wait_for_selector(".explanation")


async def photograph(folder: Path) -> int:
    """Write all pictures; return how many."""
    count = 0
    async with site() as found, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )

        async def take(name: str, state: str | None, ready: str, act: Act | None = None) -> None:
            """One state at all sizes; without `state`, of a browser that has no session."""
            nonlocal count
            for width in WIDTHS:
                for scheme in SCHEMES:
                    options: dict[str, Any] = {"color_scheme": scheme}
                    size = {"width": width, "height": 900}
                    page = await browser.new_page(viewport=size, **options)  # type: ignore[arg-type]  # a dict is a ViewportSize
                    await page.goto(found.address if state is None else found.link(state))
                    await page.wait_for_selector(ready)
                    if await page.locator("canvas.map").count():
                        await page.wait_for_function(DRAWN)
                    if act is not None:
                        await act(page)
                    await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
                    await page.close()
                    count += 1

        for view, state in VIEWS.items():
            await take(view, state, WAITS_FOR.get(view, READY))
        await take("what-if-answered", "view=what-if", READY, _ask)
        await take("sign-in", None, ".sign-in")
        await found.api.stop()
        await take("api-server-away", "", LOST)
        await browser.close()
    return count


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    where.mkdir(parents=True, exist_ok=True)
    print(f"{asyncio.run(photograph(where))} pictures in {where}")
