"""An HTTPS handler that places pods at birth: gate off, selector and name on, nothing looked up.

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
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.runtime import clock
from rackgate_webhook.admission.review import AdmissionResponse, decode_review, encode_response
from tests.support.objects import HOST


def birth(generate_name: str) -> list[JsonPatchOp]:
    """What a pod would be given; the name keeps a second pod of its index out."""
    return [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {HOST: "bench-n00007"}},
        {"op": "add", "path": "/metadata/name", "value": f"{generate_name}birth"},
    ]


async def answer(request: web.Request) -> web.Response:
    review = decode_review(await request.read())
    operations = birth(review.object["metadata"]["generateName"])
    body = encode_response(review.uid, AdmissionResponse(operations=operations))
    return web.Response(body=body, content_type="application/json")


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
