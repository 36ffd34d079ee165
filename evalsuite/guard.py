"""`python -m evalsuite.guard COMMAND...`: run a command, and end it with all it started when standard input closes.

Standard input is a pipe whose other end evalsuite holds. However evalsuite ends, killed included, the kernel closes
that end, and the guard then ends the command's process group: first SIGTERM, then SIGKILL.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PATIENCE = 15.0
"""Seconds that a process group has to end itself after SIGTERM."""


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False where no such group is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    """Run the command; return its exit status, or 0 once standard input closed and its group has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is evalsuite's to handle; the pipe tells the rest

    def restore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=restore)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            break
    status = child.poll()
    # The engine is a process of its own in the same group: it may outlive a server that died.
    _signal_group(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        child.poll()
        if not _signal_group(child.pid, 0):
            break
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
