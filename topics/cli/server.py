"""Commands that use a data directory or a key file: serve, verify, inspect, repair, restore, keys.

The server packages are imported when a command runs, so that its help is shown without delay.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topics.cli import units
from topics.cli.shell import Failed, InvalidInput, Shell, command, group, pass_shell, secret
from topics.errors import ExitCode
from topics.imports import gc_frozen

if TYPE_CHECKING:
    from topics.process.boot import Boot


def _path(value: str) -> Path:
    if not value:
        raise click.BadParameter("must not be empty")
    return Path(value)


@command("serve")
@click.option(
    "--host", metavar="ADDRESS", help="The address to listen on (TOPICS_HOST, 127.0.0.1)."
)
@click.option("--port", metavar="PORT", help="The port (TOPICS_PORT, 4000); 0 selects a free one.")
@click.option(
    "--data-dir", metavar="DIR", help="The data directory (TOPICS_DATA_DIR, ./topics-data)."
)
@click.option("--print-config", is_flag=True, help="Print the effective settings, and exit.")
def serve(host: str | None, port: str | None, data_dir: str | None, print_config: bool) -> ExitCode:
    """Run the server.

    The server reads its settings from environment variables, whose names begin with TOPICS_.
    --print-config prints the effective values of all settings.
    """
    with gc_frozen():
        from topics.config import ConfigError
        from topics.process import boot
        from topics.storage.data_dir import NotADataDirectory, check_path

    # Until the supervisor handles these signals, they end the process.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    environ = os.environ
    for name, value in (("HOST", host), ("PORT", port), ("DATA_DIR", data_dir)):
        if value is not None:
            environ[f"TOPICS_{name}"] = value
    try:
        start = boot.read(environ)
    except ConfigError as error:
        problems = "".join(f"\n  {problem}" for problem in error.problems)
        raise InvalidInput(f"invalid settings:{problems}") from None
    if print_config:
        _print_config(start)
        return ExitCode.DONE
    try:
        check_path(start.settings.data_dir)
    except NotADataDirectory as error:
        raise InvalidInput(f"{error} (TOPICS_DATA_DIR={start.settings.data_dir})") from None
    return _run(start, environ)


@command("verify")
@click.argument("directory", metavar="DIR", type=_path)
def verify(directory: Path) -> ExitCode:
    """Check a data directory for damage.

    The command reads every byte of a directory that no server is using. It also lists files and
    folders with foreign names. The server ignores them, so they do not change the exit code.
    """
    return _on_directory(lambda: _verify(directory), "verify")


@command("repair")
@click.argument("directory", metavar="DIR", type=_path)
@click.option("--dry-run", is_flag=True, help="Print what would be lost, but change nothing.")
def repair(directory: Path, dry_run: bool) -> ExitCode:
    """Repair a data directory with a damaged log.

    The server must be stopped. Unreadable records are printed, and reported to readers as lost
    (reason damaged). The damaged file is kept as NAME.damaged. Nothing else changes.
    """
    return _on_directory(lambda: _repair(directory, is_dry=dry_run), "repair")


@command("inspect")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_path)
def inspect(files: tuple[Path, ...]) -> ExitCode:
    """Show the contents of data files."""
    return max(map(_inspect, files))


@command("restore")
@click.argument("source", metavar="FILE|DIR[@GENERATION]")
@click.argument("directory", metavar="DIR", type=_path)
@click.option(
    "--as-new",
    is_flag=True,
    help="Give all topics a new epoch, so that readers start from the beginning.",
)
@click.option("--damaged", is_flag=True, help="Restore files that were damaged before the backup.")
@pass_shell
def restore(shell: Shell, source: str, directory: Path, as_new: bool, damaged: bool) -> None:
    """Create a data directory from a backup.

    \b
    topics backup orders.tar
    topics restore orders.tar topics-data
    topics restore standby@17 topics-data

    DIR must not exist or must be empty. All checksums and the written files are verified before DIR
    is created, so that it is complete or unchanged. FILE may be - for stdin. If the source is a
    directory that topics standby run writes, a generation is restored, by default the newest one.

    A server that is started on DIR continues from the state at the time of the backup. A reader
    with a later position cannot detect that seqs are used again. With --as-new, all topics get a
    new epoch, so readers detect the restore.
    """
    from topics.storage.backup_restore import restore as restore_from

    with restore_errors(source, f"{directory} is unchanged"), _backup(source) as unpack:
        found, findings = restore_from(unpack, directory, as_new=as_new, with_damage=damaged)
    for finding in findings:
        shell.print_note(finding)
    summary = {
        "created_ms": found.created_ms,
        "shards": found.shards,
        "files": len(found.members),
        "bytes": sum(member.size for member in found.members),
    }
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.created_ms / 1000))
    shell.done(summary, f"{directory}: as of {when} UTC, {units.counted(summary['files'], 'file')}")


@contextmanager
def _backup(source: str) -> Iterator[Any]:
    """Yield a backup's tar, or a function that unpacks a generation. Raise `InvalidInput`."""
    from functools import partial

    from topics.storage.standby import Standby

    directory, number = parse_generation(source)
    copy = Standby(directory)
    if copy.generations.is_dir():
        found = copy.newest() if number is None else copy.generation(number)
        if found is None:
            raise InvalidInput(f"{directory} has no intact generation")
        yield partial(copy.unpack, found, link=False)
        return
    if Path(source).is_dir():
        raise InvalidInput(f"{source} is a directory, but not a standby")
    try:
        opened = click.open_file(source, "rb")
    except OSError as error:
        raise InvalidInput(f"{source}: {error.strerror}") from None
    with opened as file:
        yield file


def parse_generation(source: str) -> tuple[Path, int | None]:
    """Split DIR[@GENERATION]. The number is None if ``source`` has none. Raise `InvalidInput`."""
    directory, _, number = source.rpartition("@")
    if Path(source).exists() or not directory:
        return Path(source), None
    if number.isascii() and number.isdigit():
        return Path(directory), int(number)
    if Path(directory).is_dir():
        raise InvalidInput(f"{source}: {number!r} is not the number of a generation")
    return Path(source), None


@contextmanager
def restore_errors(source: str, unchanged: str) -> Iterator[None]:
    """Convert the errors that a restore raises to command errors."""
    from topics.storage.backup_restore import BackupDamaged, CannotRestore, NotABackup
    from topics.storage.disk import Damaged
    from topics.storage.standby import BadStandby

    try:
        yield
    except CannotRestore as error:
        raise InvalidInput(str(error)) from None
    except BadStandby as error:
        raise Failed(f"{error}; {unchanged}", "bad_backup", ExitCode.DAMAGED) from None
    except NotABackup as error:
        text = f"{source} is not a complete backup: {error}; {unchanged}"
        raise Failed(text, "bad_backup", ExitCode.DAMAGED) from None
    except BackupDamaged as error:
        listed = "\n".join(error.findings)
        text = f"{error}:\n{listed}\n{unchanged}; --damaged restores it anyway"
        raise Failed(text, "damaged", ExitCode.DAMAGED) from None
    except Damaged as error:
        raise Failed(f"{error}; {unchanged}", "damaged", ExitCode.DAMAGED) from None


@group("keys")
def keys() -> None:
    """Work with API keys."""


@keys.command("hash")
@click.option("--alias", is_flag=True, help="Also print the name of the key in logs, as a comment.")
def hash_key(alias: bool) -> ExitCode:
    """Print the digest of a secret for a key file.

    The secret is read from stdin or, without echo, from the terminal. In a key file and in
    TOPICS_API_KEYS the digest replaces the secret. Scopes and prefixes may follow it.
    """
    from topics.engine.access import HASHED, Principal, digest_of

    try:
        digest = digest_of(secret("Key: "))
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    sys.stdout.write(f"{HASHED.decode()}{digest.hex()}\n")
    if alias:
        sys.stdout.write(f"# alias {Principal(digest).alias}\n")
    return ExitCode.DONE


@keys.command("check")
@click.argument("file", metavar="FILE", type=_path)
@pass_shell
def check_keys(shell: Shell, file: Path) -> None:
    """Show the permissions of the keys in a key file, or its errors.

    Secrets are never shown. ALIAS is the name of a key in logs.
    """
    from topics.process.keys import check

    try:
        rows, errors = check(file)
    except OSError as error:
        errors = [error.strerror or str(error)]
    if errors:
        raise InvalidInput("\n".join(f"{file}: {each}" for each in errors))
    if not shell.is_json:
        rows = [row | {"prefixes": row["prefixes"] or ("(all names)",)} for row in rows]
    titles = {"line": "LINE", "alias": "ALIAS", "scopes": "SCOPES", "prefixes": "PREFIXES"}
    shell.table(rows, titles, {"scopes": "+".join, "prefixes": "|".join})


def _on_directory(run: Callable[[], ExitCode], name: str) -> ExitCode:
    """Run a command on a data directory that no server is using."""
    from topics.storage.data_dir import DataDirectoryDamaged, DataDirectoryInUse, NotADataDirectory

    try:
        return run()
    except DataDirectoryInUse as error:
        raise click.ClickException(f"{error}; stop it first, or {name} a copy") from None
    except NotADataDirectory as error:
        raise InvalidInput(str(error)) from None
    except DataDirectoryDamaged as error:
        raise Failed(str(error), "damaged", ExitCode.DAMAGED) from None


def _verify(directory: Path) -> ExitCode:
    from topics.storage.data_dir import locked_for_reading
    from topics.storage.disk import DAMAGED
    from topics.storage.file_names import Foreign
    from topics.storage.verify import Finding, verify_directory

    files = findings = foreign = 0
    with locked_for_reading(directory) as shards:
        for found in verify_directory(directory, shards):
            if isinstance(found, Path):
                files += 1
                continue
            findings += isinstance(found, Finding)
            foreign += isinstance(found, Foreign)
            sys.stdout.write(f"{found}\n")
    kept = sum(1 for _ in directory.rglob(f"*{DAMAGED}"))
    parts = [units.counted(files, "file")]
    parts += [units.counted(findings, "finding") if findings else "no damage"]
    parts += [f"{units.counted(kept, 'damaged file')} kept as *{DAMAGED}"] if kept else []
    parts += [units.counted(foreign, "foreign name")] if foreign else []
    sys.stdout.write(f"{', '.join(parts)}\n")
    return ExitCode.DAMAGED if findings else ExitCode.DONE


def _repair(directory: Path, *, is_dry: bool) -> ExitCode:
    from topics.storage.data_dir import locked_for_repair
    from topics.storage.disk import Damaged
    from topics.storage.recovery.repair import repairs

    with locked_for_repair(directory) as shards:
        try:
            needed = repairs(directory, shards)
        except Damaged as error:
            advice = "no repair is possible; restore a backup. Nothing was changed"
            raise Failed(f"{error}\ntopics: {advice}", "damaged", ExitCode.DAMAGED) from None
        for repair in needed:
            sys.stdout.write("".join(f"{line}\n" for line in repair.lines))
        if is_dry and needed:
            sys.stdout.write("nothing was changed because of --dry-run\n")
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
        sys.stderr.write(f"topics: {error}\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        sys.stderr.write(f"topics: {file}: {error.strerror}\n")
    else:
        return ExitCode.DONE
    return ExitCode.USAGE


def _print_config(start: Boot) -> None:
    keys = len(start.access.principals)
    lines = start.settings.lines()
    lines += [f"# keys: {keys}" if keys else "# keys: none, every client may do everything"]
    lines += [f"# {line}" for line in _unknown_lines(start)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _unknown_lines(start: Boot) -> list[str]:
    return [
        f"{name} is not a setting" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in start.unknown
    ]


def _run(start: Boot, environ: MutableMapping[str, str]) -> ExitCode:
    with gc_frozen():
        import structlog

        from topics.process import logs
        from topics.process.notify import Notifier
        from topics.process.serve import serve

    logs.configure("supervisor", start.settings.log_level)
    for name, nearest in start.unknown:
        suggestion = {"suggestion": nearest} if nearest else {}
        structlog.get_logger().warning("setting unknown", name=name, **suggestion)
    notifier = Notifier.from_environment(environ, os.getpid())
    return serve(start, notifier)
