"""What subcommands share: the servers, the types of arguments, and the result of a job."""

from __future__ import annotations

import argparse
import os
import re
from typing import Protocol

from topics.spark.client.http import DEFAULT_URL
from topics.spark.client.servers import BadServers, Servers
from topics.spark.interface import DEFAULTS
from topics.spark.session import is_submitted

MIB = 1024 * 1024
GLOB = re.compile(r"[*?\[{]")  # in a path, Spark reads it as a pattern


class Outcome(Protocol):
    """The result of a job."""

    @property
    def agrees(self) -> bool:
        """Whether the server's own counts agree with what the job did."""
        ...

    def text(self) -> str:
        """For a terminal."""
        ...


class Commands(Protocol):
    """Where ``add`` puts a subcommand: the part of argparse's class that it needs."""

    def add_parser(
        self, name: str, *, help: str, description: str, epilog: str
    ) -> argparse.ArgumentParser:
        """A parser for the subcommand ``name``."""
        ...


def positive(text: str) -> int:
    """An integer from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be an integer from 1")
    return int(text)


def byte_count(text: str) -> int:
    """``4MiB``, ``512KiB`` or plain bytes."""
    try:
        for unit, factor in (("MiB", MIB), ("KiB", 1024)):
            if text.endswith(unit):
                return positive(text.removesuffix(unit)) * factor
        return positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("must be like 4MiB, 512KiB or 65536") from None


def add_servers(parser: argparse.ArgumentParser) -> None:
    """``--url``, ``--retries`` and ``--quiet``; for `topics.spark.jobs.streams.options_of`."""
    # 127.0.0.1 is another machine on each executor of a cluster.
    default = os.environ.get("TOPICS_URL") or (None if is_submitted() else DEFAULT_URL)
    parser.add_argument(
        "--url",
        type=servers,
        default=default,
        required=default is None,
        metavar="URL[,URL...]",
        help="of the server, or of several as NAME=URL,NAME=URL: each topic is on one of them, by"
        " its name (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=positive,
        default=int(DEFAULTS["numRetries"]),
        help="tries after the first for a busy or absent server (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def servers(text: str) -> Servers:
    """The servers of a list."""
    try:
        return Servers.parse(text)
    except BadServers as error:
        raise argparse.ArgumentTypeError(str(error)) from None
