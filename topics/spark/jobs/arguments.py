"""Arguments that several subcommands share, their types, and the options that they set."""

from __future__ import annotations

import argparse
import os
import re
from typing import TypeAlias

from topics.spark.client.http import DEFAULT_URL
from topics.spark.client.servers import BadServers, Servers
from topics.spark.interface import DEFAULTS
from topics.spark.session import is_submitted
from topics.spark.sink.options import SinkOptions
from topics.spark.source.options import UNITS_MS

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
        for unit, factor in (("MiB", 1024 * 1024), ("KiB", 1024)):
            if text.endswith(unit):
                return positive(text.removesuffix(unit)) * factor
        return positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("must be like 4MiB, 512KiB or 65536") from None


def seconds(text: str) -> float:
    """Parse ``500ms``, ``10s``, ``5m`` or ``1h``."""
    found = re.fullmatch(r"([0-9]+)(ms|s|m|h)", text)
    if found is None or int(found.group(1)) == 0:
        raise argparse.ArgumentTypeError("must be like 500ms, 10s, 5m or 1h")
    return int(found.group(1)) * UNITS_MS[found.group(2)] / 1000


def add_common(parser: argparse.ArgumentParser, *, cores: bool = True) -> None:
    """Add ``--url``, ``--retries``, ``--quiet`` and ``--cores``."""
    if cores:
        text = "concurrent tasks in a local session (default: %(default)s)"
        parser.add_argument("--cores", type=positive, default=2, help=text)
    # On a cluster, 127.0.0.1 refers to a different machine on each executor.
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


def options_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the connection options of ``format("topics")``. The key stays in the environment."""
    servers = ",".join(server.entry for server in options.url.members)
    return {"servers": servers, "numRetries": str(options.retries)}


def sink_of(options: argparse.Namespace, topic: str, **more: str | None) -> SinkOptions:
    """Return the options for a write to ``topic``. An option in ``more`` that is None is omitted.
    Raise `BadOption`.
    """
    given = {name: value for name, value in more.items() if value is not None}
    return SinkOptions.parse({**options_of(options), "topic": topic, **given})
