"""Progress bars on stderr, which may be any object that one can write to; none where there is no stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(description: str, *, shown: bool = True, **options: Any) -> tqdm:
    """A tqdm bar; ``options`` are tqdm's (iterable, total, unit, unit_scale)."""
    from tqdm import tqdm

    return tqdm(desc=description, disable=not shown or sys.stderr is None, **options)
