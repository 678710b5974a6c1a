"""An HTTPS handler that decides nothing: what TLS and the HTTP server cost by themselves.

Prints its port and, in one line of JSON, its certificate authority; ends with its parent's pipe.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from aiohttp import web

from rackgate.certificates.certificates import issue
from rackgate.certificates.tls import load_pair, server_context
from rackgate.runtime import clock

ANSWER = json.dumps({"response": {"uid": "0", "allowed": True}}).encode()


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


async def main() -> None:
    made = issue(
        ["localhost", "127.0.0.1"],
        validity=timedelta(days=1),
        now=clock.now(),
        owner="rackgate-webhook",
    )
    context = server_context()
    load_pair(context, made.certificate, made.key)
    app = web.Application()
    app.router.add_post("/mutate", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    said = {"port": runner.addresses[0][1], "authority": made.authority.decode()}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
