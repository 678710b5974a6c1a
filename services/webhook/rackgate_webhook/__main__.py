"""`python -m rackgate_webhook`."""

from __future__ import annotations

import sys

from rackgate.runtime.service import run_service
from rackgate_webhook.service import run_webhook
from rackgate_webhook.settings import WebhookSettings


def main() -> int:
    """Run the webhook; the process's exit code."""
    return run_service(
        "webhook",
        run_webhook,
        settings=WebhookSettings,
        description="Answers admission reviews: governs jobs, refuses what cannot work.",
    )


if __name__ == "__main__":
    sys.exit(main())
