"""Logs: an event name and key-value pairs; JSON on a pipe, colors on a terminal.

Level error means that an operator must act.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import msgspec
import structlog

from rackgate.runtime import metrics

Format = Literal["auto", "json", "console"]

_COUNTED_LEVELS = ("warning", "error")
LOG_LINES = metrics.initialize_series(
    metrics.counter(
        "log_lines_total",
        "Logs of level warning and error. Level error means that an operator must act.",
        ("level",),
    ),
    "level",
    _COUNTED_LEVELS,
)


def _render_json(event: Any, **_: Any) -> str:
    # `str` for values that are not JSON: logging must not raise.
    return msgspec.json.encode(event, enc_hook=str).decode()


def _count(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if event["level"] in _COUNTED_LEVELS:
        LOG_LINES.labels(level=event["level"]).inc()
    return event


def configure(
    service: str, *, level: str = "info", format: Format = "auto", stream: TextIO | None = None
) -> None:
    """Set up structlog, and the stdlib loggers of libraries through it.

    Args:
        service: bound to every line as `service`.
        level: debug, info, warning or error.
        format: auto is console on a terminal, else JSON.
        stream: output; stderr by default.
    """
    out = stream or sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _count,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=out.isatty())]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_render_json)]
    )
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Of libraries, only warnings and errors.
    root.setLevel(max(threshold, logging.WARNING))
