"""``python -m topics.spark.client ready [--url URL] [--wait-s S]``: is a server ready?

It exits with DONE as soon as the server is ready, with FAILED when it is not in time, with USAGE
when it cannot be asked: a wrong argument, or urllib3 is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from topics.errors import ExitCode

try:
    from topics.spark.client.http import DEFAULT_URL, Target, TopicsClient, mistake_in
except ModuleNotFoundError as missing:
    cure = "pip install 'topics-engine[spark]'"
    sys.stderr.write(f"error: {missing.name} is not installed: {cure}\n")
    raise SystemExit(ExitCode.USAGE) from None
except KeyboardInterrupt:
    raise SystemExit(ExitCode.INTERRUPTED) from None

POLL_S = 0.1


def main(arguments: list[str] | None = None) -> ExitCode:
    """Ask ``/v0/ready`` until it answers 200 or the time is over."""
    parser = argparse.ArgumentParser(prog="python -m topics.spark.client")
    parser.add_argument("command", choices=["ready"])
    parser.add_argument("--url", default=os.environ.get("TOPICS_URL", DEFAULT_URL))
    parser.add_argument(
        "--wait-s", type=float, default=0.0, help="how long to keep asking (default: ask once)"
    )
    options = parser.parse_args(arguments)
    key = os.environ.get("TOPICS_API_KEY")
    target = Target(url=options.url, api_key=key, connect_s=1.0, read_s=2.0)
    if mistake := mistake_in(target):
        parser.error(mistake)
    try:
        return _ask(target, time.monotonic() + options.wait_s)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _ask(target: Target, deadline: float) -> ExitCode:
    with TopicsClient(target) as client:
        while not client.ready():
            if time.monotonic() >= deadline:
                return ExitCode.FAILED
            time.sleep(POLL_S)
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
