"""TLS contexts, the check whether callers trust a pair, and the webhook's call to itself."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

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


def server_context() -> ssl.SSLContext:
    """A server context without a certificate, for TLS 1.2 or later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(bundle: bytes) -> ssl.SSLContext:
    """A client context that trusts only the bundle (PEM).

    Raises:
        ssl.SSLError: the bundle holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=bundle.decode("ascii"))
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve this pair (PEM) on new connections.

    The standard library reads certificates from files only. This file is in memory where the system
    supports it, so no key is written to disk and the root file system may be read-only.

    Raises:
        ssl.SSLError: the pair is unusable.
    """
    pem = certificate.rstrip() + b"\n" + key
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rackgate-webhook-tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pair.pem")
        file.touch(mode=0o600)
        file.write_bytes(pem)
        context.load_cert_chain(file)


@lru_cache(maxsize=16)
def trust_failure(certificate: bytes, key: bytes, name: str, bundle: bytes) -> str:
    """Why a caller that trusts `bundle` rejects the pair; empty if it accepts it.

    The result depends on the local time and is cached by pair and bundle.

    Args:
        certificate: PEM, chain included.
        key: PEM.
        name: DNS name or IP address that the caller uses.
        bundle: PEM.
    """
    if not bundle.strip():
        return "no CA bundle"
    server = server_context()
    try:
        load_pair(server, certificate, key)
        client = client_context(bundle)
        _handshake(server, client, name)
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or error.reason or str(error)
    except ValueError as error:  # not ASCII
        return str(error)
    return ""


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    callee = server.wrap_bio(to_server, to_client, server_side=True)
    caller = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (caller, callee):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is caller:
                return


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
