"""Forking of child processes, and the signals and resource limits of a process.

A child never outlives its parent, because the kernel kills it when the parent dies. A child never
returns into the parent's code: it always ends with ``os._exit``.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

import structlog
from setproctitle import setproctitle

from topics.errors import ExitCode
from topics.process import logs

MALLOC_KEPT_BYTES = 16 << 20  # size of the largest freed block that malloc keeps
# Maximum limit for open files that is set. A higher limit has no benefit, and it slows down
# programs that close every possible descriptor.
FILES_MAX = 1 << 20

# Constants of prctl(2), mallopt(3) and sigset_t in glibc, which Python does not export.
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SIGSET_BYTES = 128
_libc = ctypes.CDLL(None, use_errno=True)


def fork(name: str, main: Callable[[], None], *, log_level: str = "info") -> int:
    """Fork a child process that runs ``main``, and return its pid.

    The process title of the child is ``topics: NAME``. The calling process must have no threads.
    The exit code of the child is DONE when ``main`` returns, or the code of a ``SystemExit``. After
    any other exception, also in a thread, the child logs the exception and exits with FAILED.
    Raises ``OSError`` if the system cannot create another process.
    """
    parent = os.getpid()
    # Flush the streams. Otherwise the child would inherit the buffered text and write it again.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    pid = os.fork()
    if pid == 0:
        _run_child(name, main, parent, log_level)
    return pid


def _run_child(name: str, main: Callable[[], None], parent: int, log_level: str) -> NoReturn:
    exit_code: int = ExitCode.FAILED
    try:
        exit_with_parent(parent)
        logs.configure(name, log_level)
        threading.excepthook = partial(_exit_with_thread, threading.excepthook)
        setproctitle(f"topics: {name}")
        faulthandler.enable(file=logs.crash_descriptor())
        keep_memory()
        _reset_signals()
        main()
        exit_code = ExitCode.DONE
    except SystemExit as leaving:
        if leaving.code is None:
            exit_code = ExitCode.DONE
        elif isinstance(leaving.code, int):
            exit_code = leaving.code
    except BaseException:  # This is the outermost frame, so no other code logs the exception.
        structlog.get_logger().exception("process failed")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(exit_code)


def _exit_with_thread(
    report: Callable[[threading.ExceptHookArgs], object], failure: threading.ExceptHookArgs
) -> NoReturn:
    """Report the exception of a thread and end the process.

    Otherwise the process would wait forever for the result of the dead thread.
    """
    report(failure)
    os._exit(ExitCode.FAILED)


def keep_memory() -> None:
    """Configure malloc to keep freed blocks of up to MALLOC_KEPT_BYTES for later requests.

    By default, malloc returns the memory of each long body to the kernel. This is slow, because
    the kernel needs more time to provide a new page than the process needs to copy data into it.
    If the C library is not glibc, this function has no effect.
    """
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_M_MMAP_THRESHOLD, MALLOC_KEPT_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2 * MALLOC_KEPT_BYTES)


def raise_file_limit() -> tuple[int, int]:
    """Raise the soft limit for open files to the hard limit, but no higher than FILES_MAX.

    Returns the soft limit before and after the change. The limit applies to this process and its
    children. Each client connection needs a descriptor, and the default soft limit is often 1,024.
    If the limit cannot be raised, for example because of a system call filter, it stays unchanged;
    the front derives its maximum number of connections from it.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if before == resource.RLIM_INFINITY or before >= wanted:
        return before, before
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return before, before
    return before, wanted


def exit_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent, the process ``parent``, dies.

    If the parent is already dead, this process exits immediately. Raises ``OSError`` if the kernel
    refuses the request.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call to prctl. In that case, this process has a different
    # parent.
    if os.getppid() != parent:
        os._exit(ExitCode.FAILED)


def forbid_dumps() -> None:
    """Disable core dumps and access by debuggers for this process and its children.

    The memory contains API keys, because they are part of request heads. Raises ``OSError`` if the
    kernel refuses the request.
    """
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def _reset_signals() -> None:
    """Restore the default actions of signals, ignore SIGINT and SIGHUP, and unblock all signals.

    The terminal sends Ctrl-C and hang-ups to all processes of the group. Only the parent handles
    them. SIGPIPE remains ignored, so that a write to a closed pipe or socket raises an exception.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wait_for_signal(numbers: Iterable[signal.Signals], seconds: float) -> signal.Signals | None:
    """Wait for one of the signals ``numbers`` and return it, or None after ``seconds``.

    The caller must have blocked these signals. This function calls the C library, because Python's
    `signal.sigtimedwait` returns a signal that was never sent if the process was stopped (Ctrl-Z)
    for longer than the timeout.
    """
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    _libc.sigemptyset(wanted)
    for number in numbers:
        _libc.sigaddset(wanted, int(number))
    whole = int(seconds)
    found = _libc.sigtimedwait(
        wanted, None, (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
    )
    return signal.Signals(found) if found > 0 else None


def on_sigterm(act: Callable[[], object]) -> None:
    """Call ``act`` in the running Trio loop when this process receives SIGTERM.

    Before this call SIGTERM ends the process immediately, so the signal is never lost. After the
    loop has ended, SIGTERM has no effect, so that it does not interrupt the rest of the shutdown.
    """
    import trio  # The supervisor imports this module too, and it must not load Trio.

    token = trio.lowlevel.current_trio_token()

    def received(_number: int, _frame: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(act)

    signal.signal(signal.SIGTERM, received)


def describe_exit(wait_status: int) -> dict[str, int | str]:
    """Return the exit code or the signal that ended a process, as fields of a log line."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return {"exit_code": code}
    try:
        name = signal.Signals(-code).name
    except ValueError:  # The real-time signals between the first and the last have no names.
        name = f"SIG{-code}"
    return {"signal": name}
