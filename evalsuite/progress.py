"""What a user sees while a run goes: a bar per arm on a terminal, a line now and then elsewhere.

Nothing here shows how many answers were right: a run that is watched for its score gets stopped for its score.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_SECONDS = 30.0


def announce(text: str) -> None:
    """Show what goes on now: overwritten in place on a terminal, silent elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def say(text: str) -> None:
    """Show one line that stays."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    print(text, file=sys.stderr, flush=True)


@contextmanager
def asking(name: str, *, total: int, done: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each response of an arm; `done` of `total` are already in the journal."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        announce("")
        with tqdm(total=total, initial=done, desc=name, unit="question", dynamic_ncols=True) as bar:
            yield bar.update
        return
    count, first, last = done, 0.0, time.monotonic()
    say(f"{name}: {done} of {total} questions answered, asking {total - done}")

    def step() -> None:
        nonlocal count, first, last
        count += 1
        now = time.monotonic()
        if count == done + 1:
            first = now  # what came before may have been the start of another server
        elif count == total or now - last >= _QUIET_SECONDS:
            left = (now - first) / (count - done - 1) * (total - count)
            say(f"{name}: {count} of {total} questions answered, about {left:.0f} s left")
            last = now

    yield step
