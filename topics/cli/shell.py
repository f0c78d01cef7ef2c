"""Shell: what all commands share: the options of every command, the client, output, exit codes.

    @command("ls")
    @click.argument("prefix", default="")
    @pass_shell
    def ls(shell: Shell, prefix: str) -> None:
        with shell.client() as client:
            shell.table(client.topics(prefix), {"name": "NAME", "count": "RECORDS"})

The options stand before or behind the name of a command.
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

PATIENCE_S: Final = 60.0  # of commands that move many records or run for long
SECRET_MAX_BYTES: Final = 64 * 1024  # no head of a request is longer


class Mistake(click.ClickException):
    """An argument, a field or a file that is wrong."""

    exit_code = ExitCode.USAGE


class Failed(click.ClickException):
    """What a command ends with: one line, and for programs its ``code``."""

    def __init__(self, message: str, code: str, end: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code, self.end = code, end


@dataclass
class Shell:
    """One run of the program. ``timeout``: s to try while a server does not answer."""

    url: str | None = None
    context: str | None = None
    key_file: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    timeout: float | None = None
    is_away: bool = False  # the server, as far as stderr knows

    def client(self, *, is_patient: bool = False) -> Topics:
        """A client of the server. One that is patient goes on after `PATIENCE_S` without it;
        any other fails at the first failure. Raises `TopicsError`.
        """
        from topics.client import Retry, Topics
        from topics.client.settings import read_key

        patience = PATIENCE_S if is_patient else 0.0
        return Topics(
            self.url,
            key=read_key(self.key_file) if self.key_file else None,
            context=self.context,
            timeout=30.0 if self.timeout is None else max(min(30.0, self.timeout), 0.1),
            retry=Retry(deadline=patience if self.timeout is None else self.timeout),
            on_pause=self._on_pause,
        )

    def _on_pause(self, failure: TopicsError, _pause_s: float) -> None:
        if not self.is_away:
            self.say(f"{failure.message}; trying again")
        self.is_away = True

    def back(self) -> None:
        """The server answers. What follows streams calls it with each event."""
        if self.is_away:
            self.is_away = False
            self.say("connected again")

    def say(self, text: str) -> None:
        """Tell people something, on stderr."""
        if not self.is_quiet:
            _talk(f"topics: {text}")

    def emit(self, value: Any) -> None:
        """Write a value as one line of JSON. Structs have the API's names."""
        import msgspec

        click.echo(msgspec.json.encode(value))

    def done(self, value: Any, text: str) -> None:
        """Tell what was done: an object with ``--json``, else words on stderr."""
        if self.is_json:
            self.emit(value)
        else:
            self.say(text)

    def confirm(self, question: str, is_sure: bool) -> None:
        """Ask on a terminal unless ``--yes`` was given. Raise if the user does not confirm."""
        if is_sure:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Confirm with --yes, because stdin is no terminal.")
        if not click.confirm(question, err=True):
            raise click.ClickException("nothing was changed")

    def table(
        self,
        rows: Iterable[Any],
        columns: Mapping[str, str],
        show: Mapping[str, Callable[[Any], str]] | None = None,
        empty: str = "",
    ) -> None:
        """Write ``rows`` (structs or mappings) as a table, or with ``--json`` each as one line.

        ``columns``: a field and its title; ``show``: how values of a field are written;
        ``empty``: what is told on stderr when there are no rows.
        """
        rows = [*rows]
        if not rows and empty:
            self.say(empty)
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
        """Print why a command ends, and return its exit code.

        ``interrupted`` is the exit code of an interrupt.
        """
        match error:
            case click.exceptions.Exit():
                return ExitCode(error.exit_code)
            case KeyboardInterrupt() | click.Abort():
                self._tell("interrupted", "interrupted")
                return interrupted
            case Failed():
                self._tell(error.code, error.message)
                return error.end
            case click.ClickException():
                if self.is_json or not isinstance(error, click.UsageError):
                    code = "usage" if error.exit_code == ExitCode.USAGE else "failed"
                    self._tell(code, error.format_message())
                else:
                    error.show()
                return ExitCode(error.exit_code)
            case OSError():  # a read of a damaged disk, or a write to stdout, names no file
                place = "" if error.filename is None else f"{error.filename}: "
                self._tell("file", f"{place}{error.strerror or error}")
                return ExitCode.FAILED
            case UnicodeEncodeError():  # an argument that is no file's name
                self._tell("usage", f"not UTF-8: {error.object!r}")
                return ExitCode.USAGE
            case _:
                return self._refused(error)

    def _refused(self, error: BaseException) -> ExitCode:
        """Tell what the client has raised. Raises any other error."""
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
                    hint = "(TOPICS_API_KEY, --key-file or a context has the key)"
                    message = f"{error.message} {hint}"
            case errors.ConnectionLost():
                end = ExitCode.UNREACHABLE
                message = f"no answer from {error.message} (topics serve starts a server)"
            case errors.Unavailable():
                end = ExitCode.UNREACHABLE
        self._tell(error.code, message, status=error.status, detail=error.detail)
        return end

    def _tell(self, code: str, message: str, **fields: Any) -> None:
        if self.is_json:
            import msgspec

            told = {"error": {"code": code, "message": message, **fields}}
            _talk(msgspec.json.encode(told))
        else:
            _talk(f"topics: {message}")


def _talk(line: str | bytes) -> None:
    """Write a line on stderr; that nobody reads it ends no command."""
    with suppress(OSError):
        click.echo(line, err=True)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the nearest name, or all names, as the end of an error message."""
    from difflib import get_close_matches

    near = get_close_matches(name, known := [*names], 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f" (known: {', '.join(known) or 'none'})"


def has_colours() -> bool:
    """Return whether text on the terminal may have colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and not is_dumb()


def is_dumb() -> bool:
    """Return whether the terminal only shows plain lines."""
    return os.environ.get("TERM") == "dumb"


def aligned(rows: list[list[str]]) -> list[str]:
    """Return lines in which the cells of each column start at the same position."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def write_table(titles: list[str], rows: list[list[str]]) -> None:
    """Write columns: as wide as the terminal allows, or in full to a pipe. On a terminal the widest
    columns, which are names and data, are shortened first.
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
    """What is typed and not shown, or stdin without the end of its line."""
    if sys.stdin.isatty():
        from getpass import getpass

        try:
            return getpass(prompt).encode("utf-8", "surrogateescape")
        except EOFError:
            return b""
    return sys.stdin.buffer.read(SECRET_MAX_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def context_names(_context: object, _parameter: object, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with ``incomplete``, for the completion of shells."""
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
        help="A server by its name (topics context).",
    ),
    _global("--key-file", metavar="FILE", help="A file with the API key (TOPICS_API_KEY)."),
    _global("--json", "is_json", is_flag=True, help="Write JSON, one object a line."),
    _global("-q", "--quiet", "is_quiet", is_flag=True, help="Write nothing on stderr but errors."),
    _global(
        "--timeout",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Try for so long while the server does not answer (0, or 60 where many records move).",
    ),
]


_HIDDEN: Final = [copy(option) for option in GLOBALS]
for _option in _HIDDEN:
    _option.hidden = True


class Command(click.Command):
    """A command that takes the options of every command, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.epilog = self.epilog or "Options of every command, and exit codes: topics --help."

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Its own first; they go before those of every command."""
        own = super().get_params(context)
        taken = {name for parameter in own for name in parameter.opts}
        return [*own, *(option for option in _HIDDEN if not taken & {*option.opts})]


class Group(click.Group):
    """Commands with one name before theirs."""

    command_class = Command


def command(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """`click.command`, with the options of every command."""
    return click.command(name, cls=Command, **options)


def group(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """`click.group`, likewise."""
    return click.group(name, cls=Group, **options)


pass_shell = click.make_pass_decorator(Shell, ensure=True)
