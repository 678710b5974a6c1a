"""Who calls: the front proxy of the API server, and the user in whose name it calls.

The API server authenticates its user, and passes the name in headers. It proves itself by a client
certificate. ConfigMap `kube-system/extension-apiserver-authentication` says which authority signs
these certificates, which names they may have, and which headers count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import msgspec

CONFIG_MAP: Final = "extension-apiserver-authentication"
CONFIG_MAP_NAMESPACE: Final = "kube-system"
MAX_GROUPS: Final = 1000

# `subject` of `ssl.SSLSocket.getpeercert()`.
Subject: TypeAlias = Iterable[Iterable[tuple[str, str]]]

_decode_names = msgspec.json.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """How the front proxy proves itself, and which headers it sends.

    Attributes:
        authorities: PEM of the authorities of its client certificate.
        allowed_names: common names of its client certificate; any if empty.
        user_headers, uid_headers, group_headers: names of headers.
        extra_prefixes: prefixes of names of headers.
    """

    authorities: str
    allowed_names: frozenset[str] = frozenset()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = field(default=())


def read_front_proxy(data: Mapping[str, str]) -> FrontProxy | None:
    """The content of the ConfigMap; None if the API server has no front proxy.

    Raises:
        ValueError: a field is malformed; names it.
    """
    authorities = data.get("requestheader-client-ca-file", "")
    users = _names(data, "requestheader-username-headers")
    if not authorities.strip() or not users:
        return None
    return FrontProxy(
        authorities,
        frozenset(_names(data, "requestheader-allowed-names")),
        users,
        _names(data, "requestheader-uid-headers"),
        _names(data, "requestheader-group-headers"),
        _names(data, "requestheader-extra-headers-prefix"),
    )


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(_decode_names(data.get(key) or "[]"))
    except msgspec.DecodeError as error:
        raise ValueError(f"data.{key}: expected a JSON list of strings: {error}") from error


def is_front_proxy(proxy: FrontProxy, certificate: Mapping[str, Any] | None) -> bool:
    """Whether a verified client certificate belongs to the front proxy.

    Args:
        proxy: what the ConfigMap says.
        certificate: as `ssl.SSLSocket.getpeercert()` returns it; empty or None without one.
    """
    if not certificate:
        return False
    subject: Subject = certificate.get("subject", ())
    names = {value for part in subject for key, value in part if key == "commonName"}
    return bool(names) and (not proxy.allowed_names or not names.isdisjoint(proxy.allowed_names))


def user_of(proxy: FrontProxy, headers: Sequence[tuple[str, str]]) -> User | None:
    """The user that the headers name; None if they name none.

    Args:
        proxy: which headers count.
        headers: name and value of each header of the request, in order.
    """
    name = next(iter(_values(headers, proxy.user_headers)), "")
    groups = _values(headers, proxy.group_headers)
    if not name or len(groups) > MAX_GROUPS:
        return None
    extra: dict[str, list[str]] = {}
    for header, value in headers:
        for prefix in proxy.extra_prefixes:
            if header.lower().startswith(prefix.lower()):
                extra.setdefault(unquote(header.lower()[len(prefix) :]), []).append(value)
                break
    return User(
        name,
        next(iter(_values(headers, proxy.uid_headers)), ""),
        tuple(groups),
        tuple((key, tuple(values)) for key, values in sorted(extra.items())),
    )


def _values(headers: Sequence[tuple[str, str]], names: Iterable[str]) -> list[str]:
    """Values that are not empty, by the order of `names`."""
    return [
        value
        for name in names
        for header, value in headers
        if value and header.lower() == name.lower()
    ]
