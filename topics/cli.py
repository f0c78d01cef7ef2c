"""The command ``topics``. Imports are local: ``topics --help`` answers before a server could have been loaded."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from topics import __version__

if TYPE_CHECKING:
    from topics.boot import Boot

USAGE_ERROR = 2
EPILOG = "Settings are TOPICS_* variables; 'topics serve --print-config' lists them with the values that would be used."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2: wrong arguments or settings)."""
    arguments = _parser().parse_args(argv)
    return _serve(arguments, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="topics", description="A persistent event engine for one machine, with a JSON-first HTTP API.", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=f"topics {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="run the server", description="Run the server.", epilog=EPILOG)
    serve.add_argument("--host", metavar="ADDRESS", help="where to listen (TOPICS_HOST, 127.0.0.1)")
    serve.add_argument("--port", metavar="PORT", help="on which port (TOPICS_PORT, 4000); 0 takes a free one")
    serve.add_argument("--data-dir", metavar="DIR", help="where the data is kept (TOPICS_DATA_DIR, ./topics-data)")
    serve.add_argument("--print-config", action="store_true", help="print the settings that would be used, and exit")
    return parser


def _serve(arguments: argparse.Namespace, environ: MutableMapping[str, str]) -> int:
    from topics import boot
    from topics.config import ConfigError

    for flag in ("host", "port", "data_dir"):
        if (value := getattr(arguments, flag)) is not None:
            environ[f"TOPICS_{flag.upper()}"] = value
    try:
        start = boot.read(environ)
    except ConfigError as error:
        sys.stderr.write("topics: these settings are wrong:\n" + "".join(f"  {problem}\n" for problem in error.problems))
        return USAGE_ERROR
    if arguments.print_config:
        _print_config(start)
        return 0
    return _run(start, environ)


def _print_config(start: Boot) -> None:
    keys = len(start.access.principals)
    lines = [*start.settings.lines(), f"# keys: {keys}" if keys else "# keys: none, everyone may do everything"]
    lines += [f"# {line}" for line in _unknown_lines(start)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _unknown_lines(start: Boot) -> list[str]:
    return [f"{name} is not a setting" + (f"; did you mean {nearest}?" if nearest else "") for name, nearest in start.unknown]


def _run(start: Boot, environ: MutableMapping[str, str]) -> int:
    import structlog

    import supervisor
    from topics import logs
    from topics.notify import Notifier

    logs.configure("supervisor", start.settings.log_level)
    for line in _unknown_lines(start):
        structlog.get_logger().warning(line)
    return supervisor.serve(start.settings, start.access, Notifier.from_environment(environ, os.getpid()))
