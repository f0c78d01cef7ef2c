"""Contexts: servers by name, in a file that `topics.client.settings` reads; and completion for
shells.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from topics.cli.shell import Shell, command, group, pass_shell, secret
from topics.client.settings import (
    CONTEXT_NAME,
    Context,
    Contexts,
    checked_key,
    checked_url,
    contexts_file,
    read_contexts,
    read_key,
)


@group("context")
def context() -> None:
    """Keep servers by name, with their keys."""


@context.command("ls")
@pass_shell
def ls(shell: Shell) -> None:
    """List the contexts; * marks the one that counts."""
    current, by_name = read_contexts()
    rows = [
        {
            "is_current": name == current,
            "name": name,
            "url": each.url,
            "key": each.key_file or ("in the file of contexts" if each.key else None),
        }
        for name, each in sorted(by_name.items())
    ]
    empty = "there are no contexts: topics context add NAME URL makes one"
    titles = {"is_current": "", "name": "NAME", "url": "URL", "key": "KEY"}
    shell.table(rows, titles, {"is_current": lambda is_current: "*" if is_current else ""}, empty)


@context.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--key-file", "key_file", metavar="FILE", help="A file with the API key.")
@click.option("--key", "asks_key", is_flag=True, help="Ask for the API key, or read it from stdin.")
@click.option("--use", "uses", is_flag=True, help="Use it from now on.")
@pass_shell
def add(
    shell: Shell, name: str, url: str, key_file: str | None, asks_key: bool, uses: bool
) -> None:
    """Name a server, or change what a name stands for.

    A key that is asked for is kept in the file of contexts, which only you can read.
    """
    if not CONTEXT_NAME.fullmatch(name):
        raise click.BadParameter("a name has letters, digits, - and _", param_hint="NAME")
    if asks_key and key_file:
        raise click.UsageError("--key and --key-file exclude each other")
    key = None
    if asks_key:
        key = checked_key(secret("Key: ").decode("utf-8", "replace"))
    if key_file:
        key_file = str(Path(key_file).expanduser().absolute())
        if not key_file.isprintable():
            raise click.BadParameter("its name cannot be written down", param_hint="--key-file")
        checked_key(read_key(key_file))
    current, by_name = read_contexts()
    known = "changed" if name in by_name else "added"
    by_name[name] = Context(checked_url(url), key, key_file)
    _write(Contexts(name if uses else current, by_name))
    shell.say(f"{name} {known}" + ("" if uses else f"; topics context use {name} makes it count"))


@context.command("use")
@click.argument("name")
@pass_shell
def use(shell: Shell, name: str) -> None:
    """Use a context where neither an option nor TOPICS_URL names a server."""
    contexts = _with(name)
    _write(contexts._replace(current=name))
    shell.say(f"the server is {contexts.by_name[name].url}")
    for variable in ("TOPICS_URL", "TOPICS_CONTEXT"):
        if os.environ.get(variable):
            shell.say(f"{variable} is set, and goes before it")


@context.command("rm")
@click.argument("name")
@pass_shell
def rm(shell: Shell, name: str) -> None:
    """Forget a context, and its key if it is in the file."""
    current, by_name = _with(name)
    del by_name[name]
    _write(Contexts(None if current == name else current, by_name))
    shell.say(f"{name} removed" + ("; no context counts now" if current == name else ""))


@command("completion")
@click.argument("name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(name: str) -> None:
    """Print what completes commands in bash, zsh or fish.

    In ~/.bashrc or ~/.zshrc: eval "$(topics completion bash)", with the name of the shell.
    For fish: topics completion fish > ~/.config/fish/completions/topics.fish
    """
    from click.shell_completion import get_completion_class

    from topics.cli import root

    kind = get_completion_class(name)
    assert kind is not None, "click knows these shells"
    click.echo(kind(root, {}, "topics", "_TOPICS_COMPLETE").source())


def _with(name: str) -> Contexts:
    """All contexts, this one among them."""
    contexts = read_contexts()
    if name not in contexts.by_name:
        known = ", ".join(sorted(contexts.by_name)) or "none"
        raise click.BadParameter(f"there is no context {name!r}; there are {known}")
    return contexts


def _write(contexts: Contexts) -> None:
    """Replace the file in one step, readable by its owner alone."""
    path = Path(os.path.realpath(contexts_file()))  # it may be a link
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(  # its mode is 600
        "w", encoding="utf-8", dir=path.parent, delete=False
    ) as file:
        file.write(_toml(contexts))
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _toml(contexts: Contexts) -> str:
    lines = [] if contexts.current is None else [f"current = {_string(contexts.current)}"]
    for name, each in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{field} = {_string(value)}" for field, value in each._asdict().items() if value]
    return "\n".join(lines).lstrip() + "\n"


def _string(value: str) -> str:
    """A string of JSON is one of TOML, once DEL is escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
