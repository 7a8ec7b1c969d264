"""Progress of long work: a bar on a terminal, a line now and then in a log."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 10.0


def bar(console: Console) -> Progress:
    """Return a progress bar with a free text field `note`, e.g. for the loss."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield `items` and tell how many of `total` are done, e.g. `tokenizing 4000/10033 documents`."""
    console = Console()
    if console.is_terminal:
        with bar(console) as progress:
            task = progress.add_task(what, total=total, note="")
            for item in items:
                yield item
                progress.advance(task)
        return
    told = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if done == total or time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            print(f"{what} {done}/{total}", flush=True)
