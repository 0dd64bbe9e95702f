"""Files of events: whole whenever they are read, by whomever, however their writer ends."""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.record.events import HEADER_BYTES, LOOP, MESSAGE, STEP, EventLog, Kind, file_name, read_events

PAIR = Kind("pair", ("stamp_ns", "value"))


def test_rows_come_back_with_what_they_are(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "engine-7", MESSAGE, "output.sent")
    log.append(1, 0, 1, 100, 5)
    log.append(2, 1, 2, 2**62, -5)
    events = read_events(tmp_path / "engine-7.message.output.sent.events")
    assert (events.writer, events.kind, events.label) == ("engine-7", MESSAGE, "output.sent")
    assert events.rows.tolist() == [[1, 0, 1, 100, 5], [2, 1, 2, 2**62, -5]], "without flush or close"
    log.close()
    log.close()
    assert read_events(tmp_path / "engine-7.message.output.sent.events").rows.tolist() == events.rows.tolist()


@pytest.mark.parametrize("kind", [STEP, LOOP, PAIR], ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049, 5000])
def test_any_number_of_rows(tmp_path: Path, kind: Kind, count: int) -> None:
    log = EventLog(tmp_path, "front-1", kind)
    path = tmp_path / file_name("front-1", kind)
    width = len(kind.columns)
    for i in range(count):
        log.append(i + 1, *range(width - 1))
    rows = read_events(path).rows
    assert rows.shape == (count, width)
    assert rows[:, 0].tolist() == list(range(1, count + 1))
    log.close()
    assert path.stat().st_size == HEADER_BYTES + 8 * width * count, "the room that was not used is given back"
    assert np.array_equal(read_events(path).rows, rows)


def test_a_full_file_only_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "front-1", PAIR, limit_bytes=3 * 2048 * 16)
    for i in range(1, 3 * 2048 + 11):
        log.append(i, i)
    assert log.dropped == 10
    assert len(read_events(tmp_path / "front-1.pair.events").rows) == 3 * 2048


def test_a_full_disk_raises_and_leaves_what_is_there(tmp_path: Path) -> None:
    """As on a full disk, a write fails for want of room; it must not be a signal when a row is stored."""
    log = EventLog(tmp_path, "front-1", PAIR)
    for i in range(1, 2049):
        log.append(i, i)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 2048 * 16, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append(2049, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert len(read_events(tmp_path / "front-1.pair.events").rows) == 2048


def test_a_vanished_file_raises(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "front-1", PAIR)
    (tmp_path / "front-1.pair.events").unlink()
    with pytest.raises(FileNotFoundError):
        log.append(1, 1)


def test_a_row_must_fit(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "front-1", PAIR)
    with pytest.raises(struct.error):
        log.append(1, 2, 3)
    with pytest.raises(struct.error):
        log.append(1, 2**63)


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from mqlab.record.events import LOOP, EventLog
log = EventLog(Path(sys.argv[1]), "front-1", LOOP)
for i in range(1, 3001):
    log.append(i, 0, 0, 0, 0, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    assert len(read_events(tmp_path / "front-1.loop.events").rows) == 3000


@given(st.lists(st.integers(0, 3000), max_size=4), st.integers(1, 3))
def test_many_rows_at_once_are_as_good_as_one_by_one(tmp_path_factory: pytest.TempPathFactory, counts: list[int], windows: int) -> None:
    folder = tmp_path_factory.mktemp("many")
    room = windows * 2048
    logs = [EventLog(folder, "front-1", PAIR, label, limit_bytes=room * 16) for label in ("one", "many")]
    number = 0
    for count in counts:
        rows = [(number + i + 1, -i) for i in range(count)]
        number += count
        for row in rows:
            logs[0].append(*row)
        logs[1].extend(memoryview(array("q", [value for row in rows for value in row])).cast("B"))
    one, many = (read_events(folder / file_name("front-1", PAIR, label)).rows.tolist() for label in ("one", "many"))
    assert one == many
    assert len(one) == min(number, room)
    assert logs[0].dropped == logs[1].dropped == max(number - room, 0)
    for log in logs:
        log.close()


@given(st.integers(0, 100), st.integers(1, 15))
def test_half_a_row_is_left_out(tmp_path_factory: pytest.TempPathFactory, count: int, torn: int) -> None:
    folder = tmp_path_factory.mktemp("torn")
    log = EventLog(folder, "front-1", PAIR)
    for i in range(1, count + 1):
        log.append(i, i)
    log.close()
    path = folder / "front-1.pair.events"
    os.truncate(path, max(path.stat().st_size - torn, HEADER_BYTES))
    assert len(read_events(path).rows) == max(count - 1, 0)


def test_what_is_no_file_of_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.events"
    path.write_bytes(b"hello" * 10_000)
    with pytest.raises(ValueError, match=r"x\.events is no file of events"):
        read_events(path)
