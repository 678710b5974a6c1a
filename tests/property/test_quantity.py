"""The parser against exact fractions: `value = number * suffix`, then rounded away from zero."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackgate.resources.quantity import (
    CLAMP,
    QUOTA_CLAMP,
    QuantityError,
    amount,
    format_amount,
    quota_amount,
    to_milli,
)

SUFFIXES = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**n) for n, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**n) for n, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**n) for n, suffix in enumerate("KMGTPE", 1)},
}
digits = st.text("0123456789", max_size=25)
exponents = st.tuples(st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 40))


def numbers() -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(["", "+", "-"]), digits, st.none() | digits).flatmap(
        lambda it: (
            st.just(f"{it[0]}{it[1]}" + ("" if it[2] is None else f".{it[2]}"))
            if it[1] or it[2]
            else st.nothing()
        )
    )


def rounded(value: Fraction, limit: int) -> int:
    size = abs(value)
    whole = -(-size.numerator // size.denominator)
    return min(whole, limit) if value >= 0 else -min(whole, limit)


def fraction_of(number: str) -> Fraction:
    # "5." and ".5" are quantities, but Python's Fraction wants digits on both sides.
    sign, body = (number[0], number[1:]) if number[0] in "+-" else ("", number)
    whole, _, rest = body.partition(".")
    return Fraction(f"{sign}{whole or '0'}.{rest or '0'}")


@settings(deadline=None)
@given(numbers(), st.sampled_from(sorted(SUFFIXES)))
@example("1.5", "Gi")
@example("0.0000000001", "n")
@example("9223372036854775807", "")
def test_suffixed_quantities_equal_their_fraction(number: str, suffix: str) -> None:
    exact = fraction_of(number) * SUFFIXES[suffix]
    assert amount("memory", number + suffix) == rounded(exact, CLAMP)
    assert to_milli(number + suffix) == rounded(exact * 1000, CLAMP)
    assert quota_amount("cpu", number + suffix) == rounded(exact * 1000, QUOTA_CLAMP)


@settings(deadline=None)
@given(numbers(), exponents)
def test_exponents_equal_their_fraction(number: str, exponent: tuple[str, str, int]) -> None:
    letter, sign, power = exponent
    exact = fraction_of(number) * Fraction(10) ** (-power if sign == "-" else power)
    text = f"{number}{letter}{sign}{power}"
    assert amount("memory", text) == rounded(exact, CLAMP)
    assert to_milli(text) == rounded(exact * 1000, CLAMP)


@settings(deadline=None)
@given(st.text(max_size=12) | st.text("0123456789.+-eEinumkKMGTPE", max_size=12))
def test_any_text_is_read_or_rejected_and_nothing_else(text: str) -> None:
    try:
        found = to_milli(text)
    except QuantityError:
        return
    assert -CLAMP <= found <= CLAMP


@settings(deadline=None)
@given(st.floats(0, 1e9))
def test_numbers_of_lax_clients_equal_their_shortest_decimal(number: float) -> None:
    assert to_milli(number) == rounded(Fraction(repr(number)) * 1000, CLAMP)


@settings(deadline=None)
@given(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "nvidia.com/gpu"]),
    st.integers(-CLAMP, CLAMP) | st.integers(0, 2**15).map(lambda n: n << 30),
)
def test_amounts_are_read_back(resource: str, value: int) -> None:
    assert amount(resource, format_amount(resource, value)) == value


@settings(deadline=None)
@given(numbers(), numbers())
def test_order_is_kept(left: str, right: str) -> None:
    if fraction_of(left) <= fraction_of(right):
        assert to_milli(left) <= to_milli(right)
