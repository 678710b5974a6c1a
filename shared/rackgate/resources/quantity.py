"""Kubernetes quantities as exact integers, without floats.

CPU is in thousandths (millicores), every other resource in base units (bytes, whole devices).
Fractions round away from zero, as `Value` and `MilliValue` of the API server do.

Results are clamped to +-`CLAMP` = 2**45 (32 TiB, or 35 billion cores), so that the sum over 2**17
nodes is at most 2**62 and arrays of int64 do not overflow. Quotas cover whole clusters:
`quota_amount` clamps to `QUOTA_CLAMP` = 2**60, and quotas are summed as Python integers.

Source: `resource.Quantity` of k8s.io/apimachinery (the grammar is in the comment of the type).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

CLAMP: Final = 2**45
QUOTA_CLAMP: Final = 2**60
INT64_MAX: Final = 2**63 - 1
MAX_TEXT: Final = 256

_PATTERN: Final = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:(n|u|m|k|M|G|T|P|E|[KMGTPE]i)|[eE]([+-]?[0-9]+))?"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX_POWER: Final = 1000  # larger powers of ten do not change a clamped or rounded result


class QuantityError(ValueError):
    """The text is not a Kubernetes quantity."""


def _invalid_quantity(value: object) -> QuantityError:
    shown = str(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
    return QuantityError(f'"{shown}" is not a quantity: use a form such as "500m", "4" or "1.5Gi"')


def _scale(value: int, power: int) -> int:
    """`value` * 10**power, rounded up, for values of at least 0."""
    factor: int = 10 ** abs(power)
    return value * factor if power >= 0 else -(-value // factor)


@lru_cache(maxsize=65536)
def _parse(text: str, milli: bool) -> int:
    """Value of `text` in thousandths or units, without `CLAMP`."""
    match = _PATTERN.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise _invalid_quantity(text)
    sign, whole, fraction, suffix, exponent = match.groups()
    fraction = fraction or ""
    if not whole and not fraction:
        raise _invalid_quantity(text)
    power = -len(fraction) + (3 if milli else 0)
    value = int(whole + fraction)
    if exponent is not None:
        power += max(-_MAX_POWER, min(_MAX_POWER, int(exponent)))
    elif suffix in _BINARY:
        value <<= _BINARY[suffix]
    elif suffix is not None:
        power += _DECIMAL[suffix]
    result = _scale(value, power)
    return -result if sign == "-" else result


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    raise _invalid_quantity(value)


def _clamp(value: int, limit: int) -> int:
    return max(-limit, min(limit, value))


def to_milli(value: str | int | float) -> int:
    """Thousandths of a quantity, rounded away from zero and clamped to `CLAMP`.

    A number stands for its shortest decimal text. Negative values are allowed.

    Raises:
        QuantityError: not a quantity, or longer than 256 characters.
    """
    return _clamp(_parse(_text(value), True), CLAMP)


def exact_milli(value: str | int | float) -> int:
    """Thousandths of a quantity, rounded away from zero; not clamped: for comparisons only.

    Raises:
        QuantityError: as for `to_milli`.
    """
    return _parse(_text(value), True)


def amount(resource: str, value: str | int | float) -> int:
    """Amount of a resource: millicores for cpu, base units otherwise; clamped to `CLAMP`.

    Raises:
        QuantityError: as for `to_milli`.
    """
    return _clamp(_parse(_text(value), resource == "cpu"), CLAMP)


def quota_amount(resource: str, value: str | int | float) -> int:
    """As `amount`, but clamped to `QUOTA_CLAMP`: quota may exceed 32 TiB of memory.

    Raises:
        QuantityError: as for `to_milli`.
    """
    return _clamp(_parse(_text(value), resource == "cpu"), QUOTA_CLAMP)


def _is_bytes(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def request_amount(resource: str, value: str | int | float) -> int:
    """As `amount`, but clamped to int64 alone: for messages that repeat a request.

    Raises:
        QuantityError: as for `to_milli`.
    """
    return _clamp(_parse(_text(value), resource == "cpu"), INT64_MAX)


def format_amount(resource: str, value: int) -> str:
    """Text that `amount` parses back: "1500m" or "4" for cpu, "7500Mi" for memory.

    Bytes get the largest binary suffix that divides them; other resources are plain integers.
    """
    if resource == "cpu":
        whole, rest = divmod(value, 1000)
        return f"{value}m" if rest else str(whole)
    if value and _is_bytes(resource):
        for suffix, shift in reversed(_BINARY.items()):
            if value % (1 << shift) == 0:
                return f"{value >> shift}{suffix}"
    return str(value)


def format_mean(resource: str, units: float) -> str:
    """Text of a mean in units, such as cores: to thousandths, or to whole bytes."""
    if _is_bytes(resource):
        return format_amount(resource, round(units))
    return format_amount("cpu", round(units * 1000))


def parse_mean(value: str | int | float) -> float:
    """The units of a text of `format_mean`, clamped to `QUOTA_CLAMP`.

    Raises:
        QuantityError: as for `to_milli`.
    """
    return _clamp(_parse(_text(value), True), QUOTA_CLAMP * 1000) / 1000
