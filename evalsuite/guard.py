"""`python -m evalsuite.guard FOLDER COMMAND...`: run a command, and clean up after it when standard input closes.

Standard input is a pipe whose other end evalsuite holds. However evalsuite ends, killed included, the kernel closes
that end. The guard then ends everything below it, first by SIGTERM to the command's process group, then by SIGKILL,
and removes the private folder.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 15.0
"""Seconds that the command and all it started have to end themselves after SIGTERM, and to be gone after SIGKILL."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def _children() -> list[int]:
    """Return the process ids of this process's children."""
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_all(*, kill: bool) -> bool:
    """Wait `PATIENCE` for every child, adopted ones included; return whether all are gone. `kill` sends SIGKILL."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for child in _children() if kill else ():
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still this child's
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.02)
    return False


def main() -> int:
    """Run the command; return its exit status, or 0 once standard input closed and all it started has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is evalsuite's to handle; the pipe tells the rest
    # A process whose parent ends becomes this process's child, so none slips away, not even out of the group: this
    # process has no descendant left when it has no child left.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def restore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=restore)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            break
    status = child.poll()
    # The engine is a process of its own in the same group: it may outlive a server that died.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    if not _wait_for_all(kill=False):
        _wait_for_all(kill=True)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
