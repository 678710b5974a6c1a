"""Whether callers that trust a bundle would accept a pair: a TLS handshake in memory."""

from __future__ import annotations

import ssl
from functools import lru_cache

from rackgate_webhook.certificates.tls import client_context, load_pair, server_context


@lru_cache(maxsize=16)
def trust_failure(certificate: bytes, key: bytes, name: str, bundle: bytes) -> str:
    """Why a caller that trusts `bundle` would refuse the pair; empty when it would not.

    It goes by the time of the machine, and is remembered: ask again with another pair or bundle.

    Args:
        certificate: PEM, chain included.
        key: PEM.
        name: DNS name or IP address that is called.
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
