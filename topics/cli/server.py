"""Commands of the machine that has the data directory: serve, verify, inspect, repair, keys.

The server's packages are imported by the commands themselves: the help is there before they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topics.cli.shell import Shell, command, group, pass_shell, secret
from topics.errors import ExitCode

if TYPE_CHECKING:
    from topics.process.boot import Boot


def _path(_context: click.Context, _parameter: click.Parameter, value: str) -> Path:
    if not value:
        raise click.BadParameter("must not be empty")
    return Path(value)


def _paths(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[Path]:
    return [_path(context, parameter, value) for value in values]


@command("serve")
@click.option("--host", metavar="ADDRESS", help="Where to listen (TOPICS_HOST, 127.0.0.1).")
@click.option("--port", metavar="PORT", help="The port (TOPICS_PORT, 4000); 0 takes a free one.")
@click.option(
    "--data-dir", metavar="DIR", help="Where the data is kept (TOPICS_DATA_DIR, ./topics-data)."
)
@click.option("--print-config", is_flag=True, help="Print the settings that count, and end.")
def serve(host: str | None, port: str | None, data_dir: str | None, print_config: bool) -> ExitCode:
    """Run the server.

    Settings are TOPICS_* variables; --print-config lists them with the values that would be used.
    """
    from topics.config import ConfigError
    from topics.process import boot
    from topics.storage.data_dir import NotADataDirectory, check_place

    environ = os.environ
    for name, value in (("HOST", host), ("PORT", port), ("DATA_DIR", data_dir)):
        if value is not None:
            environ[f"TOPICS_{name}"] = value
    try:
        start = boot.read(environ)
    except ConfigError as error:
        problems = "".join(f"  {problem}\n" for problem in error.problems)
        sys.stderr.write(f"topics: these settings are wrong:\n{problems}")
        return ExitCode.USAGE
    if print_config:
        _print_config(start)
        return ExitCode.DONE
    try:
        check_place(start.settings.data_dir)
    except NotADataDirectory as error:
        return _wrong(f"{error} (TOPICS_DATA_DIR={start.settings.data_dir})")
    except OSError as error:
        return _cannot_read(error)
    return _run(start, environ)


@command("verify")
@click.argument("directory", metavar="DIR", callback=_path)
def verify(directory: Path) -> ExitCode:
    """Look for damage in a data directory.

    Every byte of a directory that no server uses is read.
    """
    return _on_directory(lambda: _look_for_damage(directory), "verify")


@command("repair")
@click.argument("directory", metavar="DIR", callback=_path)
@click.option("--dry-run", is_flag=True, help="Print what would be lost, and change nothing.")
def repair(directory: Path, dry_run: bool) -> ExitCode:
    """Let a data directory start again whose log is damaged.

    No server uses it meanwhile. What cannot be read is told to readers as lost (reason damaged),
    the damaged file is kept as NAME.damaged, and all that is lost is printed. Nothing else changes.
    """
    return _on_directory(lambda: _make_whole(directory, is_dry=dry_run), "repair")


@command("inspect")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, callback=_paths)
def inspect(files: list[Path]) -> ExitCode:
    """Show what data files hold."""
    return max(map(_inspect, files))


@group("keys")
def keys() -> None:
    """Work with API keys."""


@keys.command("hash")
@click.option("--alias", is_flag=True, help="Also print, as a comment, what logs call the key.")
def hash_key(alias: bool) -> ExitCode:
    """Print what a key file may hold instead of a secret.

    The secret is read from stdin, or asked for on a terminal. What is printed stands for it in a
    key file or TOPICS_API_KEYS; scopes and prefixes may follow there.
    """
    from topics.engine.access import HASHED, Principal, digest_of

    try:
        digest = digest_of(secret("Key: "))
    except ValueError as error:
        return _wrong(str(error))
    sys.stdout.write(f"{HASHED.decode()}{digest.hex()}\n")
    if alias:
        sys.stdout.write(f"# alias {Principal(digest).alias}\n")
    return ExitCode.DONE


@keys.command("check")
@click.argument("file", callback=_path)
@pass_shell
def check_keys(shell: Shell, file: Path) -> None:
    """Show what the keys of a key file may do, or its mistakes.

    Secrets are never shown: the alias is what logs call a key.
    """
    from topics.process.keys import check

    try:
        rows, mistakes = check(file)
    except OSError as error:
        mistakes = [error.strerror or str(error)]
    if mistakes:
        raise _Mistakes("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    if not shell.is_json:
        rows = [row | {"prefixes": row["prefixes"] or ("(all names)",)} for row in rows]
    titles = {"line": "LINE", "alias": "ALIAS", "scopes": "SCOPES", "prefixes": "PREFIXES"}
    shell.table(rows, titles, {"scopes": "+".join, "prefixes": "|".join})


class _Mistakes(click.ClickException):
    """What is wrong with a file, a line each."""

    exit_code = ExitCode.USAGE


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
    from topics.storage.verify import Finding, verify_directory

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


def _inspect(file: Path) -> ExitCode:
    from topics.storage.inspect import ForeignFile, describe

    try:
        for line in describe(file):
            sys.stdout.write(f"{line}\n")
    except ForeignFile as error:
        return _wrong(str(error))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _wrong(f"{file}: {error.strerror}")
    except OSError as error:
        return _cannot_read(error)
    return ExitCode.DONE


def _cannot_read(error: OSError) -> ExitCode:
    if error.filename is None:  # of stdout
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
