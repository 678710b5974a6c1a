"""The HTTPS server: `/mutate` and `/validate`. The only place of the webhook that knows HTTP."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from rackgate.runtime import clock, metrics
from rackgate_webhook.answer import Answer, Decide, answer_review
from rackgate_webhook.mutate import mutate
from rackgate_webhook.validate import validate

MAX_BODY_BYTES: Final = 4 * 2**20
BODY_TIMEOUT_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 10.0
# Longer than the API server keeps an idle connection (90 s): then it is never we who close one
# that a request is just being sent on.
KEEPALIVE_S: Final = 120.0

REVIEW_DURATION: Final = metrics.histogram(
    "review_duration_seconds", "Time to answer one review.", ("operation", "allowed")
)

log = structlog.get_logger()


class WebhookServer:
    """Answers reviews over TLS.

    Besides its public port it listens on a private port of the loopback interface, with the same
    TLS context and routes: several replicas may share the public port, and a call to oneself must
    not be answered by another.

    Attributes:
        port: the public port, once started.
        private_port: the private one.
    """

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, *, both_levels: bool = False
    ) -> None:
        self.port = port
        self._check = partial(validate, both_levels=both_levels)
        self.private_port = 0
        self._host = host
        self._context = context
        self._draining = False
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. The context must hold a certificate by then.

        Raises:
            OSError: the address is in use by another program.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/mutate", self._mutate)
        app.router.add_post("/validate", self._validate)
        app.on_response_prepare.append(self._say_goodbye)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_S,
        )
        self._runner = runner
        await runner.setup()
        public = web.TCPSite(
            runner,
            self._host,
            self.port,
            ssl_context=self._context,
            reuse_port=True,
            backlog=1024,
        )
        await public.start()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._context).start()
        self.port, self.private_port = (address[1] for address in runner.addresses[:2])

    def drain(self) -> None:
        """From now on every answer closes its connection, so that callers move elsewhere."""
        self._draining = True

    async def stop(self) -> None:
        """Stop listening, then let requests under way finish. Repeating it is harmless."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _say_goodbye(self, _: web.Request, response: web.StreamResponse) -> None:
        if self._draining:
            response.force_close()
            # The headers are made before this hook: without it callers would not know.
            response.headers["Connection"] = "close"

    async def _mutate(self, request: web.Request) -> web.Response:
        return await _answer(request, mutate)

    async def _validate(self, request: web.Request) -> web.Response:
        return await _answer(request, self._check)


async def _answer(request: web.Request, decide: Decide) -> web.Response:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.read()
    except TimeoutError:
        return web.Response(status=408, text="the request's body did not arrive in time\n")
    started = clock.monotonic()
    answer = answer_review(body, decide)
    _observe(answer, clock.monotonic() - started)
    content_type = "application/json" if answer.status == 200 else "text/plain"
    return web.Response(status=answer.status, body=answer.body, content_type=content_type)


def _observe(answer: Answer, duration_s: float) -> None:
    allowed = "true" if answer.allowed else "false"
    REVIEW_DURATION.labels(operation=answer.operation, allowed=allowed).observe(duration_s)
    level = log.debug if answer.allowed else log.info
    level(
        "review_answered",
        operation=answer.operation,
        kind=answer.kind,
        allowed=answer.allowed,
        reason=answer.reason,
        duration_s=round(duration_s, 6),
    )
