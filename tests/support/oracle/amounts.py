"""Quantities and how many requests fit into what is free (sections 3 and 4 of the rules)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

NO_LIMIT = 2**31 - 1
Amounts = dict[str, int]
Quantity = str | int | float
SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
FORM = re.compile(r"([+-]?[0-9]*\.?[0-9]*)(?:[eE]([+-]?[0-9]+)|([a-zA-Z]*))")


def whole(name: str, quantity: Quantity) -> int:
    """Thousandths of cpu, whole units of anything else, rounded up."""
    match = FORM.fullmatch(str(quantity).strip())
    assert match, quantity
    number, exponent, suffix = match.groups()
    value = Fraction(number) * (
        Fraction(10) ** int(exponent) if exponent is not None else SUFFIXES[suffix]
    )
    return math.ceil(value * 1000 if name == "cpu" else value)


def read(quantities: Mapping[str, Quantity] | None) -> Amounts:
    return {name: whole(name, quantity) for name, quantity in (quantities or {}).items()}


def per_pod(requests: Amounts) -> Amounts:
    """With the 1 of `pods` that every pod takes."""
    total = dict(requests)
    total["pods"] = total.get("pods", 0) + 1
    return total


def subtract(free: Amounts, requests: Amounts, times: int = 1) -> None:
    for name, amount in requests.items():
        free[name] = free.get(name, 0) - amount * times


def fit(request: Amounts, free: Amounts) -> tuple[int, str]:
    """How many, and the tightest resource (of equals the first in byte order)."""
    best, tightest = NO_LIMIT, ""
    for name in sorted(request, key=str.encode):
        room = NO_LIMIT
        if request[name] > 0:
            room = max(0, free.get(name, 0) // request[name])
        if not tightest or room < best:
            best, tightest = room, name
    return best, tightest
