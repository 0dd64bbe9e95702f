"""Progress bars on stderr, which may be any object that one can write to; none where there is no stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(description: str, *, shown: bool = True, **options: Any) -> tqdm:
    """A tqdm bar; ``options`` are tqdm's (iterable, total, unit, unit_scale)."""
    from tqdm import tqdm

    return tqdm(desc=description, disable=not shown or sys.stderr is None, **options)


@contextlib.contextmanager
def ticking(bar: tqdm, every_s: float = 1.0) -> Iterator[None]:
    """Redraw a bar from time to time within: its clock shows that a long item is under way."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(every_s):
            bar.refresh()

    ticker = threading.Thread(target=tick, name="mqlab-bar", daemon=True)
    if not bar.disable:
        ticker.start()
    try:
        yield
    finally:
        over.set()
        if ticker.ident is not None:
            ticker.join()
