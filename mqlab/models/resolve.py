"""A model's name, folder, GGUF file or hub id becomes a local folder with config.json and tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from mqlab.config import LoadFormat
from mqlab.errors import ModelError
from mqlab.models.cachefolder import build_once
from mqlab.models.devices import device_file
from mqlab.models.echoed import is_echo, tokenizer_of
from mqlab.models.fetch import KNOWN, fetch
from mqlab.models.gguf import CONVERTER, convert
from mqlab.models.hub import from_hub
from mqlab.models.shipped import SHIPPED, shipped_config, with_tokenizer
from mqlab.models.simulated import Simulated, is_simulated

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FORMS = f"a known name ({', '.join(KNOWN)}), a Hugging Face folder, a .gguf file or a hub id (org/name)"
_STAND_IN = "smollm2-135m"
"""Whose tokenizer a model without one gets: one whose weights are made up, or an echo."""


def resolve(model: str, cache: Path, *, load_format: LoadFormat = "auto", progress: bool = True) -> Path:
    """The local folder of ``model``: a known name, a folder, a .gguf file, or a hub id where there is a network.

    For a simulated model, ``sim:<model>@<device>``, that of the model whose shape it has, as with made-up weights. For an echo that of
    the model whose tokenizer it has: ``echo:<model>``, or the default model.

    What looks like a path is never asked of the hub, so a wrong one fails at once.

    Args:
        model: what the user wrote.
        cache: mqlab's.
        load_format: whether the weights are the model's own, or made up; see ``resolve_dummy``.
        progress: whether bars are shown.

    Raises:
        ModelError: nothing of that name, or a folder that cannot be served; the message names what is missing.
    """
    if is_simulated(model):
        return _resolve_simulated(Simulated.parse(model), cache, progress)
    if is_echo(model):
        return resolve(tokenizer_of(model, _STAND_IN), cache, load_format=load_format, progress=progress)
    if load_format == "dummy":
        return resolve_dummy(model, cache, progress=progress)
    if model in KNOWN:
        return fetch(model, cache, progress=progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path.resolve())
    if path.is_file():
        return _from_file(path.resolve(), cache, progress)
    if _looks_like_path(model):
        raise ModelError(f"no folder or file at {model!r}; pass {_FORMS}")
    if _HUB_ID.fullmatch(model):
        return _checked(from_hub(model))
    if model in SHIPPED:
        raise ModelError(f"{model!r} is a shape without weights; pass --load-format dummy for made-up ones, or {_FORMS}")
    shapes = ", ".join(SHIPPED)
    raise ModelError(f"no model is known as {model!r}; pass {_FORMS}; with --load-format dummy also {shapes}, as in sim:<model>@<device>")


def resolve_dummy(model: str, cache: Path, *, progress: bool = True) -> Path:
    """The folder of a model whose weights are made up: a shipped shape, a folder with config.json, or what ``resolve`` takes.

    A model without tokenizer.json gets that of the default model; ids beyond it stand for no text.

    Raises:
        ModelError: as ``resolve``, or a vocabulary that is too small for that tokenizer.
    """
    path = Path(model).expanduser()
    if model in SHIPPED:
        return with_tokenizer(model, shipped_config(model), resolve(_STAND_IN, cache, progress=progress), cache)
    if not path.is_dir() or (path / "tokenizer.json").is_file():
        return resolve(model, cache, progress=progress)
    config = json.dumps(load_config(path))
    return with_tokenizer(path.resolve().name, config, resolve(_STAND_IN, cache, progress=progress), cache)


def _resolve_simulated(name: Simulated, cache: Path, progress: bool) -> Path:
    device_file(name.device)
    return resolve_dummy(name.model, cache, progress=progress)


def load_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder.

    Raises:
        ModelError: it is missing, not JSON, or not an object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder} holds no config.json; pass the folder that transformers' save_pretrained wrote") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}; download or save the model again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds a {type(config).__name__}, not an object; download or save the model again")
    return config


def _checked(folder: Path) -> Path:
    load_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"{folder} holds no tokenizer.json; save it there with AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})"
        )
    return folder


def _from_file(path: Path, cache: Path, progress: bool) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is a file, but not a .gguf file; pass {_FORMS}")
    stat = path.stat()
    key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:12]
    return build_once(cache / "models" / f"{path.stem}-{key}-c{CONVERTER}", lambda folder: convert(path, folder, progress=progress))


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", ".", "~")) or model.endswith("/") or model.lower().endswith(".gguf") or model.count("/") > 1
