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

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from topics.cli.units import printable
from topics.errors import ExitCode

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from topics.client import Topics, TopicsError

PATIENCE_S: Final = 60.0  # of commands that move many records or run for long
SECRET_MAX_BYTES: Final = 64 * 1024  # no head of a request is longer


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

    def client(self, *, is_patient: bool = False, node: str | None = None) -> Topics:
        """A client of the server. One that is patient goes on after `PATIENCE_S` without it;
        any other fails at the first failure. Raises `TopicsError`.
        """
        from topics.client import Retry, Topics
        from topics.client.settings import read_key

        patience = self.timeout
        if patience is None:
            patience = PATIENCE_S if is_patient else 0.0
        return Topics(
            self.url,
            key=read_key(self.key_file) if self.key_file else None,
            context=self.context,
            node=node,
            timeout=30.0 if self.timeout is None else max(min(30.0, self.timeout), 0.1),
            retry=Retry(deadline=patience),
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
        """Ask on a terminal, unless ``--yes`` has said so. Raises when the answer is no."""
        if is_sure:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Without a terminal, --yes must say so.")
        if not click.confirm(question, err=True):
            raise click.ClickException("nothing was changed")

    def table(
        self,
        rows: Iterable[Any],
        columns: Mapping[str, str],
        show: Mapping[str, Callable[[Any], str]] | None = None,
    ) -> None:
        """Write ``rows`` (structs or mappings) as a table, or with ``--json`` each as one line.

        ``columns``: a field and its title; ``show``: how values of a field are written.
        """
        if self.is_json:
            for row in rows:
                self.emit(row)
            return
        written = show or {}
        cells = [[_cell(_field(row, name), written.get(name)) for name in columns] for row in rows]
        write_table([*columns.values()], cells)

    def failed(self, error: BaseException) -> ExitCode:
        """Tell why a command ends, and return how."""
        match error:
            case click.exceptions.Exit():
                return ExitCode(error.exit_code)
            case KeyboardInterrupt() | click.Abort():
                self._tell("interrupted", "interrupted")
                return ExitCode.INTERRUPTED
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
            case _ if _is_of_client(error):
                self._tell(error.code, _sentence(error), status=error.status, detail=error.detail)
                return exit_code_of(error)
            case OSError():
                where = "" if error.filename is None else f"{error.filename}: "
                self._tell("file", f"{where}{error.strerror or error}")
                return ExitCode.FAILED
            case UnicodeEncodeError():  # an argument that is no file's name
                self._tell("usage", f"not UTF-8: {error.object!r}")
                return ExitCode.USAGE
            case _:
                raise error

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


def _is_of_client(error: BaseException) -> TypeIs[TopicsError]:
    """Whether it is a `TopicsError`; without an import, which takes longer than most commands."""
    loaded = sys.modules.get("topics.client.errors")
    return loaded is not None and isinstance(error, loaded.TopicsError)


def exit_code_of(error: TopicsError) -> ExitCode:
    """How a command ends that a server refused."""
    from topics.client import errors

    match error:
        case errors.Invalid():
            return ExitCode.USAGE
        case errors.NotFound():
            return ExitCode.NOT_FOUND
        case errors.Refused():
            return ExitCode.REFUSED
        case errors.ConnectionLost() | errors.Unavailable():
            return ExitCode.UNREACHABLE
        case _:
            return ExitCode.FAILED


def _sentence(error: TopicsError) -> str:
    """What went wrong, and what helps where that is known."""
    from topics.client import errors

    match error:
        case errors.ConnectionLost():
            return f"no answer from {error.message} (topics serve starts a server)"
        case errors.Refused(status=401):
            return f"{error.message} (TOPICS_API_KEY, --key-file or a context has the key)"
        case _:
            return str(error)


def _field(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name)


def _cell(value: Any, show: Callable[[Any], str] | None) -> str:
    if value is None:
        return "-"
    return printable(str(value) if show is None else show(value))


def write_table(titles: list[str], rows: list[list[str]]) -> None:
    """Write columns: as wide as the terminal allows, or in full into a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in titles:
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def secret(prompt: str) -> bytes:
    """What is typed and not shown, or stdin without the end of its line."""
    if sys.stdin.isatty():
        from getpass import getpass

        try:
            return getpass(prompt).encode("utf-8", "surrogateescape")
        except EOFError:
            return b""
    return sys.stdin.buffer.read(SECRET_MAX_BYTES).removesuffix(b"\n").removesuffix(b"\r")


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        setattr(context.ensure_object(Shell), str(parameter.name), value)


def _global(*names: str, **options: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_keep, **options)


GLOBALS: Final[list[click.Parameter]] = [
    _global("--url", metavar="URL", help="The server (TOPICS_URL, http://127.0.0.1:4000)."),
    _global("-c", "--context", metavar="NAME", help="A server by its name (topics context)."),
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


def _hidden() -> list[click.Parameter]:
    import copy

    hidden = copy.deepcopy(GLOBALS)
    for option in hidden:
        option.hidden = True  # type: ignore[attr-defined]
    return hidden


_HIDDEN: Final = _hidden()


def command(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """`click.command`, with the options of every command."""
    return click.command(name, cls=Command, **options)


def group(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """`click.group`, likewise."""
    return click.group(name, cls=Group, **options)


pass_shell = click.make_pass_decorator(Shell, ensure=True)
