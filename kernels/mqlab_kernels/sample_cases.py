"""What the kernels of sample.py are compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from mqlab_kernels.kernel import Case

_PARAMETERS = {"temperatures": "*fp64", "top_ks": "*i64", "top_ps": "*fp64", "min_ps": "*fp64", "seeds": "*i64", "indices": "*i64"}
_SINGLE = {**_PARAMETERS, "temperatures": "*fp32", "top_ks": "*i32", "top_ps": "*fp32", "min_ps": "*fp32"}
_WORK = {"peaks": "*fp32", "masses": "*fp32", "finishes": "*fp32"}
_SHAPE = {"vocab": "i32", "width": "i32", "stride": "i32"}
_POINTERS = ("logits", *_PARAMETERS, *_WORK, "lists", "out")


def cases(*, drawing: bool) -> tuple[Case, ...]:
    """Of the survey, or of the drawing kernel: parameters of either width, and a vocabulary that is and one that is no multiple of 16."""
    kinds = (("float64", _PARAMETERS, 128_256), ("float64", _PARAMETERS, 50_257), ("float32", _SINGLE, 128_256))
    return tuple(
        Case(name=f"{name} parameters, {vocab}", types=_types(given, drawing), constants={}, aligned=_aligned(vocab, given, drawing))
        for name, given, vocab in kinds
    )


def _types(parameters: Mapping[str, str], drawing: bool) -> dict[str, str]:
    if drawing:
        return {"logits": "*fp32", **parameters, **_WORK, "lists": "*i32", "out": "*i64", **_SHAPE}
    noise = {name: parameters[name] for name in ("temperatures", "seeds", "indices")}
    return {"logits": "*fp32", **noise, **_WORK, **_SHAPE}


def _aligned(vocab: int, parameters: Mapping[str, str], drawing: bool) -> tuple[str, ...]:
    sizes = ("width",) if vocab % 16 else ("vocab", "width", "stride")
    return tuple(name for name in (*_POINTERS, *sizes) if name in _types(parameters, drawing))
