"""Models of the Hugging Face hub, where there is a network; what its own cache holds is used without one."""

from __future__ import annotations

from pathlib import Path

from mqlab.errors import ModelError

_TIMEOUT_S = 5.0
_FILES = ["*.json", "*.safetensors", "*.jinja"]
"""Never pickled weights: reading one runs code."""


def from_hub(repo: str) -> Path:
    """The snapshot folder of ``repo`` ('org/name') in huggingface_hub's own cache, downloaded where it is missing.

    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN count as they do for huggingface_hub (2.4), which also draws the
    progress bars. A hub that does not answer costs five seconds at most.

    Raises:
        ModelError: no network and not in the cache, no such model, or no right to see it.
    """
    from huggingface_hub import snapshot_download

    refusal = _ask(repo)
    try:
        return Path(snapshot_download(repo, local_files_only=refusal is not None, etag_timeout=_TIMEOUT_S, allow_patterns=_FILES))
    except Exception as error:  # the library raises its HTTP client's own errors, too
        reason = refusal or error
        raise ModelError(
            f"there is no folder {repo!r}, and the model hub gave no such model ({type(reason).__name__}: {_first_line(reason)}); "
            "check the name, run where the hub can be reached, or pass a local model folder"
        ) from reason


def _ask(repo: str) -> Exception | None:
    """Why the hub does not give ``repo``; None where it would."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(repo, timeout=_TIMEOUT_S)
    except Exception as error:  # as above
        return error
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
