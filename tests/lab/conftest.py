"""Sessions over an engine without a model, and kernels to use them in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from waiting import until_sync

from mqlab.config import Timing
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FAST = Timing(health_interval=0.1, idle_interval=0.1, stop_grace=0.5)

Start = Callable[..., Session]


@pytest.fixture
def start(model_folder: Path) -> Iterator[Start]:
    """Start echo sessions with the default model's tokenizer: ``start("v1", device_time=0.01)``; all are stopped afterwards."""
    started: list[Session] = []

    def start(topology: str = "mq", **core: Any) -> Session:
        spec = Spec("mqlab.engine.echo:build", {"path": str(model_folder), **core})
        started.append(Session(Wiring(spec, timing=FAST), topology))
        return started[-1]

    yield start
    for session in started:
        session.stop()


class Kernel:
    """A notebook kernel that runs cells one by one."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    @property
    def pid(self) -> int:
        """Of the kernel's process."""
        assert self.manager.provisioner is not None
        return self.manager.provisioner.process.pid

    def run(self, code: str) -> str:
        """What the cell printed; fails when the cell does."""
        output, error = self.outcome(code)
        assert not error, error
        return output

    def outcome(self, code: str, on_print: Callable[[str], None] = lambda _: None) -> tuple[str, str]:
        """What the cell printed, and the name of its exception with its message, empty where it has none.

        ``on_print`` is called with each piece of text while the cell runs.
        """
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                on_print(printed[-1])

        content = self.client.execute_interactive(code, timeout=60, output_hook=hook)["content"]
        return "".join(printed), f"{content['ename']}: {content['evalue']}" if content["status"] == "error" else ""


@contextmanager
def running_kernel(model_folder: Path, folder: Path) -> Iterator[Kernel]:
    """A kernel that knows ``lab``, an echo session over mq."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        patch.setenv("IPYTHONDIR", str(folder))
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    kernel = Kernel(manager, client)
    kernel.run(ECHO.format(folder=str(model_folder)))
    yield kernel
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
    manager.context.destroy(linger=0)


ECHO = """
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring
lab = Session(Wiring(Spec("mqlab.engine.echo:build", {{"path": {folder!r}, "device_time": 0.002}})))
"""


@pytest.fixture(scope="module")
def kernel(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """For tests that leave it and ``lab`` running."""
    with running_kernel(model_folder, tmp_path_factory.mktemp("ipython")) as kernel:
        yield kernel


@pytest.fixture
def fresh_kernel(model_folder: Path, tmp_path: Path) -> Iterator[Kernel]:
    """For tests that end it."""
    with running_kernel(model_folder, tmp_path) as kernel:
        yield kernel


def gone(pid: int) -> bool:
    """Whether no process of that id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int, timeout: float = 10.0) -> None:
    """Return when the process has ended."""

    def process_is_gone() -> bool:
        return gone(pid)

    until_sync(process_is_gone, timeout=timeout)


@pytest.fixture
def until_gone() -> Callable[[int], None]:
    """Waits for the end of a process."""
    return wait_until_gone
