"""TLS contexts: the server's, whose certificate changes while it serves, and the self-caller's."""

from __future__ import annotations

import os
import ssl
import tempfile
from asyncio import sslproto
from pathlib import Path


def limit_tls_buffers() -> None:
    """Give each TLS connection from now on a buffer of 32 KiB.

    asyncio takes 256 KiB for each, and offers no other way to say so: a thousand idle callers
    would cost 270 MB.
    """
    sslproto.SSLProtocol.max_size = 2**15


def server_context() -> ssl.SSLContext:
    """A server context without a certificate yet; TLS 1.2 at least."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(bundle: bytes) -> ssl.SSLContext:
    """A client context that trusts nothing but the bundle (PEM).

    Raises:
        ssl.SSLError: the bundle holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=bundle.decode("ascii"))
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve this pair (PEM) to connections that are opened from now on.

    The standard library reads certificates from files only; this one lives in memory where the
    system can do that, so no key reaches a disk and a read-only root file system will do.

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
