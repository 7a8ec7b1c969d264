"""A function in a process of its own: its peak memory is its own, and one that is killed costs nothing else."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def isolated(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | str:
    """Return what the function returns in a process of its own, or in words why it did not."""
    # forkserver: torch is imported once, and no case starts from threads or a GPU context of another
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["depthbench.train"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        status = process.exitcode or 0
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    finally:
        process.join()


def _answer(pipe: Connection, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    try:
        pipe.send(function(*arguments))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}")
