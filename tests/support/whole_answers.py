"""Requests whose whole answer matters: status, body and warnings."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from rackgate_cli.controlplane.state import StateFolder
from tests.support.playground import Playground

Answer = tuple[int, dict[str, Any], str]


class Server:
    """The API server with its whole answers: a client of ours keeps only the message."""

    def __init__(self, playground: Playground) -> None:
        pki = StateFolder(playground.state).pki
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / "admin-client.crt", pki / "admin-client.key")
        self._base = playground.server

    async def send(
        self, method: str, path: str, body: dict[str, Any], form: str = "application/json"
    ) -> Answer:
        """Status, body and warnings of the answer."""
        return await asyncio.to_thread(self._send, method, path, body, form)

    def _send(self, method: str, path: str, body: dict[str, Any], form: str) -> Answer:
        request = urllib.request.Request(  # noqa: S310 - the playground's https address
            self._base + path, json.dumps(body).encode(), {"Content-Type": form}, method=method
        )
        try:
            with urllib.request.urlopen(  # noqa: S310 - the playground's https address
                request, context=self._context, timeout=60
            ) as answer:
                warnings = "\n".join(answer.headers.get_all("Warning") or ())
                return answer.status, json.loads(answer.read()), warnings
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), ""
