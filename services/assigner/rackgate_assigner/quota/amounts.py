"""Amounts of resources as messages show them: `conformance/quota`, section 7."""

from __future__ import annotations

from typing import Final

from rackgate.resources.quantity import format_amount

_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")


def quantity(resource: str, value: int) -> str:
    """Canonical text of an amount in messages: decimal suffixes as far as they divide ("1k")."""
    if resource in ("memory", "ephemeral-storage"):
        return format_amount(resource, value)
    if resource == "cpu":
        if value % 1000:
            return f"{value}m"
        value //= 1000
    power = 0
    while value and value % 1000 == 0 and power < len(_DECIMAL) - 1:
        value, power = value // 1000, power + 1
    return f"{value}{_DECIMAL[power]}"
