"""`python -m rackgate_webhook`."""

from __future__ import annotations

import sys

from rackgate.runtime.service import run_service
from rackgate_webhook.service import run_webhook
from rackgate_webhook.settings import WebhookSettings


def main() -> int:
    """Run the webhook; returns the exit code of the process."""
    return run_service(
        "webhook",
        run_webhook,
        settings=WebhookSettings,
        description="Answers admission reviews: suspends and gates managed jobs, rejects errors.",
    )


if __name__ == "__main__":
    sys.exit(main())
