"""Errors, headers and files of the page. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

# The page needs nothing but its own files. Downloads of pictures are blobs.
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


class RejectedError(Exception):
    """A request that is not answered; the message is for the user.

    Attributes:
        status: of the response.
        field: path of the field that is wrong, "" for none.
        retry_after_s: when it may be sent again; 0 if that would not help.
    """

    def __init__(
        self, status: int, message: str, *, field: str = "", retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.field, self.retry_after_s = status, field, retry_after_s

    def encoded(self, **more: str) -> bytes:
        """JSON of the response."""
        found = {"error": str(self), **more}
        return msgspec.json.encode(found | {"field": self.field} if self.field else found)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, read once."""

    body: bytes
    content_type: str
    etag: str


def read_page() -> Mapping[str, PageFile]:
    """All files of the page, by their path below the folder."""
    found: dict[str, PageFile] = {}
    _collect(resources.files("rackgate_console") / "page", "", found)
    return found


def _collect(folder: Traversable, path: str, found: dict[str, PageFile]) -> None:
    for entry in folder.iterdir():
        name = f"{path}{entry.name}"
        if entry.is_dir():
            _collect(entry, f"{name}/", found)
            continue
        content_type = _TYPES.get(entry.name[entry.name.rfind(".") :])
        if content_type is not None:
            body = entry.read_bytes()
            found[name] = PageFile(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
