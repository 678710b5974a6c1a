from __future__ import annotations

import pytest

from rackgate.resources.quantity import (
    CLAMP,
    QUOTA_CLAMP,
    QuantityError,
    amount,
    format_amount,
    quota_amount,
    to_milli,
)


@pytest.mark.parametrize(
    ("text", "milli", "units"),
    [
        ("4", 4000, 4),
        ("1500m", 1500, 2),
        ("100m", 100, 1),
        ("0.5", 500, 1),
        (".5", 500, 1),
        ("5.", 5000, 5),
        ("+5", 5000, 5),
        ("1e3", 1_000_000, 1000),
        ("1E3", 1_000_000, 1000),
        ("1.5e+1", 15_000, 15),
        ("1e-3", 1, 1),
        ("1k", 1_000_000, 1000),
        ("1Ki", 1_024_000, 1024),
        ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
        ("0.1Ki", 102_400, 103),
        ("1n", 1, 1),
        ("1u", 1, 1),
        ("1000001u", 1001, 2),
        ("0", 0, 0),
        ("0e99999999999", 0, 0),
        (4, 4000, 4),
        (0.1, 100, 1),
        (1e-7, 1, 1),
    ],
)
def test_quantities_are_read_exactly_and_rounded_up(
    text: str | float, milli: int, units: int
) -> None:
    assert (to_milli(text), amount("memory", text)) == (milli, units)


def test_negative_quantities_round_away_from_zero_and_are_left_to_callers() -> None:
    assert (to_milli("-1500m"), amount("memory", "-1500m")) == (-1500, -2)


@pytest.mark.parametrize(
    "text", ["1e30", "9223372036854775807", "1E", "1e999999999999", "8Ei", "9" * 256, 10**30]
)
def test_quantities_beyond_the_clamp_are_clamped(text: str | int) -> None:
    assert (to_milli(text), amount("memory", text)) == (CLAMP, CLAMP)


def test_negative_quantities_beyond_the_clamp_are_clamped() -> None:
    assert amount("memory", "-1e30") == -CLAMP


def test_sums_of_clamped_quantities_over_the_largest_cluster_fit_int64() -> None:
    assert amount("memory", "1e30") * 2**17 <= 2**62 < 2**63


def test_quotas_of_a_whole_cluster_are_not_clamped_like_a_node() -> None:
    assert quota_amount("memory", "150Pi") == 150 * 2**50
    assert quota_amount("memory", "1e30") == QUOTA_CLAMP


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "ten",
        ".",
        "-",
        "1.5.2",
        "1 ",
        " 1",
        "1\n",
        "1ki",
        "1mi",
        "1e",
        "e3",
        "1e3Ki",
        "Ki",
        "1_000",
        "0x10",
        "١",
        "²",
        "--1",
        "NaN",
        "9" * 257,
        True,
        float("nan"),
        float("inf"),
        None,
        [],
    ],
)
def test_garbage_is_rejected_with_the_value_and_a_hint(text: object) -> None:
    with pytest.raises(QuantityError, match=r'is not a quantity: use a form such as "500m"'):
        to_milli(text)  # type: ignore[arg-type]  # wire data may hold anything


def test_the_message_cuts_long_values() -> None:
    with pytest.raises(QuantityError) as refused:
        amount("memory", "x" * 100_000)
    assert len(str(refused.value)) < 200


def test_cpu_is_counted_in_thousandths_and_the_rest_in_units() -> None:
    assert (amount("cpu", "1.5"), amount("memory", "1.5")) == (1500, 2)


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 4000, "4"),
        ("cpu", 0, "0"),
        ("memory", 7500 * 2**20, "7500Mi"),
        ("memory", 2**30, "1Gi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        ("ephemeral-storage", 2**40, "1Ti"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("nvidia.com/gpu", 1024, "1024"),
    ],
)
def test_amounts_are_written_in_their_shortest_usual_form(
    resource: str, value: int, text: str
) -> None:
    assert format_amount(resource, value) == text
