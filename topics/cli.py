"""The command ``topics``: serve, verify, inspect, repair, keys.

Imports are local: ``topics --help`` answers before a server could have been loaded. Every command
ends with an `ExitCode`; a mistake of the caller is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topics import __version__
from topics.errors import ExitCode

if TYPE_CHECKING:
    from topics.process.boot import Boot

SECRET_MAX_BYTES = 64 * 1024  # no head of a request is longer
SETTINGS = (
    "Settings are TOPICS_* variables; 'topics serve --print-config' lists them with the values that"
    " would be used."
)


def main(argv: Sequence[str] | None = None) -> ExitCode:
    """Run the command line."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["serve"]:  # before all that takes time: a hang-up must not end a server
        hold_hang_ups()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not UTF-8 is shown with escapes
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(given)
    run: Callable[[argparse.Namespace], ExitCode] = arguments.run
    try:
        exit_code = run(arguments)
        sys.stdout.flush()
        return exit_code
    except KeyboardInterrupt:
        sys.stderr.write("topics: interrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED


def hold_hang_ups() -> None:
    """Keep a hang-up (SIGHUP) until the supervisor listens, also where it was ignored (``nohup``):
    it does not end this process.
    """
    # Blocked first: a blocked hang-up does not end the process, which is the default action.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="topics",
        description="A persistent event engine for one machine, with a JSON-first HTTP API.",
        epilog=f"{SETTINGS} {ExitCode.sentence()}",
    )
    parser.add_argument("--version", action="version", version=f"topics {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    verify = commands.add_parser(
        "verify",
        help="look for damage in a data directory",
        description="Read every byte of a data directory that no server uses, and look for damage.",
        epilog=ExitCode.sentence(),
    )
    verify.add_argument("directory", metavar="DIR", type=_path)
    verify.set_defaults(run=_verify)
    inspect = commands.add_parser(
        "inspect",
        help="show what a data file holds",
        description="Show what a file of a data directory holds.",
        epilog=ExitCode.sentence(),
    )
    inspect.add_argument("file", metavar="FILE", type=_path)
    inspect.set_defaults(run=_inspect)
    repair = commands.add_parser(
        "repair",
        help="let a data directory start again whose log is damaged",
        description="Let a data directory that no server uses start again: what cannot be read is"
        " told to readers as lost (reason damaged), the damaged file is kept as NAME.damaged, and"
        " all that is lost is printed. Nothing else changes.",
        epilog=ExitCode.sentence(),
    )
    repair.add_argument("directory", metavar="DIR", type=_path)
    repair.add_argument(
        "--dry-run", action="store_true", help="print what would be lost, and change nothing"
    )
    repair.set_defaults(run=_repair)
    _add_keys(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="run the server",
        description="Run the server.",
        epilog=f"{SETTINGS} {ExitCode.sentence()}",
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


def _add_keys(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = commands.add_parser("keys", help="work with API keys", description="API keys.")
    of_keys = keys.add_subparsers(metavar="COMMAND", required=True)
    hashed = of_keys.add_parser(
        "hash",
        help="show what a key file may hold instead of a secret",
        description="Read a secret from stdin, or ask for it on a terminal, and print what a key"
        " file or TOPICS_API_KEYS may hold instead of it. Scopes and prefixes may follow there.",
        epilog=ExitCode.sentence(),
    )
    hashed.add_argument(
        "--alias", action="store_true", help="also print, as a comment, what logs call the key"
    )
    hashed.set_defaults(run=_hash)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


def _serve(arguments: argparse.Namespace, environ: MutableMapping[str, str]) -> ExitCode:
    from topics.config import ConfigError
    from topics.process import boot
    from topics.storage.data_dir import NotADataDirectory, check_place

    for flag in ("host", "port", "data_dir"):
        if (value := getattr(arguments, flag)) is not None:
            environ[f"TOPICS_{flag.upper()}"] = value
    try:
        start = boot.read(environ)
    except ConfigError as error:
        problems = "".join(f"  {problem}\n" for problem in error.problems)
        sys.stderr.write(f"topics: these settings are wrong:\n{problems}")
        return ExitCode.USAGE
    if arguments.print_config:
        _print_config(start)
        return ExitCode.DONE
    try:
        check_place(start.settings.data_dir)
    except NotADataDirectory as error:
        return _wrong(f"{error} (TOPICS_DATA_DIR={start.settings.data_dir})")
    except OSError as error:
        return _cannot_read(error)
    return _run(start, environ)


def _verify(arguments: argparse.Namespace) -> ExitCode:
    return _on_directory(lambda: _look_for_damage(arguments.directory), "verify")


def _repair(arguments: argparse.Namespace) -> ExitCode:
    def repair() -> ExitCode:
        return _make_whole(arguments.directory, is_dry=arguments.dry_run)

    return _on_directory(repair, "repair")


def _on_directory(run: Callable[[], ExitCode], name: str) -> ExitCode:
    """Run a command on a data directory without a server."""
    from topics.storage.data_dir import DataDirectoryDamaged, DataDirectoryInUse, NotADataDirectory

    try:
        return run()
    except DataDirectoryInUse as error:
        sys.stderr.write(f"topics: {error}; stop it first, or {name} a copy\n")
        return ExitCode.FAILED
    except NotADataDirectory as error:
        return _wrong(str(error))
    except DataDirectoryDamaged as error:
        sys.stderr.write(f"topics: {error}\n")
        return ExitCode.DAMAGED
    except OSError as error:
        return _cannot_read(error)


def _look_for_damage(directory: Path) -> ExitCode:
    from topics.storage.data_dir import held_for_reading
    from topics.storage.disk import DAMAGED
    from topics.storage.verify.directory import verify_directory
    from topics.storage.verify.finding import Finding

    files = findings = 0
    with held_for_reading(directory) as shards:
        for found in verify_directory(directory, shards):
            if isinstance(found, Finding):
                findings += 1
                sys.stdout.write(f"{found}\n")
            else:
                files += 1
    kept = sum(1 for _ in directory.rglob(f"*{DAMAGED}"))
    sys.stdout.write(
        f"{files} files, {f'{findings} findings' if findings else 'no damage'}"
        f"{f', {kept} damaged files kept as *{DAMAGED}' if kept else ''}\n"
    )
    return ExitCode.DAMAGED if findings else ExitCode.DONE


def _make_whole(directory: Path, *, is_dry: bool) -> ExitCode:
    from topics.storage.data_dir import held_for_repair
    from topics.storage.disk import Damaged
    from topics.storage.recovery.repair import repairs

    with held_for_repair(directory) as shards:
        try:
            needed = repairs(directory, shards)
        except Damaged as error:
            said = "no repair is possible; restore a backup. Nothing was changed"
            sys.stderr.write(f"topics: {error}\ntopics: {said}\n")
            return ExitCode.DAMAGED
        for repair in needed:
            sys.stdout.write("".join(f"{line}\n" for line in repair.lines))
        if is_dry and needed:
            sys.stdout.write("nothing was changed: a repair without --dry-run does it\n")
            return ExitCode.DAMAGED
        for repair in needed:
            repair.apply()
    sys.stdout.write("repaired\n" if needed else "nothing to repair\n")
    return ExitCode.DONE


def _inspect(arguments: argparse.Namespace) -> ExitCode:
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
    return ExitCode.DONE


def _hash(arguments: argparse.Namespace) -> ExitCode:
    from topics.engine.access import HASHED, Principal, digest_of

    try:
        digest = digest_of(_secret())
    except ValueError as error:
        return _wrong(str(error))
    sys.stdout.write(f"{HASHED.decode()}{digest.hex()}\n")
    if arguments.alias:
        sys.stdout.write(f"# alias {Principal(digest).alias}\n")
    return ExitCode.DONE


def _secret() -> bytes:
    """A secret that is not shown, without the end of its line."""
    if sys.stdin.isatty():
        from getpass import getpass

        try:
            return getpass("Key: ").encode("utf-8", "surrogateescape")
        except EOFError:
            return b""
    return sys.stdin.buffer.read(SECRET_MAX_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def _cannot_read(error: OSError) -> ExitCode:
    if isinstance(error, BrokenPipeError):
        raise error
    sys.stderr.write(f"topics: {error.filename}: {error.strerror}\n")
    return ExitCode.FAILED


def _wrong(message: str) -> ExitCode:
    sys.stderr.write(f"topics: {message}\n")
    return ExitCode.USAGE


def _print_config(start: Boot) -> None:
    keys = len(start.access.principals)
    lines = start.settings.lines()
    lines += [f"# keys: {keys}" if keys else "# keys: none, everyone may do everything"]
    lines += [f"# {line}" for line in _unknown_lines(start)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _unknown_lines(start: Boot) -> list[str]:
    return [
        f"{name} is not a setting" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in start.unknown
    ]


def _run(start: Boot, environ: MutableMapping[str, str]) -> ExitCode:
    import structlog

    from topics.process import logs
    from topics.process.notify import Notifier
    from topics.process.serve import serve

    logs.configure("supervisor", start.settings.log_level)
    for line in _unknown_lines(start):
        structlog.get_logger().warning(line)
    notifier = Notifier.from_environment(environ, os.getpid())
    return serve(start, notifier)
