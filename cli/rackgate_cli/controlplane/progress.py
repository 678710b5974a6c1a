"""Progress on stderr: the current step, and how long it has taken."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final, TextIO

HEARTBEAT_S: Final = 10.0


class Progress:
    """Prints one line per step with the seconds since the start, and a heartbeat in long ones."""

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._heartbeat_s = heartbeat_s
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            elapsed = time.monotonic() - self._began
            print(f"[{elapsed:6.1f} s] {text}", file=self._stream, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the start of a long step, a heartbeat while it runs, and how long it took."""
        self.say(f"{text} ...")
        began = time.monotonic()
        done = threading.Event()
        beat = threading.Thread(target=self._heartbeat, args=(text, began, done), daemon=True)
        beat.start()
        try:
            yield
        finally:
            done.set()
            beat.join()
        self.say(f"{text}: done in {time.monotonic() - began:.1f} s")

    def _heartbeat(self, text: str, began: float, done: threading.Event) -> None:
        while not done.wait(self._heartbeat_s):
            self.say(f"{text}: still running after {time.monotonic() - began:.0f} s")
