"""Shell: the parts that all commands share: global options, the client, output, exit codes.

    @command("ls")
    @click.argument("prefix", default="")
    @pass_shell
    def ls(shell: Shell, prefix: str) -> None:
        with shell.client() as client:
            shell.table(client.topics(prefix), {"name": "NAME", "count": "RECORDS"})

Global options may be before or after the name of a command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from topics.cli.units import printable
from topics.errors import ExitCode

if TYPE_CHECKING:
    from topics.client import Topics, TopicsError

SECRET_MAX_BYTES: Final = 64 * 1024  # the limit for a request's header


class InvalidInput(click.ClickException):
    """An invalid argument, field or file."""

    exit_code = ExitCode.USAGE


class Failed(click.ClickException):
    """A failure of a command: one line for users, and a ``code`` for programs."""

    def __init__(self, message: str, code: str, end: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code, self.end = code, end


@dataclass
class Shell:
    """A run of the program. ``timeout`` is the time in s for which an unavailable server is
    retried.
    """

    url: str | None = None
    context: str | None = None
    key_file: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    timeout: float | None = None
    is_away: bool = False  # an interruption of the server has been reported

    def client(self, *, retries: bool = False) -> Topics:
        """Return a client. With ``retries``, it retries in the same way as `topics.client`: streams
        and workers retry indefinitely. Otherwise, a call raises its first failure. Raise
        `TopicsError`.
        """
        from topics.client import Retry, Topics
        from topics.client.settings import read_key

        retry = None if retries else Retry(deadline=0.0)
        return Topics(
            self.url,
            key=read_key(self.key_file) if self.key_file else None,
            context=self.context,
            timeout=30.0 if self.timeout is None else max(min(30.0, self.timeout), 0.1),
            retry=retry if self.timeout is None else Retry(deadline=self.timeout),
            on_pause=self._on_pause,
        )

    def _on_pause(self, failure: TopicsError, _pause_s: float) -> None:
        if not self.is_away:
            self.print_note(f"{failure.message}; trying again")
        self.is_away = True

    def report_reconnected(self) -> None:
        """Report the end of an interruption. This must be called after each response or event."""
        if self.is_away:
            self.is_away = False
            self.print_note("connected again")

    def print_note(self, text: str) -> None:
        """Write a message for users to stderr."""
        if not self.is_quiet:
            _write_stderr(f"topics: {text}")

    def emit(self, value: Any) -> None:
        """Write a value as one line of JSON. Structs have the API's names."""
        import msgspec

        click.echo(msgspec.json.encode(value))

    def done(self, value: Any, text: str) -> None:
        """Report a completed action: as an object with ``--json``, otherwise as a message."""
        if self.is_json:
            self.emit(value)
        else:
            self.print_note(text)

    def confirm(self, question: str, is_sure: bool) -> None:
        """Ask for confirmation on the terminal unless ``--yes`` was given.

        Raise `InvalidInput` if there is no terminal, or `ClickException` if the user declines.
        """
        if is_sure:
            return
        if not sys.stdin.isatty():
            raise InvalidInput(f"{question} Confirm with --yes, because stdin is not a terminal.")
        if not click.confirm(question, err=True):
            raise click.ClickException("nothing was changed")

    def table(
        self,
        rows: Iterable[Any],
        columns: Mapping[str, str],
        show: Mapping[str, Callable[[Any], str]] | None = None,
        empty: str = "",
    ) -> None:
        """Write ``rows`` (structs or mappings) as a table. With ``--json``, write each row as one
        line.

        ``columns`` contains the titles by field, and ``show`` contains the formats by field.
        ``empty`` is the message if there are no rows.
        """
        rows = [*rows]
        if not rows and empty:
            self.print_note(empty)
            return
        if self.is_json:
            for row in rows:
                self.emit(row)
            return
        written = show or {}

        def cell(row: Any, name: str) -> str:
            value = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
            return "-" if value is None else printable(written.get(name, str)(value))

        write_table([*columns.values()], [[cell(row, name) for name in columns] for row in rows])

    def failed(
        self, error: BaseException, interrupted: ExitCode = ExitCode.INTERRUPTED
    ) -> ExitCode:
        """Report an error, and return the exit code. ``interrupted`` is the exit code for an
        interrupt.
        """
        match error:
            case click.exceptions.Exit():
                return ExitCode(error.exit_code)
            case KeyboardInterrupt() | click.Abort():
                self._report("interrupted", "interrupted")
                return interrupted
            case Failed():
                self._report(error.code, error.message)
                return error.end
            case click.ClickException():
                if self.is_json or not isinstance(error, click.UsageError):
                    code = "usage" if error.exit_code == ExitCode.USAGE else "failed"
                    self._report(code, error.format_message())
                else:
                    error.show()
                return ExitCode(error.exit_code)
            case OSError():  # a failed read from a bad disk or write to stdout has no file name
                place = "" if error.filename is None else f"{error.filename}: "
                self._report("file", f"{place}{error.strerror or error}")
                return ExitCode.FAILED
            case UnicodeEncodeError():  # an argument that is not UTF-8
                self._report("usage", f"not UTF-8: {error.object!r}")
                return ExitCode.USAGE
            case _:
                return self._refused(error)

    def _refused(self, error: BaseException) -> ExitCode:
        """Report a client error. Raise any other error again."""
        from topics.client import errors

        if not isinstance(error, errors.TopicsError):
            raise error
        message, end = str(error), ExitCode.FAILED
        match error:
            case errors.Invalid():
                end = ExitCode.USAGE
            case errors.NotFound():
                end = ExitCode.NOT_FOUND
            case errors.Refused():
                end = ExitCode.REFUSED
                if error.status == 401:
                    hint = "(set the key by TOPICS_API_KEY, --key-file or a context)"
                    message = f"{error.message} {hint}"
            case errors.ConnectionLost():
                end = ExitCode.UNREACHABLE
                message = f"no response from {error.message} (topics serve starts a server)"
            case errors.Unavailable():
                end = ExitCode.UNREACHABLE
        self._report(error.code, message, status=error.status, detail=error.detail)
        return end

    def _report(self, code: str, message: str, **fields: Any) -> None:
        if self.is_json:
            import msgspec

            _write_stderr(
                msgspec.json.encode({"error": {"code": code, "message": message, **fields}})
            )
        else:
            _write_stderr(f"topics: {message}")


def _write_stderr(line: str | bytes) -> None:
    """Write a line to stderr. A closed stderr does not stop a command."""
    with suppress(OSError):
        click.echo(line, err=True)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the nearest name, or all names, as the end of an error message."""
    from difflib import get_close_matches

    near = get_close_matches(name, known := [*names], 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f" (known: {', '.join(known) or 'none'})"


def has_colours() -> bool:
    """Return whether text on the terminal may have colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and not is_dumb_terminal()


def is_dumb_terminal() -> bool:
    """Return whether the terminal only shows plain lines."""
    return os.environ.get("TERM") == "dumb"


def aligned(rows: list[list[str]]) -> list[str]:
    """Return lines in which the cells of each column start at the same position."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def write_table(titles: list[str], rows: list[list[str]]) -> None:
    """Write columns. A pipe gets them in full. On a terminal, the columns are shortened to its
    width, starting with the widest ones, which are names and data.
    """
    if not sys.stdout.isatty():
        click.echo("\n".join(aligned([titles, *rows])))
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table(box=None, pad_edge=False, header_style="bold")
    columns = [*zip(titles, *rows, strict=True)]
    space = console.width - 2 * (len(columns) - 1)
    widths = [min(max(map(cell_len, column)), space) for column in columns]
    while sum(widths) > space and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    for title, width in zip(titles, widths, strict=True):
        table.add_column(title, no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def secret(prompt: str) -> bytes:
    """Read a secret from the terminal without echo, or from stdin without its line end."""
    if sys.stdin.isatty():
        from getpass import getpass

        try:
            return getpass(prompt).encode("utf-8", "surrogateescape")
        except EOFError:
            return b""
    return sys.stdin.buffer.read(SECRET_MAX_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def context_names(_context: object, _parameter: object, incomplete: str) -> list[str]:
    """Return the context names that begin with ``incomplete``, for shell completion."""
    from topics.client import TopicsError
    from topics.client.settings import read_contexts

    try:
        return [name for name in sorted(read_contexts().by_name) if name.startswith(incomplete)]
    except (TopicsError, OSError):
        return []


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        setattr(context.ensure_object(Shell), str(parameter.name), value)


def _global(*names: str, **options: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_keep, **options)


GLOBALS: Final[list[click.Option]] = [
    _global("--url", metavar="URL", help="The server (TOPICS_URL, http://127.0.0.1:4000)."),
    _global(
        "-c",
        "--context",
        metavar="NAME",
        shell_complete=context_names,
        help="Use the server of this context (topics context).",
    ),
    _global("--key-file", metavar="FILE", help="A file with the API key (TOPICS_API_KEY)."),
    _global("--json", "is_json", is_flag=True, help="Write JSON, one object per line."),
    _global("-q", "--quiet", "is_quiet", is_flag=True, help="Write only errors to stderr."),
    _global(
        "--timeout",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Retry for this time while the server is unavailable (0; 60 to transfer records).",
    ),
]


_HIDDEN: Final = [copy(option) for option in GLOBALS]
for _option in _HIDDEN:
    _option.hidden = True


class Command(click.Command):
    """A command that also accepts the global options."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.epilog = self.epilog or "Global options and exit codes: topics --help."

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Return its own parameters, then the global options that the command does not redefine."""
        own = super().get_params(context)
        taken = {name for parameter in own for name in parameter.opts}
        return [*own, *(option for option in _HIDDEN if not taken & {*option.opts})]


class Group(click.Group):
    """A group of commands."""

    command_class = Command


def command(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return `click.command` with the global options."""
    return click.command(name, cls=Command, **options)


def group(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """Return `click.group` with the global options."""
    return click.group(name, cls=Group, **options)


pass_shell = click.make_pass_decorator(Shell, ensure=True)
