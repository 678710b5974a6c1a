"""An interrupt of a command cancels its work between two callbacks of the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from rackgate_cli.cluster import interruptible


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """A shell lets its background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_result_comes_back_and_the_signal_is_as_before() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert interruptible.run(work()) == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_a_callback_that_sets_a_result_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[str] = []

    def connected(answer: asyncio.Future[None]) -> None:
        signal.raise_signal(signal.SIGINT)
        answer.set_result(None)
        steps.append("set")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        loop.call_soon(connected, answer)
        try:
            await answer
            await asyncio.sleep(60)
        finally:
            steps.append("closed")

    with pytest.raises(KeyboardInterrupt):
        interruptible.run(work())
    assert steps == ["set", "closed"]
    assert not caplog.records
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait_for_the_first() -> None:
    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        interruptible.run(work())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_the_last_step_is_not_lost() -> None:
    """What the command does afterwards, for example write, must not happen."""

    async def work() -> int:
        signal.raise_signal(signal.SIGINT)
        return 7

    with pytest.raises(KeyboardInterrupt):
        interruptible.run(work())


def test_an_interrupt_while_the_loop_closes_is_not_lost() -> None:
    async def left() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGINT)

    kept: list[asyncio.Task[None]] = []

    async def work() -> None:
        kept.append(asyncio.create_task(left()))
        await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        interruptible.run(work())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_owner_of_the_signal_keeps_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:

        async def work() -> str:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            return "done"

        assert interruptible.run(work()) == "done"
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_work_that_cancels_itself_is_not_interrupted() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        interruptible.run(work())
