"""What subcommands share: the servers, the types of arguments, and the result of a job."""

from __future__ import annotations

import argparse
import os
from typing import Protocol

from topics.spark.client.http import DEFAULT_URL, Target, mistake_in
from topics.spark.client.servers import BadServers, Server, Servers
from topics.spark.errors import JobError
from topics.spark.producer import MIB
from topics.spark.source.connection import RETRIES, Connection, ServerError


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
    """``--url``, ``--retries`` and ``--quiet``; for ``target_of``."""
    parser.add_argument(
        "--url",
        type=servers,
        default=os.environ.get("TOPICS_URL", DEFAULT_URL),
        metavar="URL[,URL...]",
        help="of the server, or of several as NAME=URL,NAME=URL: each topic is on one of them, by"
        " its name (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=positive,
        default=RETRIES,
        help="tries after the first for a busy or absent server (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def servers(text: str) -> Servers:
    """The servers of a list."""
    try:
        return Servers.parse(text)
    except BadServers as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def target_of(options: argparse.Namespace, topic: str) -> Target:
    """The server that has the topic, or is to have it, with the API key of the environment. Raises
    as `located`.
    """
    connection = Connection(
        servers=options.url,
        api_key=os.environ.get("TOPICS_API_KEY"),
        retries=options.retries,
    )
    return connection.target(located(connection, topic))


def located(connection: Connection, topic: str) -> Server:
    """The server that has the topic, or is to have it. Raises `RequestError`, or `JobError` for a
    server that does not answer or an address that no server has.
    """
    for server in connection.servers.members:
        if mistake := mistake_in(connection.target(server)):
            raise JobError(mistake)
    try:
        return connection.locate(topic)
    except ServerError as error:
        raise JobError(str(error)) from error
