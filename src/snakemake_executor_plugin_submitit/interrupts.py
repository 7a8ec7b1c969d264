"""Ctrl-C between the scheduler's yes and the note of the job's id would leave a job that nobody cancels."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held(shield_commands: bool) -> Iterator[None]:
    """Hold SIGINT back until the end of the block, from the commands that it starts too if they are to be shielded."""
    if threading.current_thread() is not threading.main_thread():  # which alone sees the signal
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    # a terminal sends Ctrl-C to sbatch as well, which inherits the mask; the handler above does not pass an exec
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if shield_commands else set())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)
