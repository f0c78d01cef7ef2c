"""The command ``topics``: a table of its commands. The module of a command is imported when the
command runs.

    shell.py       shared by all commands: options, the client, output, exit codes
    units.py       times, sizes and counts in the form that users write and read
    completing.py  names that shells complete
    configs.py     fields of topics and routers, and the effect of a change
    loading.py     loads many records into a topic, with idempotency keys for repeated runs
    measure.py     metrics, readiness and a temporary topic, for commands that measure
    server.py      commands on a data directory; it and standby.py import server packages
    dump.py        export and import; each other module is named after its command

Data goes to stdout, messages to stderr. A user error is one line, never a traceback. Every command
returns an `ExitCode`. SIGTERM and SIGHUP stop a command in the same way as Ctrl-C, so that it
removes unfinished files; `serve` and `work` have their own handlers.
"""

from __future__ import annotations

try:
    import io
    import os
    import signal
    import sys
    from collections.abc import Iterator, Sequence
    from contextlib import contextmanager, nullcontext
    from importlib import import_module
    from types import FrameType

    import click

    from topics import __version__
    from topics.cli.shell import GLOBALS, Shell
    from topics.errors import ExitCode
    from topics.imports import without_packages
except KeyboardInterrupt:  # Ctrl-C while the modules are being loaded
    raise SystemExit(130) from None

# The commands by section. Each command has a name, a module and the first line of its help.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Server": {
        "serve": ("server", "Run the server."),
        "verify": ("server", "Check a data directory for damage."),
        "inspect": ("server", "Show the contents of data files."),
        "repair": ("server", "Repair a data directory with a damaged log."),
        "backup": ("backup", "Copy all data of a running server to a file."),
        "restore": ("server", "Create a data directory from a backup."),
        "standby": ("standby", "Keep a copy of a server on another machine."),
        "keys": ("server", "Work with API keys."),
    },
    "Topics": {
        "ls": ("topics", "List topics."),
        "info": ("topics", "Show the state and the config of a topic."),
        "create": ("topics", "Create a topic."),
        "config": ("topics", "Show or change the config of a topic."),
        "rm": ("topics", "Delete topics with all their records."),
        "delete": ("topics", "Delete records from a topic."),
        "apply": ("apply", "Create and change topics and routers as specified in a file."),
    },
    "Records": {
        "append": ("append", "Append records: JSON, lines of text, or CSV."),
        "read": ("read", "Read records from topics."),
        "tail": ("read", "Follow new records."),
        "export": ("dump", "Write topics to a file."),
        "import": ("dump", "Append the records from an export."),
    },
    "Queues, routers, cursors": {
        "queue": ("queues", "Inspect queues, and move dead letters back."),
        "work": ("work", "Run a command for each job in a queue."),
        "router": ("routers", "Manage routers, which copy records from topic to topic."),
        "cursor": ("cursors", "Manage cursors, which store the position of a reader."),
    },
    "Monitor and measure": {
        "top": ("top", "Show the current activity of the server."),
        "ping": ("ping", "Measure the time from append to delivery."),
        "bench": ("bench", "Run a small benchmark."),
        "doctor": ("doctor", "Find problems, and report how to fix them."),
    },
    "This program": {
        "context": ("contexts", "Manage named servers and their keys."),
        "completion": ("contexts", "Print the completion script for bash, zsh or fish."),
    },
}


class Root(click.Group):
    """The command without a subcommand."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return all names in the order of the help."""
        return [*self.commands]

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import the module of a command."""
        for section in COMMANDS.values():
            if name in section:
                if section[name][0] != "server":
                    with without_packages(
                        "trio", "anyio", "h2"
                    ):  # unused by commands; saves 100 ms
                        import_module("httpcore2")
                module = import_module(f"topics.cli.{section[name][0]}")
                found = (each for each in vars(module).values() if isinstance(each, click.Command))
                return next(each for each in found if each.name == name)
        return None

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """List all commands without importing their modules."""
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


root = Root(
    "topics",
    params=GLOBALS,
    # Only the names count: click suggests the nearest one for an unknown command.
    commands=[click.Command(name) for section in COMMANDS.values() for name in section],
    help="A persistent event engine for one machine, with a JSON-first HTTP API.",
    epilog=ExitCode.summary(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
root = click.version_option(__version__, message="%(prog)s %(version)s")(root)


def main(argv: Sequence[str] | None = None) -> ExitCode:
    """Run the command line."""
    given = [*(sys.argv[1:] if argv is None else argv)]
    match given:  # `help` and `version` are accepted as commands, as in many programs
        case ["help", *names]:
            given = [*names, "--help"]
        case ["version"]:
            given = ["--version"]
    is_server = given[:1] == ["serve"]
    if is_server:  # done before any slow step, because SIGHUP must not stop a server
        block_sighup()
    open_streams()
    shell = Shell()
    try:
        if "_TOPICS_COMPLETE" in os.environ:  # a shell requests completions
            import_module("topics.cli.completing")
            root.main(given, prog_name="topics")
        with (
            nullcontext() if is_server else ending_signals(),
            root.make_context("topics", given, obj=shell) as context,
        ):
            code = root.invoke(context)
        sys.stdout.flush()
        return ExitCode.DONE if code is None else ExitCode(code)
    except EndedBySignal as error:
        return shell.failed(error, ExitCode(128 + error.signal))
    except BrokenPipeError:  # the reader of the output has closed the pipe
        return ExitCode.FAILED
    except (Exception, KeyboardInterrupt) as error:
        return shell.failed(error)
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # the command has failed already; Python would flush again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP has interrupted the command."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.signal = signal


@contextmanager
def ending_signals() -> Iterator[None]:
    """Raise `EndedBySignal` in the command when SIGTERM or SIGHUP arrives.

    Raise it again at the end of the block if the command handled it like Ctrl-C. A signal that was
    already ignored (``nohup``) stays ignored. A second signal does not interrupt the clean-up.
    """
    ended: list[EndedBySignal] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if not ended:
            ended.append(EndedBySignal(number))
            raise ended[0]

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, end)
        for number in numbers
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        raise ended[0]


def open_streams() -> None:
    """Replace closed standard streams: stdin and stdout fail when used, stderr discards writes."""
    for name, mode, how in (
        ("stdin", "r", os.O_WRONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_RDWR),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, how), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not UTF-8 is shown with escapes
            stream.reconfigure(errors="backslashreplace")


def block_sighup() -> None:
    """Block SIGHUP until the supervisor installs its handler, even if the signal was ignored
    (``nohup``). In the meantime, the signal does not stop this process.
    """
    # Block the signal before restoring its default action, because this action ends the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
