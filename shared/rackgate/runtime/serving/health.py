"""Liveness, readiness and metrics over plain HTTP."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from rackgate.runtime import metrics


class HealthServer:
    """Serves /healthz, /readyz and /metrics.

    /healthz returns 200 while the event loop runs. /readyz returns 200 if `ready` returns an empty
    list, else 503 with the reasons, one per line.
    """

    def __init__(
        self,
        port: int,
        ready: Callable[[], list[str]],
        *,
        host: str = "127.0.0.1",
        kueue_metrics: bool = False,
    ) -> None:
        """Prepare.

        Args:
            port: to listen on.
            ready: why the service is not ready, one reason each.
            host: address to listen on.
            kueue_metrics: serve metrics under Kueue's names, too.
        """
        self.host = host
        self.port = port
        self._ready = ready
        self._kueue_metrics = kueue_metrics
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. With port 0 the kernel chooses one, and `port` has it afterwards.

        Raises:
            OSError: the address is in use.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening; idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> HealthServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self._ready()
        if missing:
            return web.Response(status=503, text="".join(f"{line}\n" for line in missing))
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = metrics.render(kueue_names=self._kueue_metrics)
        return web.Response(body=body, headers={"Content-Type": metrics.CONTENT_TYPE})
