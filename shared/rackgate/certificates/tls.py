"""TLS contexts, and the check whether callers trust a pair."""

from __future__ import annotations

import os
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path


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
        descriptor = os.memfd_create("rackgate-tls", os.MFD_CLOEXEC)
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
