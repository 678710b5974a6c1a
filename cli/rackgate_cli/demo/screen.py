"""Where a story is told: lines with their time, and a live picture below them on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live


class Screen:
    """Prints lines as they come; on a terminal, a picture that follows the story."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begin = time.monotonic()
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Print one line with the seconds since the story began."""
        self.console.print(f"[dim]{time.monotonic() - self.begin:5.1f} s[/dim]  {text}")

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Keep the live picture on while the story runs; on a pipe there are lines alone."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as shown:
            self._live = shown
            try:
                yield
            finally:
                self._live = None

    def update(self, picture: Any) -> None:
        """DemoScreen another picture, if there is one on."""
        if self._live is not None:
            self._live.update(picture)
