from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rackgate.runtime import logs, metrics


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_pipe_gets_one_json_object_per_line_with_facts_as_keys() -> None:
    out = io.StringIO()
    logs.configure("assigner", stream=out)
    structlog.get_logger().bind(workload="a/b").info("workload_admitted", wait_s=0.5)
    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "workload_admitted",
        "level": "info",
        "service": "assigner",
        "workload": "a/b",
        "wait_s": 0.5,
    }


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    logs.configure("x", level="warning", stream=out)
    structlog.get_logger().info("hidden")
    structlog.get_logger().warning("shown")
    assert [line["event"] for line in lines(out)] == ["shown"]


def test_exceptions_and_odd_values_do_not_break_a_line() -> None:
    out = io.StringIO()
    logs.configure("x", stream=out)
    try:
        int("planted")
    except ValueError:
        structlog.get_logger().exception("task_failed", odd=object, text="a\nb")
    (line,) = lines(out)
    assert "ValueError: invalid literal" in line["exception"]
    assert line["text"] == "a\nb"


def test_libraries_log_in_the_same_form_and_only_warnings() -> None:
    out = io.StringIO()
    logs.configure("x", stream=out)
    logging.getLogger("aiohttp.server").info("hidden")
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["service"]) == ("broken pipe", "error", "x")


def test_the_console_form_is_no_json() -> None:
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs.configure("x", format="console", stream=out)
        structlog.get_logger().info("hello", count=3)
    assert "hello" in out.getvalue()
    assert "count=3" in out.getvalue()


@pytest.mark.requirement("OPS-09")
def test_lines_that_want_a_person_are_counted_whoever_writes_them() -> None:
    def counted(level: str) -> float:
        return metrics.REGISTRY.get_sample_value("rackgate_log_lines_total", {"level": level}) or 0

    before = counted("warning"), counted("error")
    logs.configure("x", stream=io.StringIO())
    structlog.get_logger().info("fine")
    structlog.get_logger().warning("odd")
    structlog.get_logger().exception("broken")
    logging.getLogger("library").error("broken as well")
    assert (counted("warning"), counted("error")) == (before[0] + 1, before[1] + 2)
