"""Sessions of a console on the user's own machine: one access code, and cookies. Pure.

Every process on the machine can connect to a port of the loopback interface. So the page needs a
code, which only the terminal shows. It is valid once: if someone else was faster, the user sees
that it is not valid any more. The browser then has a cookie that no script can read.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

# Bytes of codes and cookies.
_LENGTH: Final = 32
CODE_S: Final = 600.0
MAX_SESSIONS: Final = 32


class Sessions:
    """The code that is valid now, and the cookies.

    Attributes:
        code: for the next browser.
    """

    def __init__(self, now: float) -> None:
        self._cookies: list[bytes] = []
        self.new_code(now)

    def new_code(self, now: float) -> str:
        """Replace the code; returns the new one, valid for `CODE_S` seconds."""
        self.code: str = secrets.token_urlsafe(_LENGTH)
        self._valid_until = now + CODE_S
        return self.code

    def open(self, code: str, now: float) -> str | None:
        """A cookie for a code; None if the code is not valid. No code is valid twice."""
        valid = hmac.compare_digest(code.encode(errors="surrogatepass"), self.code.encode())
        if not valid or now > self._valid_until:
            return None
        self._valid_until = 0.0
        cookie = secrets.token_urlsafe(_LENGTH)
        self._cookies = [*self._cookies[-MAX_SESSIONS + 1 :], cookie.encode()]
        return cookie

    def is_valid(self, cookie: str) -> bool:
        """Whether a cookie is one of these."""
        found = cookie.encode(errors="surrogateescape")
        return any(hmac.compare_digest(found, one) for one in self._cookies)
