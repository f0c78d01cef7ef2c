"""The command line ``topics-spark JOB ...``: one subcommand for each job.

Imports are local, so that ``topics-spark --help`` loads neither PySpark nor pyarrow. Each job ends
with an `ExitCode`. An expected error is one line on stderr, without a traceback.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from topics.errors import ExitCode
from topics.formats.api.surrogates import has_surrogate
from topics.spark.client.http import RequestError
from topics.spark.job_errors import JobError, UsageError
from topics.spark.source.connection import BadOption, ServerError

# Each job is a module in this package that defines `add` and `run`.
JOBS = ("archive", "backfill", "compact", "replay")
# The exit code for each error code (§0.5), as in `topics.cli`.
EXIT_CODES = {
    "unauthorized": ExitCode.REFUSED,
    "forbidden": ExitCode.REFUSED,
    "topic_not_found": ExitCode.NOT_FOUND,
    "unreachable": ExitCode.UNREACHABLE,
    "not_ready": ExitCode.UNREACHABLE,
    "shutting_down": ExitCode.UNREACHABLE,
}
_CODE = re.compile(rf"(?:\d{{3}}|no \w+|\":) ({'|'.join(EXIT_CODES)}): ")


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Run one job from the command line."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        build = parser()
        options = build.parse_args(given)
        if broken := next(filter(has_surrogate, given), None):
            build.error(f"the argument {broken!r} is not UTF-8")
        outcome = job(options.job).run(options)
    except (BadOption, UsageError) as error:
        return _fail(str(error), ExitCode.USAGE)
    except (RequestError, ServerError, JobError) as error:
        return _fail(str(error), exit_code(str(error)))
    except ModuleNotFoundError as missing:
        return _fail(_not_installed(missing))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the job again, it continues where it stopped\n")
        return ExitCode.INTERRUPTED
    sys.stdout.write(f"{outcome.text()}\n")
    return ExitCode.DONE if outcome.agrees else ExitCode.FAILED


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    build = argparse.ArgumentParser(
        prog="topics-spark",
        description="Jobs between files and topics. 'topics-spark JOB --help' is the manual of a"
        " job.",
        epilog=f"Environment: TOPICS_URL, TOPICS_API_KEY. {ExitCode.summary()} A job fails if a"
        " topic or an archive has fewer records than it must have. Additional records in a topic"
        " come from other writers, and are reported.",
    )
    commands = build.add_subparsers(dest="job", metavar="JOB", required=True)
    for name in JOBS:
        job(name).add(commands)
    return build


def job(name: str) -> ModuleType:
    """Return the module of a job."""
    return import_module(f"topics.spark.jobs.{name}")


def exit_code(line: str) -> ExitCode:
    """Return the exit code for a failed request. The error code is taken from the text, because the
    error of a task is only available as text.
    """
    found = _CODE.search(line)
    return EXIT_CODES[found.group(1)] if found else ExitCode.FAILED


def _not_installed(missing: ModuleNotFoundError) -> str:
    if missing.name is None or missing.name.startswith("topics"):
        raise missing
    return f"{missing.name} is not installed: pip install 'topics-engine[spark]'"


def _fail(line: str, code: ExitCode = ExitCode.FAILED) -> ExitCode:
    sys.stderr.write(f"error: {line}\n")
    return code
