"""Record AdmissionReviews as the real API server sends them, for `bench.webhook` to post.

Run: python -m bench.record_reviews; writes `bench/reviews/job.json` and `pod.json`. To be run
again when the Kubernetes version changes. Nothing of the machine is in them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from bench.measuring.samples import pod, training_job
from bench.measuring.world import create, playground, quiet, say
from rackgate.api import resources as kinds
from rackgate.certificates.certificates import issue
from rackgate.certificates.tls import load_pair, server_context
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock
from tests.support.playground import Playground

FOLDER: Final = Path(__file__).with_name("reviews")
NAMESPACE: Final = "default"
ATTEMPTS: Final = 50

Reviews = dict[str, bytes]


@contextlib.asynccontextmanager
async def recorder(found: Reviews) -> AsyncIterator[dict[str, str]]:
    """A handler that keeps what it is sent; yields the `clientConfig` that reaches it."""
    made = issue(
        ["127.0.0.1"], validity=timedelta(days=1), now=clock.now(), owner="rackgate-webhook"
    )
    context = server_context()
    load_pair(context, made.certificate, made.key)

    async def keep(request: web.Request) -> web.Response:
        body = await request.read()
        asked = json.loads(body)["request"]
        found[asked["kind"]["kind"].lower()] = body
        review = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "response": {"uid": asked["uid"], "allowed": True},
        }
        return web.json_response(review)

    app = web.Application()
    app.router.add_post("/", keep)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        bundle = base64.b64encode(made.authority).decode()
        yield {"url": f"https://127.0.0.1:{runner.addresses[0][1]}/", "caBundle": bundle}
    finally:
        await runner.cleanup()


def registration(reach: dict[str, str]) -> dict[str, Any]:
    rules = [
        {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [kind]}
        for group, kind in (("batch", "jobs"), ("", "pods"))
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "bench-recorder"},
        "webhooks": [
            {
                "name": "recorder.bench.rackgate.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": reach,
                "rules": rules,
                "failurePolicy": "Fail",
                "sideEffects": "None",
            }
        ],
    }


def sample_objects() -> tuple[dict[str, Any], dict[str, Any]]:
    """A Job and a pod of a started Job, as a user and the Job controller would send them."""
    job, born = training_job(), pod(0, bound=False)
    for made in (job, born):
        for field in ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields"):
            made["metadata"].pop(field, None)
        made["metadata"]["namespace"] = NAMESPACE
    del born["status"], born["spec"]["nodeSelector"], born["spec"]["schedulingGates"]
    return job, born


async def record(started: Playground) -> Reviews:
    found: Reviews = {}
    job, born = sample_objects()
    async with started.client() as client, recorder(found) as reach:
        await create(client, kinds.MUTATING_CONFIGS, registration(reach))
        for _ in range(ATTEMPTS):  # the API server takes a moment to follow
            await _try(client, kinds.JOBS, job)
            await _try(client, kinds.PODS, born)
            if len(found) == 2:
                return found
            await asyncio.sleep(0.2)
    raise SystemExit(f"the API server sent no review of { ({'job', 'pod'} - set(found)) }")


async def _try(client: Client, kind: kinds.Resource, sample: dict[str, Any]) -> None:
    # The policies refuse both: a Job that nothing suspended, a pod without its gate.
    with contextlib.suppress(KubeError):
        await client.create(kind.path(NAMESPACE), json.dumps(sample).encode(), {"dryRun": "All"})


def main() -> int:
    quiet()
    with playground(()) as started:
        found = asyncio.run(record(started))
    FOLDER.mkdir(exist_ok=True)
    for kind, body in found.items():
        document = json.loads(body)
        # The fingerprint of a certificate that lives as long as the playground.
        document["request"]["userInfo"].pop("extra", None)
        FOLDER.joinpath(f"{kind}.json").write_text(json.dumps(document, indent=1) + "\n")
        say(f"{kind}: {len(body) / 1e3:.1f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
