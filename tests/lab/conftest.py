"""Sessions over an engine without a model, and kernels to use them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from mqlab.config import EngineConfig, Timing
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.lab.registry import SESSIONS
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FAST = Timing(health_interval=0.1, idle_interval=0.1, stop_grace=0.5)

Start = Callable[..., Session]


@pytest.fixture
def start(model_folder: Path) -> Iterator[Start]:
    """Start echo sessions with the default model's tokenizer: ``start("v1", device_time=0.01)``; all are stopped afterwards.

    ``wiring`` has fields of Wiring.
    """
    started: list[Session] = []

    def start(topology: str = "mq", *, wiring: Mapping[str, Any] = MappingProxyType({}), record: bool = True, **core: Any) -> Session:
        spec = Spec("mqlab.engine.echo:build", {"path": str(model_folder), **core})
        started.append(Session(Wiring(spec, timing=FAST, **wiring), topology, record=record))
        return started[-1]

    yield start
    for session in started:
        session.stop()


Magic = Callable[[str], str]


@contextmanager
def running_shell(model_folder: Path, folder: Path) -> Iterator[InteractiveShell]:
    """A shell with the extension, whose ``serve`` starts echo engines instead of real ones; one with ``--max-num-seqs 1`` fails."""

    def echo(config: EngineConfig, topology: str = "mq", *, name: str = "lab", record: bool = True, **_: Any) -> Session:
        factory = "no_such_factory" if config.max_num_seqs == 1 else "build"
        core = Spec(f"mqlab.engine.echo:{factory}", {"path": str(model_folder), "max_num_seqs": config.max_num_seqs})
        session = Session(Wiring(core, timing=FAST), topology, name=name, record=record)
        session._config = replace(config, model="echo")
        return session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder))
        patch.setattr(Session, "of", staticmethod(echo))
        shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
        shell.run_line_magic("load_ext", "mqlab")
        yield shell
    for session in SESSIONS.live().values():
        session.stop()
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(model_folder: Path, tmp_path: Path) -> Iterator[InteractiveShell]:
    """A shell of this test."""
    with running_shell(model_folder, tmp_path) as shell:
        yield shell


@pytest.fixture(scope="module")
def shared_shell(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """One for tests that leave to each other what they find; not beside ``shell``."""
    with running_shell(model_folder, tmp_path_factory.mktemp("ipython")) as shell:
        yield shell


@pytest.fixture
def magic(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Magic:
    """Runs ``%mqlab …`` and returns what it printed."""

    def magic(line: str) -> str:
        capsys.readouterr()
        shell.run_line_magic("mqlab", line)
        return capsys.readouterr().out

    return magic


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
    with ExitStack() as cleanup:
        kernel = Kernel(*_launch(folder, cleanup))
        kernel.run(ECHO.format(folder=str(model_folder)))
        yield kernel


def _launch(folder: Path, cleanup: ExitStack) -> tuple[KernelManager, BlockingKernelClient]:
    """A kernel that is ready; ``cleanup`` ends it, also when it never became so."""
    manager = KernelManager(kernel_name="python3")
    cleanup.callback(manager.context.destroy, linger=0)
    cleanup.callback(manager.cleanup_resources)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        patch.setenv("IPYTHONDIR", str(folder))
        manager.start_kernel()
    cleanup.callback(manager.shutdown_kernel, now=True)
    client = manager.blocking_client()
    client.start_channels()
    cleanup.callback(client.stop_channels)
    client.wait_for_ready(timeout=60)
    return manager, client


ECHO = """
from mqlab.lab.session import Session
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring
lab = Session(Wiring(Spec("mqlab.engine.echo:build", {{"path": {folder!r}, "device_time": 0.002}})))
"""


@pytest.fixture(scope="module")
def bare_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One without an engine."""
    with ExitStack() as cleanup:
        yield Kernel(*_launch(tmp_path_factory.mktemp("ipython"), cleanup))


@pytest.fixture
def new_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """One without an engine, for tests that fill it."""
    with ExitStack() as cleanup:
        yield Kernel(*_launch(tmp_path, cleanup))


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


def wait_until_gone(pid: int, timeout: float = 10.0) -> None:
    """Return when the process has ended."""

    def process_is_gone() -> bool:
        return gone(pid)

    until_sync(process_is_gone, timeout=timeout)


@pytest.fixture
def until_gone() -> Callable[[int], None]:
    """Waits for the end of a process."""
    return wait_until_gone
