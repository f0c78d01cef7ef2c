"""Startup configuration: reads the settings and the API keys of a server once, at startup.

All invalid settings and keys are reported together in one ``ConfigError``.
`topics.process.keys` describes the sources of keys.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace

from topics.config import API_KEYS, ConfigError, Problem, Settings, unknown_variables
from topics.engine.access import Access
from topics.process.keys import KeySources, key_files, pop_environment_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The settings and keys of a server.

    ``access`` contains the keys of all ``sources``. ``unknown`` lists each environment variable
    that starts with TOPICS_ but is not a setting, together with the most similar setting name.
    """

    settings: Settings
    access: Access
    sources: KeySources
    unknown: tuple[tuple[str, str | None], ...]


def read(environ: MutableMapping[str, str]) -> Boot:
    """Read and check the settings and the keys. Raises ``ConfigError`` with all problems.

    The variable with the keys is removed from ``environ``, and this process keeps no copy of the
    secrets.
    """
    problems: list[Problem] = []
    access, sources = _read_keys(environ, problems)
    # If a key source is invalid, the operator has configured keys. So do not also report that keys
    # are missing.
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
    unknown = tuple(unknown_variables(environ))
    return Boot(settings=settings, access=access, sources=sources, unknown=unknown)


def _refuse_open_server(settings: Settings, problems: list[Problem]) -> None:
    """Add a problem if a server without keys would listen on a non-loopback address (§0.2).

    The operator must allow this explicitly, so that a server without authentication is never
    exposed to the network by accident.
    """
    if not settings.loopback and not settings.allow_insecure_no_auth:
        rule = (
            f"is not loopback and no keys are configured; set {API_KEYS}, or"
            " TOPICS_ALLOW_INSECURE_NO_AUTH=1 to allow all clients"
        )
        problems.append(Problem("TOPICS_HOST", settings.host, rule))


def _read_keys(
    environ: MutableMapping[str, str], problems: list[Problem]
) -> tuple[Access, KeySources]:
    """Return the keys of all valid sources, and the sources. Add problems to ``problems``.

    If two sources contradict each other, return no keys.
    """
    sources = KeySources(files=tuple(key_files(environ)))
    try:
        sources = replace(sources, fixed=Access.parse(pop_environment_keys(environ)).principals)
    except ValueError as error:
        problems.append(Problem(API_KEYS, None, str(error)))
    found = [*sources.fixed]
    for file in sources.files:
        try:
            found += file.read().principals
        except OSError as error:
            rule = f"cannot be used: {error.strerror or error}"
            problems.append(Problem(file.variable, str(file.path), rule))
        except ValueError as error:
            problems.append(Problem(file.variable, None, str(error)))
    try:
        return Access(found), sources
    except ValueError as error:
        problems.append(Problem(API_KEYS, None, f"{error} (together with the key files)"))
        return Access(), sources
