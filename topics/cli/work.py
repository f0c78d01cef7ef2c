"""The command ``work``: runs a program for each job of a queue.

main thread       claims a job for each free slot
job thread        runs the program; exit code 0 acks the job, any other nacks it
monitor thread    once a second, stops programs whose lease is lost

                 after SIGTERM            after Ctrl-C
claims           stop                     stop
programs         finish                   receive Ctrl-C as well, and SIGTERM after one second
programs' jobs   acked or nacked          acked after exit code 0, otherwise released immediately
exit code        0                        130
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import click

from topics.cli import units
from topics.cli.completing import TOPIC
from topics.cli.shell import Command, Shell, pass_shell
from topics.client import Job, Topics, TopicsError, Worker, calls
from topics.client.values import JobRecord
from topics.errors import ExitCode

MONITOR_S: Final = 1.0
WAIT_S: Final = 0.5  # short, because a signal just before a wait is handled only after the wait
# Maximum time to wait for the end of stderr, which children of the program may keep open.
STDERR_S: Final = 1.0
STDERR_MAX_BYTES: Final = 4096  # length of the end of stderr in which the last line is searched
GRACE_S: Final = 1.0  # time from Ctrl-C to SIGTERM
KILL_S: Final = 5.0  # time from SIGTERM to SIGKILL
# Exit codes of programs that were ended by SIGINT or SIGTERM. They are not failures if this process
# is being stopped as well.
STOPPED: Final = {signed for number in (2, 15) for signed in (-number, 128 + number)}


class Work(Command):
    """A command whose arguments end with the arguments of a program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Require ``--`` before the program, so that its options are not parsed as options of this
        command.
        """
        if not (context.resilient_parsing or {"--", "-h", "--help"} & {*args}):
            raise click.UsageError("the command needs -- before it: work QUEUE -- COMMAND", context)
        return super().parse_args(context, args)


@click.command("work", cls=Work)
@click.argument("queue", type=TOPIC)
@click.option("-j", "concurrency", type=click.IntRange(1, 1000), default=1, help="Concurrent jobs.")
@click.option("--lease", "lease_ms", type=units.Duration(least=1000), default="30s", metavar="TIME",
              help="Release a job if its worker does not respond for this time (30s).")  # fmt: skip
@click.option("--once", is_flag=True, help="Stop after one job.")
@click.option("--drain", is_flag=True, help="Stop when there are no more jobs.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@pass_shell
def work(
    shell: Shell,
    queue: str,
    concurrency: int,
    lease_ms: int,
    once: bool,
    drain: bool,
    command: tuple[str, ...],
) -> ExitCode:
    """Run a command for each job in a queue.

    The command receives the job's data as JSON on stdin, and the environment variables
    TOPICS_TOPIC, TOPICS_SEQ, TOPICS_TAG, TOPICS_DELIVERIES and TOPICS_LAST_ERROR. Exit code 0 acks
    the job. Otherwise the job is retried after 1, 2, 4, ... seconds, with the last line of stderr
    as its last error.

    Leases are extended while commands run. If a lease is lost, its command is stopped (SIGTERM),
    because another worker may have the job. Leases survive a server restart only in queues with
    leases_durable.

    After SIGTERM, running commands finish and no more commands are started. With --once or --drain,
    the exit code is 1 if a command has failed.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command not found: {command[0]}")
    slots, lease_s = 1 if once else concurrency, lease_ms / 1000
    logging.getLogger("topics.client").setLevel(logging.CRITICAL)  # `Shell` reports pauses
    with (
        shell.client(retries=True) as client,
        client.queue(queue).worker(lease=lease_s, drain=drain) as worker,
    ):
        pool = WorkerPool(shell, client, worker, command, slots)
        pool.run(once=once, drain=drain)
    if drain and not pool.begun:
        shell.print_note(f"{queue} has no jobs")
    return ExitCode.FAILED if pool.failed and (once or drain) else ExitCode.DONE


class WorkerPool:
    """The running programs, each with its thread and its job."""

    def __init__(
        self,
        shell: Shell,
        client: Topics,
        worker: Worker,
        command: tuple[str, ...],
        slots: int,
    ) -> None:
        self._shell, self._client, self._worker, self._command = shell, client, worker, command
        # The number of slots that remain free when the next job has started.
        self._slots = threading.Semaphore(slots - 1)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], Job] = {}
        self._is_interrupted, self._is_over = False, threading.Event()
        self._failure: Exception | None = None
        self.begun = self.failed = 0  # number of started jobs, and of nacked jobs

    def run(self, *, once: bool, drain: bool) -> None:
        """Work until the worker stops. Raise `TopicsError` or `OSError`."""
        threading.Thread(target=self._monitor, daemon=True).start()
        try:
            while self._claim(is_single=once) and drain and not once:
                self._join()  # then check again, because programs may append jobs
            self._join()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except TopicsError:
            self._worker.stop()
            self._join()
            raise
        finally:
            self._is_over.set()
        if self._failure is not None:
            raise self._failure

    def _claim(self, *, is_single: bool) -> bool:
        """Start the available jobs, or only one. Return whether a job was started."""
        before = self.begun
        for job in self._worker:
            self._shell.report_reconnected()
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(threading.Thread(target=self._work, args=(job,), daemon=True))
            self._threads[-1].start()
            self.begun += 1
            if is_single:
                break
            while not self._slots.acquire(timeout=WAIT_S):
                pass
        return self.begun > before

    def _join(self, timeout_s: float = math.inf) -> bool:
        """Wait for all jobs, and return whether they have finished."""
        until = monotonic() + timeout_s
        for thread in self._threads:
            while thread.is_alive() and (left_s := until - monotonic()) > 0:
                thread.join(min(left_s, WAIT_S))
        return not any(thread.is_alive() for thread in self._threads)

    def _interrupt(self) -> None:
        """Stop after Ctrl-C. The terminal has also sent the signal to the programs. After a second
        Ctrl-C, kill the programs immediately.
        """
        with self._lock:
            self._is_interrupted = True
        self._worker.stop()
        try:
            if not self._join(GRACE_S):
                self._send(signal.SIGTERM)
                self._join(KILL_S)
        finally:
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._lock:
            for process in self._running:
                process.send_signal(number)

    def _work(self, job: Job) -> None:
        """Run the program for a job, and ack or nack the job."""
        try:
            code, last_line = self._run(job)
            if code == 0 or job.lost:
                is_settled = job.ack()
            elif self._is_interrupted or (code in STOPPED and self._worker.is_stopped(MONITOR_S)):
                self._report(job, "released")
                is_settled = job.nack(delay=0.0)
            else:
                self.failed += 1
                how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
                self._report(job, f"{how}, delivery {job.record.deliveries}")
                is_settled = job.nack(error=last_line or how)
            if not is_settled:
                self._report(job, "the lease was lost, so the job will run again")
        except Exception as failure:
            self._failure = self._failure or failure
            if isinstance(failure, OSError):  # the program was not started
                job.nack(delay=0.0)
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts a claim of the main thread
        finally:
            self._slots.release()

    def _run(self, job: Job) -> tuple[int, str]:
        """Run the program. Return its exit code and the last line of its stderr. Raise `OSError`
        if it cannot be started.
        """
        with tempfile.TemporaryFile() as stdin:  # a pipe would need a thread that writes to it
            stdin.write(bytes(job.record.raw_data) + b"\n")
            stdin.seek(0)
            with self._lock:
                if self._is_interrupted:
                    return -signal.SIGINT, ""
                process = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stderr=subprocess.PIPE,
                    env=os.environ | environment_of(job.record),
                )
                self._running[process] = job
        end = bytearray()
        copy = threading.Thread(target=_copy, args=(process.stderr, end), daemon=True)
        copy.start()
        code = process.wait()
        with self._lock:
            del self._running[process]
        copy.join(STDERR_S)
        return code, end.decode("utf-8", "replace").strip().rpartition("\n")[2].strip()

    def _monitor(self) -> None:
        stopped: set[subprocess.Popen[bytes]] = set()
        while not self._is_over.wait(MONITOR_S):
            with self._lock:
                lost = {process for process, job in self._running.items() if job.lost} - stopped
                for process in lost:
                    self._report(self._running[process], "the lease is lost, stopping the command")
                    process.terminate()
            stopped |= lost
            # The next job would also report the reconnection, but may be claimed much later.
            if self._shell.is_away:
                with suppress(TopicsError):
                    self._client.once(calls.ready())
                    self._shell.report_reconnected()

    def _report(self, job: Job, text: str) -> None:
        self._shell.print_note(f"{job.record.topic}#{job.record.seq}: {text}")


def _copy(stderr: Any, end: bytearray) -> None:
    """Copy a program's stderr to the stderr of this process, and store its end in ``end``."""
    with stderr:
        while data := stderr.read1(65536):
            with suppress(OSError):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
            end[:] = (end + data)[-STDERR_MAX_BYTES:]


def environment_of(record: JobRecord) -> dict[str, str]:
    """Return the environment variables that describe a job to its program."""
    variables = {
        "TOPICS_TOPIC": record.topic,
        "TOPICS_SEQ": str(record.seq),
        "TOPICS_TAG": record.tag or "",
        "TOPICS_DELIVERIES": str(record.deliveries),
        "TOPICS_LAST_ERROR": record.last_error or "",
    }
    return {name: value.replace("\0", " ") for name, value in variables.items()}
