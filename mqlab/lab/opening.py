"""What was saved, shown again: traces, captures, results of benches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from mqlab.bench.codecs_result import CodecsResult, load_codecs
from mqlab.bench.comparison import Comparison
from mqlab.bench.device.result import DeviceResult, load_device
from mqlab.bench.frontend.result import FrontendResult, load_frontend
from mqlab.bench.seeds.result import SeedResult, load_experiment
from mqlab.errors import ConfigError
from mqlab.lab.rows import rows_html, rows_text
from mqlab.record.archive import SUFFIX as TRACE_SUFFIX
from mqlab.record.capture import META, Capture
from mqlab.record.operators import TorchCapture
from mqlab.record.tables import is_recording
from mqlab.record.trace import Trace

_SHOWN = (int, float, str, bool)


class Saved:
    """The record of a bench: its figures as a table, all of it in ``record``.

    Args:
        path: where it was read from.
        record: what is in it.
    """

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record

    @property
    def figures(self) -> dict[str, Any]:
        """What is a single number or text."""
        return {name: value for name, value in self.record.items() if isinstance(value, _SHOWN)}

    def __repr__(self) -> str:
        return rows_text(str(self.path), self._rows())

    def _repr_html_(self) -> str:
        return rows_html(self.path.name, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [(name, _text(value)) for name, value in self.figures.items()]


def open_saved(
    path: str,
) -> Trace | Capture | TorchCapture | Comparison | SeedResult | CodecsResult | FrontendResult | DeviceResult | Saved:
    """Whatever mqlab, or a tool whose files it reads, wrote there.

    Raises:
        ConfigError: nothing is there, or nothing that is known. TraceError, ProfileError: what is there is damaged.
    """
    where = Path(path).expanduser()
    if where.is_dir():
        return _from_folder(where)
    if not where.is_file():
        raise ConfigError(f"{path} does not exist")
    kind = _kind_of(where)
    if kind is not None:
        return _from_json(where, kind)
    capture = Capture.load(where)
    if not capture.stacks.total:
        raise _unknown(where, "it holds no stacks")
    return capture


class _Kind(msgspec.Struct):
    """What tells one JSON file from another: the keys that it has; ``msgspec.UNSET`` for those that it lacks."""

    verdict: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    avg_latency: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    elapsed_time: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    request_throughput: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    us_per_running: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    typical_error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finding: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    profiles: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    experiment: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    codecs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    frontend: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    device_bench: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    traceEvents: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def has(self, *names: str) -> bool:
        """Whether it has one of these keys."""
        return any(getattr(self, name) is not msgspec.UNSET for name in names)


def _kind_of(path: Path) -> _Kind | None:
    """None for a file that is not meant to be JSON."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kind)
    except msgspec.MsgspecError as error:
        if path.suffix == ".json":
            raise _unknown(path, str(error)) from None
        return None


def _from_folder(path: Path) -> Trace | Capture:
    if path.suffix == TRACE_SUFFIX or is_recording(path):
        return Trace.load(path)
    if (path / META).is_file():
        return Capture.load(path)
    raise _unknown(path, "it is neither a trace, nor a recording, nor a capture")


def _from_json(
    path: Path, kind: _Kind
) -> Capture | TorchCapture | Comparison | SeedResult | CodecsResult | FrontendResult | DeviceResult | Saved:
    if kind.has("experiment"):
        return load_experiment(path)
    if kind.has("codecs"):
        return load_codecs(path)
    if kind.has("frontend"):
        return load_frontend(path)
    if kind.has("device_bench"):
        return load_device(path)
    if kind.has("verdict", "avg_latency", "elapsed_time", "request_throughput", "us_per_running", "typical_error", "finding"):
        return _result(path, comparison=kind.has("verdict"))
    if kind.has("profiles"):
        return Capture.load(path)
    if kind.has("traceEvents"):
        capture = TorchCapture.load(path)
        if capture.operators:
            return capture
        raise ConfigError(f"{path} is a Chrome trace without torch's operators; https://ui.perfetto.dev shows it")
    raise _unknown(path, "it has the keys of no file that is known")


def _result(path: Path, *, comparison: bool) -> Comparison | Saved:
    record = json.loads(path.read_text(encoding="utf-8"))
    if not comparison:
        return Saved(path, record)
    try:
        return Comparison.of_record(record)
    except (KeyError, TypeError, ValueError) as error:
        raise _unknown(path, f"a comparison that is not whole: {type(error).__name__}: {error}") from error


def _unknown(path: Path, why: str) -> ConfigError:
    known = "a saved trace, a recording, a capture, a speedscope file, folded stacks, a trace of torch.profiler, a bench's JSON"
    return ConfigError(f"{path} is nothing that mqlab can show ({why}); that would be {known}")


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
