"""Boot: a server's settings and keys, read once before anything else; all mistakes are reported in
one ``ConfigError``.

Keys come from ``TOPICS_API_KEYS``, from the file that ``TOPICS_API_KEYS_FILE`` names and from
systemd's credential ``topics.api-keys``; a key file may have line ends instead of commas, and lines
that start with ``#``.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from topics.config import API_KEYS, ConfigError, Problem, Settings, unknown_variables
from topics.engine.access import Access

CREDENTIAL = "topics.api-keys"
KEY_FILE_MAX_BYTES = 1024 * 1024
_ANYTHING = re.compile(rb"[^,\s]")
_NO_KEY = re.compile(rb"^[ \t]*#.*$|[\r\n]+", re.MULTILINE)  # in a key file: comments and line ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What was read. ``unknown`` has each variable that starts with TOPICS_ and is no setting, with
    the nearest name of a setting.
    """

    settings: Settings
    access: Access
    unknown: tuple[tuple[str, str | None], ...]


def read(environ: MutableMapping[str, str]) -> Boot:
    """Read and check everything. The secret is removed from ``environ``, and this process keeps no
    copy of it.
    """
    problems: list[Problem] = []
    keys: list[Access] = []
    for variable, text in _key_sources(environ, problems):
        try:
            keys.append(Access.parse(text))
            if variable != API_KEYS and not keys[-1].enabled:
                problems.append(Problem(variable, None, "the file holds no key"))
        except ValueError as error:
            problems.append(Problem(variable, None, str(error)))
    access = _merged(keys, problems)
    keys_are_meant = access.enabled or bool(problems)
    try:
        settings = Settings.from_environment(environ)
    except ConfigError as error:
        settings = error.settings
        problems += error.problems
    if not keys_are_meant:
        _refuse_open_server(settings, problems)
    if problems:
        raise ConfigError(problems, settings)
    return Boot(settings=settings, access=access, unknown=tuple(unknown_variables(environ)))


def _refuse_open_server(settings: Settings, problems: list[Problem]) -> None:
    """§0.2: an event store without keys is never reachable from outside by accident."""
    if not settings.loopback and not settings.allow_insecure_no_auth:
        rule = (
            f"is not loopback and no keys are configured; set {API_KEYS}, or"
            " TOPICS_ALLOW_INSECURE_NO_AUTH=1 to serve anyone"
        )
        problems.append(Problem("TOPICS_HOST", settings.host, rule))


def _merged(keys: list[Access], problems: list[Problem]) -> Access:
    try:
        return Access(principal for access in keys for principal in access.principals)
    except ValueError as error:
        problems.append(Problem(API_KEYS, None, f"{error} (together with the key files)"))
        return Access()


def _key_sources(
    environ: MutableMapping[str, str], problems: list[Problem]
) -> list[tuple[str, bytearray]]:
    """The name and the text of every source of keys; a file is read once."""
    found = []
    if API_KEYS in environ:
        found.append((API_KEYS, _take(environ, API_KEYS)))
    files: dict[Path, str] = {}
    if named := environ.get("TOPICS_API_KEYS_FILE", "").strip():
        files[Path(named).absolute()] = "TOPICS_API_KEYS_FILE"
    if (directory := environ.get("CREDENTIALS_DIRECTORY")) and (
        credential := Path(directory, CREDENTIAL)
    ).exists():
        files.setdefault(credential.absolute(), f"$CREDENTIALS_DIRECTORY/{CREDENTIAL}")
    for path, variable in files.items():
        try:
            found.append((variable, _read_keys(path)))
        except (OSError, ValueError) as error:
            problems.append(
                Problem(
                    variable,
                    str(path),
                    f"cannot be used: {getattr(error, 'strerror', None) or error}",
                )
            )
    return found


def _read_keys(path: Path) -> bytearray:
    """A key file as comma-separated entries."""
    with path.open("rb", buffering=0) as file:
        text = bytearray(KEY_FILE_MAX_BYTES + 1)
        length = file.readinto(text) or 0
    if length > KEY_FILE_MAX_BYTES:
        raise ValueError(f"it is longer than {KEY_FILE_MAX_BYTES} bytes")
    del text[length:]
    # In place, so that there is never a second copy of a secret.
    for start, end in [found.span() for found in _NO_KEY.finditer(text)]:
        text[start:end] = b"," * (end - start)
    return text if _ANYTHING.search(text) else bytearray()


def _take(environ: MutableMapping[str, str], name: str) -> bytearray:
    """Take a secret out of the environment and overwrite it, in /proc/PID/environ, too."""
    if environ is not os.environ:
        return bytearray(environ.pop(name), "utf-8", "surrogateescape")
    value = os.environb[name.encode()]
    text = bytearray(value)
    libc = ctypes.CDLL(None)
    libc.getenv.restype, libc.strlen.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    if address := libc.getenv(name.encode()):
        ctypes.memset(address, 0, libc.strlen(address))
    del os.environb[name.encode()]
    if sys.implementation.name == "cpython":  # the bytes object that only os.environ held
        ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
    return text
