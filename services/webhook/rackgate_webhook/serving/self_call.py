"""The webhook's TLS call to itself."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from typing import Final

import msgspec

from rackgate.certificates.tls import client_context

TIMEOUT_S: Final = 5.0
PROBE_UID: Final = "rackgate-self-call"
_REVIEW: Final = msgspec.json.encode(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": PROBE_UID,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CONNECT",  # not managed, and distinct in the metrics
        },
    }
)


async def call_self(port: int, name: str, bundle: bytes) -> str:
    """Send a review without effect to the webhook on a loopback port.

    Args:
        port: where it listens on 127.0.0.1.
        name: DNS name or IP address that its certificate must have.
        bundle: PEM of the authorities to trust.

    Returns:
        The failure; empty if the response was correct.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            head, body = await _exchange(port, name, client_context(bundle))
    except (OSError, EOFError, ValueError) as error:  # ssl.SSLError and TimeoutError are OSErrors
        return str(error) or type(error).__name__
    if not head.startswith(b"HTTP/1.1 200 "):
        return head.partition(b"\r\n")[0].decode("latin-1")
    return "" if PROBE_UID.encode() in body and b'"allowed":true' in body else "wrong answer"


async def _exchange(port: int, name: str, context: ssl.SSLContext) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name
    )
    try:
        request = (
            f"POST /mutate HTTP/1.1\r\nHost: {_host(name)}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(_REVIEW)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode("ascii") + _REVIEW)
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head, body


def _host(name: str) -> str:
    try:
        version = ipaddress.ip_address(name).version
    except ValueError:
        return name
    return f"[{name}]" if version == 6 else name
