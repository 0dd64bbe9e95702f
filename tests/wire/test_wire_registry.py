"""The registry of running engines: what is in it runs, and what is stopped is what was registered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.errors import ConfigError
from mqlab.wire.registry import Entry, Registry, start_time
from mqlab.wire.rundir import RunDir

SLEEPER = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    yield from _process(SLEEPER)


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    yield from _process(STUBBORN)


def _process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def entry(pid: int, **changes: object) -> Entry:
    facts = {"role": "session", "model": "echo", "topology": "mq", "url": None, "socket": "/x/front", "owner_pid": os.getpid()}
    return Entry.of(pid, **{**facts, **changes})


def test_what_is_added_is_found_until_it_is_removed(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    assert registry.entries() == []
    mine, other = entry(os.getpid(), role="serve", url="http://127.0.0.1:8000"), entry(child.pid)
    for each in (other, mine, msgspec.structs.replace(other, recording="/r")):
        registry.add(each)
    other = msgspec.structs.replace(other, recording="/r")
    assert Registry(registry.folder.parent).entries() == [mine, other]
    assert registry.find("http://127.0.0.1:8000/") == registry.find(str(mine.pid)) == mine
    assert registry.find("/x/front") in (mine, other) and registry.find("nothing") is None
    assert registry.folder.stat().st_mode & 0o777 == 0o700
    registry.remove(mine)
    registry.remove(mine)
    assert registry.entries() == [other]
    registry.remove(other)
    assert not registry.folder.exists()


def test_what_no_longer_runs_is_dropped(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    registry.add(entry(child.pid))
    reused = msgspec.structs.replace(entry(os.getpid()), started=1.0)
    registry.add(reused)
    assert [each.pid for each in registry.entries()] == [child.pid], "a pid that now is another process"
    child.kill()
    child.wait()
    assert registry.entries() == []
    assert not registry.folder.exists()


def test_a_process_that_nobody_reaped_does_not_run(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    registry.add(entry(child.pid))
    child.kill()
    until_sync(lambda: start_time(child.pid) is None)
    assert registry.entries() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe", b'{"pid": 1, "started": 0}'])
def test_what_cannot_be_read_is_removed(registry: Registry, content: bytes) -> None:
    mine = entry(os.getpid())
    registry.add(mine)
    for name in ("77.json", "notes.txt", "x.draft", "999999999.aa.draft"):
        (registry.folder / name).write_bytes(content)
    assert registry.entries() == [mine]
    assert [path.name for path in registry.folder.iterdir()] == [f"{mine.pid}.json"]


def test_a_file_that_is_being_written_is_left_alone(registry: Registry) -> None:
    registry.add(entry(os.getpid()))
    draft = registry.folder / f"{os.getpid()}.aa.draft"
    draft.touch()
    assert len(registry.entries()) == 1 and draft.exists()


def test_a_folder_that_others_may_enter_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.folder.mkdir(mode=0o755)
    for use in (registry.entries, lambda: registry.add(entry(os.getpid()))):
        with pytest.raises(ConfigError, match="mode 0700"):
            use()
    registry.folder.rmdir()
    registry.folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="mode 0700"):
        registry.entries()


def test_many_come_and_go_at_once(registry: Registry) -> None:
    mine = entry(os.getpid())
    entries = [msgspec.structs.replace(mine, pid=10_000_000 + number) for number in range(8)]
    failures: list[BaseException] = []

    def work(each: Entry) -> None:
        try:
            for _ in range(50):
                with registry.known(each):
                    pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and registry.entries() == []


def test_stop_ends_the_process_and_forgets_it(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    mine = entry(child.pid)
    registry.add(mine)
    assert registry.stop(mine) is True
    assert child.wait(5) == -signal.SIGTERM
    assert registry.entries() == []
    assert registry.stop(mine) is False


def test_stop_kills_what_ignores_it(registry: Registry, stubborn: subprocess.Popen[bytes]) -> None:
    assert registry.stop(entry(stubborn.pid), grace=0.1) is True
    assert stubborn.wait(5) == -signal.SIGKILL


def test_stop_spares_another_process_of_the_same_pid(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    stale = msgspec.structs.replace(entry(child.pid), started=1.0)
    assert registry.stop(stale) is False
    assert not gone(child.pid)


def test_stop_spares_this_process(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="this very process"):
        registry.stop(entry(os.getpid()))


def test_age_is_since_the_process_started(child: subprocess.Popen[bytes]) -> None:
    assert 0 <= entry(child.pid).age_s < 60
    assert entry(os.getpid()).age_s >= entry(child.pid).age_s


def test_the_sweep_of_run_folders_spares_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAB_RUNTIME", str(tmp_path))
    registry = Registry()
    with registry.known(entry(os.getpid())):
        RunDir().remove()
        assert len(registry.entries()) == 1
