"""What is called last is called, whatever the others do."""

from __future__ import annotations

from mqlab.wire.leaving import leave, on_leave


def test_all_are_called_once_newest_first() -> None:
    called: list[int] = []
    on_leave(lambda: called.append(1))
    on_leave(lambda: 1 / 0)
    on_leave(lambda: called.append(3))
    leave()
    leave()
    assert called == [3, 1]
