"""What one can see and measure of a session: dashboard, metrics, traces, captures, load, comparisons."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.bench.compare import compare
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.serve import serve_bench
from mqlab.bench.serve_result import ServeResult
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError, ProfileError
from mqlab.lab.chosen import chosen, load_settings
from mqlab.lab.dashboard import Dashboard
from mqlab.lab.hosted import Hosted
from mqlab.lab.metrics import Metrics
from mqlab.lab.plots import Plot, plot_throughput
from mqlab.lab.sampler import as_frame
from mqlab.lab.view import View
from mqlab.probes.pyspy import Capture, new_folder, record
from mqlab.record.operators import TorchCapture
from mqlab.record.trace import Trace

if TYPE_CHECKING:
    import pandas


class Instruments(ABC):
    """The measuring half of a session.

    Args:
        hosted: the engine.
        topology: its layout.
        name: of the session.
        config: what it was made from, if known.
    """

    def __init__(self, hosted: Hosted, topology: str, name: str, config: EngineConfig | None) -> None:
        self.name = name
        self.topology = topology
        self._hosted = hosted
        self._config = config
        self._dashboard: Dashboard | None = None

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether it was stopped."""

    @abstractmethod
    def call(self, method: str, *args: Any, timeout: float | None = 60.0) -> Any:
        """A control call of the engine."""

    @abstractmethod
    def _running(self) -> Hosted:
        """The engine; raises ClientClosedError after a stop."""

    @abstractmethod
    def _ensure_not_dead(self) -> None:
        """Raise EngineDeadError for a dead engine."""

    def throughput(self) -> pandas.DataFrame:
        """Tokens per second, requests and KV cache use since the start, as ``sampler.as_frame`` says; also after ``stop``."""
        samples = self._hosted.sampler.samples()
        return as_frame(samples if self.stopped else [*samples, self._hosted.client.glance()])

    def plot_throughput(self, since: float = 0.0) -> Plot:
        """``throughput()`` as a picture, from ``since`` seconds after the start on."""
        frame = self.throughput()
        return plot_throughput(frame.loc[frame["seconds"] >= since], f"{self._hosted.info.name} over {self.topology}")

    def dashboard(self) -> Dashboard:
        """Topology, traffic and figures, live in the cell that shows it; ``close()`` leaves the last picture, static."""
        if self._dashboard is None or self._dashboard.closed:
            hosted = self._hosted  # and not self: a dashboard on the page keeps no session
            self._dashboard = Dashboard(hosted.sampler, hosted.client.shape, self.name, info=lambda: hosted.info)
        return self._dashboard

    def metrics(self) -> Metrics:
        """What the engine, its front and its processes did in the last two seconds and since the start."""
        return Metrics(View(self._hosted.sampler, self._hosted.client.shape, self.name))

    def trace(self) -> Trace:
        """Everything that the probes recorded so far; also after ``stop``.

        Raises:
            ConfigError: the session was started without recording.
        """
        if self._hosted.recording is None:
            raise ConfigError(f"session {self.name} records nothing: it was started with record=False (--no-record)")
        return Trace.of(self._hosted.recording)

    def profile(
        self,
        seconds: int = 5,
        *,
        rate: int = 100,
        idle: bool = False,
        native: bool = False,
        gil: bool = False,
        folder: str | Path | None = None,
        stop: threading.Event | None = None,
        until_stopped: bool = False,
    ) -> Capture:
        """Sample the stacks of engine and front together with py-spy while they work.

        Blocks; ``await asyncio.to_thread(lab.profile, 5)`` does not. An interrupt ends the capture early and keeps what was seen.
        Hung processes can be sampled as well as busy ones; only dead ones cannot.

        Args:
            seconds: whole ones, 1 to 3600.
            rate: samples a second, 1 to 1000.
            idle: threads that wait, too.
            native: C frames as well.
            gil: only the thread that holds the interpreter's lock.
            folder: where stacks, speedscope file and flame graph go; by default a new folder in mqlab's cache.
            stop: setting it ends the capture early.
            until_stopped: that is no accident: ``seconds`` is only a bound.

        Raises:
            ProfileError: the capture could not be taken; says what to change. EngineDeadError, ClientClosedError.
        """
        self._ensure_not_dead()
        where = Path(folder) if folder else new_folder()
        return record(
            self._hosted.pids(), seconds, where, rate=rate, idle=idle, native=native, gil=gil, stop=stop, until_stopped=until_stopped
        )

    def profile_torch(self, seconds: float = 2.0, *, folder: str | Path | None = None) -> TorchCapture:
        """The engine's operators by torch.profiler, while it works: at most its next 20 steps. Blocks; see ``profile``.

        Args:
            seconds: how long; the first capture of an engine takes seconds more to begin.
            folder: where the Chrome trace goes; by default a new folder in mqlab's cache.

        Raises:
            CallError: the engine is profiled already, or runs no torch. EngineDeadError, ClientClosedError.
            ProfileError: no step ran meanwhile.
        """
        where = Path(folder) if folder else new_folder()
        where.mkdir(parents=True, exist_ok=True)
        self.call("start_profile", str(where / "torch.trace.json"), "torch")
        try:
            threading.Event().wait(seconds)
        finally:
            path = self.call("stop_profile")
        capture = TorchCapture.load(path)
        if not capture.operators:
            raise ProfileError(
                f"torch.profiler saw no operator of engine {self._hosted.info.name!r} in {seconds:g} s: send it requests meanwhile"
            )
        return capture

    # --- measuring

    @property
    def url(self) -> str:
        """Of its OpenAI server: for ``mq`` and ``v1`` one that shares this process, opened when first asked for.

        Raises:
            ClientClosedError: after ``stop``.
        """
        return self._running().open_http()

    def bench(self, **settings: Any) -> ServeResult:
        """Load it over HTTP from processes of their own, as ``mqlab bench serve`` does. Blocks; see ``profile``.

        The front of ``mq`` and ``v1`` shares this process with the notebook: figures to quote come from ``mqlab serve`` in a terminal.

        Args:
            settings: fields of LoadConfig and DatasetConfig: ``num_prompts=200, request_rate=10, dataset_path="sharegpt.json"``.

        Raises:
            ConfigError: an unknown or impossible setting. BenchError, ClientClosedError.
        """
        return serve_bench(*load_settings(self._hosted.info, settings), self.url, watch=self._hosted.pids())

    def compare(self, **settings: Any) -> Comparison:
        """Compare layouts, or another setting, with this session's engine settings: see ``mqlab compare``. Blocks; see ``profile``.

        Every arm runs in a front process of its own; this session is not measured, and had better be idle meanwhile.

        Args:
            settings: fields of CompareConfig: ``topologies="aio,mq"``, or ``vary="codec=msgpack,pickle"``, …

        Raises:
            ConfigError: an unknown setting, or a session that was not made from a config. EngineStartError.
        """
        if self._config is None:
            raise ConfigError(f"session {self.name} was not made from an EngineConfig; use mqlab.bench.compare.compare(config, …)")
        return compare(self._config, chosen(CompareConfig, settings))
