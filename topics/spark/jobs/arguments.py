"""Arguments that several subcommands have, and their types."""

from __future__ import annotations

import argparse
import os
import re
from typing import TypeAlias

from topics.spark.client.http import DEFAULT_URL
from topics.spark.client.servers import BadServers, Servers
from topics.spark.interface import DEFAULTS
from topics.spark.session import is_submitted

MIB = 1024 * 1024
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
GLOB = re.compile(r"[*?\[{]")  # Spark reads a path with these characters as a pattern


def positive(text: str) -> int:
    """Parse an integer that is at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be an integer of at least 1")
    return int(text)


def byte_count(text: str) -> int:
    """Parse ``4MiB``, ``512KiB`` or a number of bytes."""
    try:
        for unit, factor in (("MiB", MIB), ("KiB", 1024)):
            if text.endswith(unit):
                return positive(text.removesuffix(unit)) * factor
        return positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("must be like 4MiB, 512KiB or 65536") from None


def add_common(parser: argparse.ArgumentParser, *, cores: bool = True) -> None:
    """Add ``--url``, ``--retries``, ``--quiet`` and ``--cores``."""
    if cores:
        text = "concurrent tasks of a local session (default: %(default)s)"
        parser.add_argument("--cores", type=positive, default=2, help=text)
    # 127.0.0.1 is another machine on each executor of a cluster.
    default = os.environ.get("TOPICS_URL") or (None if is_submitted() else DEFAULT_URL)
    parser.add_argument(
        "--url",
        type=servers,
        default=default,
        required=default is None,
        metavar="URL[,URL...]",
        help="the server, or several servers as NAME=URL,NAME=URL; each topic is on one of them"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=positive,
        default=int(DEFAULTS["numRetries"]),
        help="retries of a request to a busy or unreachable server (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="do not show the progress")


def servers(text: str) -> Servers:
    """Parse a list of servers."""
    try:
        return Servers.parse(text)
    except BadServers as error:
        raise argparse.ArgumentTypeError(str(error)) from None
