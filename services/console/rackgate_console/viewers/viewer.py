"""Who asks, and what they may see: the user of this machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from rackgate_console.responses import RejectedError
from rackgate_console.viewers.access import EVERYTHING, Access
from rackgate_console.viewers.sessions import Sessions

LOCAL: Final = "local"
CLUSTER: Final = "cluster"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks.

    Attributes:
        user: name that the page shows.
        identity: equal for requests of one user, for limits.
    """

    user: str
    identity: str
    access: Access


@dataclass(frozen=True, slots=True)
class Credentials:
    """The part of a request that says who asks.

    Attributes:
        host: header Host.
        authorization: header Authorization.
        namespaces: those that the page asks for.
    """

    host: str = ""
    authorization: str = ""
    cookies: Mapping[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()


class Viewers(Protocol):
    """Knows the viewers of a console.

    Attributes:
        mode: `local` or `cluster`.
    """

    mode: str

    async def viewer(self, credentials: Credentials) -> Viewer:
        """Who asks.

        Raises:
            RejectedError: unknown (401), or without any right (403).
        """

    def check_host(self, host: str) -> None:
        """Raise `RejectedError` for a request that was sent to another name."""


class LocalViewers:
    """The user of this machine: everything that their kubeconfig may read."""

    mode = LOCAL

    def __init__(self, sessions: Sessions, user: str, port: int) -> None:
        self.sessions, self._user, self.port = sessions, user, port

    @property
    def cookie_name(self) -> str:
        """Cookies have no port, and there may be a console for each of several clusters."""
        return f"rackgate-console-{self.port}"

    async def viewer(self, credentials: Credentials) -> Viewer:
        """The user, if the browser has the cookie."""
        if not self.sessions.is_valid(credentials.cookies.get(self.cookie_name, "")):
            raise RejectedError(401, "open the address that the terminal shows: it has a new code")
        return Viewer(self._user, "local", EVERYTHING)

    def check_host(self, host: str) -> None:
        """A page of another name that resolves to this machine must not read anything."""
        if host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}", f"[::1]:{self.port}"):
            raise RejectedError(421, f"this console is at http://127.0.0.1:{self.port}")
