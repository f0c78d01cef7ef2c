"""The command ``topics``. Imports are local: ``topics --help`` answers before a server could have
been loaded.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topics import __version__

if TYPE_CHECKING:
    from topics.process.boot import Boot

FAILED = 1
USAGE_ERROR = 2
DAMAGED = 3
STATUSES = "Exit status: 0 done, 1 failed, 2 wrong arguments, path or settings, 3 damaged data."
EPILOG = "Settings are TOPICS_* variables; 'topics serve --print-config' lists them with the values that would be used."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 2 wrong arguments, paths or settings, 3 damaged data."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not UTF-8 is shown with escapes
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="topics",
        description="A persistent event engine for one machine, with a JSON-first HTTP API.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"topics {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve", help="run the server", description="Run the server.", epilog=EPILOG
    )
    serve.add_argument("--host", metavar="ADDRESS", help="where to listen (TOPICS_HOST, 127.0.0.1)")
    serve.add_argument(
        "--port", metavar="PORT", help="on which port (TOPICS_PORT, 4000); 0 takes a free one"
    )
    serve.add_argument(
        "--data-dir", metavar="DIR", help="where the data is kept (TOPICS_DATA_DIR, ./topics-data)"
    )
    serve.add_argument(
        "--print-config",
        action="store_true",
        help="print the settings that would be used, and exit",
    )
    serve.set_defaults(run=lambda arguments: _serve(arguments, os.environ))
    verify = commands.add_parser(
        "verify",
        help="look for damage in a data directory",
        description="Read every byte of a data directory that no server has, and look for damage.",
        epilog=STATUSES,
    )
    verify.add_argument("directory", metavar="DIR", type=_path)
    verify.set_defaults(run=_verify)
    inspect = commands.add_parser(
        "inspect",
        help="show what a data file holds",
        description="Show what a file of a data directory holds.",
        epilog=STATUSES,
    )
    inspect.add_argument("file", metavar="FILE", type=_path)
    inspect.set_defaults(run=_inspect)
    return parser


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


def _serve(arguments: argparse.Namespace, environ: MutableMapping[str, str]) -> int:
    from topics.config import ConfigError
    from topics.process import boot

    for flag in ("host", "port", "data_dir"):
        if (value := getattr(arguments, flag)) is not None:
            environ[f"TOPICS_{flag.upper()}"] = value
    try:
        start = boot.read(environ)
    except ConfigError as error:
        sys.stderr.write(
            "topics: these settings are wrong:\n"
            + "".join(f"  {problem}\n" for problem in error.problems)
        )
        return USAGE_ERROR
    if arguments.print_config:
        _print_config(start)
        return 0
    from topics.storage.data_dir import NotADataDirectory, check_place

    try:
        check_place(start.settings.data_dir)
    except NotADataDirectory as error:
        return _wrong(f"{error} (TOPICS_DATA_DIR={start.settings.data_dir})")
    except OSError as error:
        return _cannot_read(error)
    return _run(start, environ)


def _verify(arguments: argparse.Namespace) -> int:
    from topics.storage.data_dir import (
        DataDirectoryDamaged,
        DataDirectoryInUse,
        NotADataDirectory,
        held_for_reading,
    )
    from topics.storage.verify.directory import verify_directory
    from topics.storage.verify.finding import Finding

    files = findings = 0
    try:
        with held_for_reading(arguments.directory) as shards:
            for found in verify_directory(arguments.directory, shards):
                if isinstance(found, Finding):
                    findings += 1
                    sys.stdout.write(f"{found}\n")
                else:
                    files += 1
    except DataDirectoryInUse as error:
        sys.stderr.write(f"topics: {error}; stop it first, or verify a copy\n")
        return FAILED
    except NotADataDirectory as error:
        return _wrong(str(error))
    except DataDirectoryDamaged as error:
        sys.stderr.write(f"topics: {error}\n")
        return DAMAGED
    except OSError as error:
        return _cannot_read(error)
    sys.stdout.write(f"{files} files, " + (f"{findings} findings\n" if findings else "no damage\n"))
    return DAMAGED if findings else 0


def _inspect(arguments: argparse.Namespace) -> int:
    from topics.storage.inspect import ForeignFile, describe

    try:
        for line in describe(arguments.file):
            sys.stdout.write(f"{line}\n")
    except ForeignFile as error:
        return _wrong(str(error))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _wrong(f"{arguments.file}: {error.strerror}")
    except OSError as error:
        return _cannot_read(error)
    return 0


def _cannot_read(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    sys.stderr.write(f"topics: {error.filename}: {error.strerror}\n")
    return FAILED


def _wrong(message: str) -> int:
    sys.stderr.write(f"topics: {message}\n")
    return USAGE_ERROR


def _print_config(start: Boot) -> None:
    keys = len(start.access.principals)
    lines = start.settings.lines()
    lines += [f"# {name} has no effect in this version" for name in start.settings.idle()]
    lines += [f"# keys: {keys}" if keys else "# keys: none, everyone may do everything"]
    lines += [f"# {line}" for line in _unknown_lines(start)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _unknown_lines(start: Boot) -> list[str]:
    return [
        f"{name} is not a setting" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in start.unknown
    ]


def _run(start: Boot, environ: MutableMapping[str, str]) -> int:
    import structlog

    from topics.process import logs, supervisor
    from topics.process.notify import Notifier

    logs.configure("supervisor", start.settings.log_level)
    for line in _unknown_lines(start):
        structlog.get_logger().warning(line)
    if idle := start.settings.idle():
        structlog.get_logger().warning("settings without effect in this version", variables=idle)
    return supervisor.serve(
        start.settings, start.access, Notifier.from_environment(environ, os.getpid())
    )
