"""Amounts as texts, and the order of resources (section 3)."""

from __future__ import annotations

from collections.abc import Iterable

DECIMAL = ("", "k", "M", "G", "T", "P", "E")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def hash_of(name: str) -> int:
    """The 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def in_order(resources: Iterable[str]) -> list[str]:
    return sorted(resources, key=hash_of)


def written(resource: str, amount: int) -> str:
    """An amount as a canonical quantity."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else _scaled(amount // 1000, 1000, DECIMAL)
    if resource in ("memory", "ephemeral-storage"):
        return _scaled(amount, 1024, BINARY)
    return _scaled(amount, 1000, DECIMAL)


def _scaled(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while amount and amount % base == 0 and power < len(suffixes) - 1:
        amount //= base
        power += 1
    return f"{amount}{suffixes[power]}"
