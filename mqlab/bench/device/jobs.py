"""What the device bench runs, in the order of how much it is wanted: what the time does not suffice for is at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mqlab.model.measure.rows import Agreement, Skip
from mqlab.wire.spec import Spec

_MEASURE = "mqlab.model.measure"
_SECONDS_FACTOR = 4.0
_LIMIT_S = 45.0

LLAMA_8B: Mapping[str, int] = {"heads": 32, "kv_heads": 8, "size": 128}
LLAMA_1B: Mapping[str, int] = {"heads": 32, "kv_heads": 8, "size": 64}
HEADS = {"8B": LLAMA_8B, "1B": LLAMA_1B}

DECODE_BATCHES = (1, 16, 64, 256)
DECODE_CONTEXTS = (512, 4096, 32768)
_FAR_BLOCKS = 140_000
"""Of 16 tokens of 8 heads of 128: 2.3 billion elements."""

WANTED_DECODE = "8B, batch 64, context 4096"
WANTED_PREFILL = "8B, prompt of 8192"
BIG_MODEL = "llama-3.1-8b"
SMALL_MODEL = "llama-3.2-1b"


KernelPart = Literal["correctness", "kernels", "sweep"]


@dataclass(frozen=True)
class Job:
    """Something to measure in the bench's own process.

    Attributes:
        seconds: that it is expected to take, the compiling of a kernel included.
    """

    part: str
    name: str
    seconds: float
    call: Spec

    def failed(self, why: str) -> Agreement | Skip:
        """Of what it did not give: a kernel that cannot even be run does not agree with its reference."""
        if self.part == "correctness":
            case = self.call.kwargs
            return Agreement(case["kernel"], case["case"], case["dtype"], None, False, why)
        return Skip(self.part, self.name, f"it failed: {why}")

    @property
    def limit_s(self) -> float:
        """After which it is taken for hung."""
        return _LIMIT_S + _SECONDS_FACTOR * self.seconds


@dataclass(frozen=True)
class KernelCase:
    """A kernel at some sizes."""

    kernel: str
    case: str
    sizes: Mapping[str, Any]
    dtype: str = "bfloat16"

    @property
    def kwargs(self) -> dict[str, Any]:
        """Of a job of it, but for its place."""
        return {"kernel": self.kernel, "case": self.case, "dtype": self.dtype, "sizes": dict(self.sizes)}


def kernel_jobs(kind: str, part: KernelPart, cases: Sequence[KernelCase], *, small: bool) -> Iterator[Job]:
    """A job for each case."""
    runs = {"runs": 1 if small else 25}
    call, more, seconds = {
        "correctness": ("agree", {}, 2.0),
        "kernels": ("time_kernel", runs, 1.0),
        "sweep": ("sweep", {**runs, "seconds": 0.1 if small else 20.0}, 25.0),
    }[part]
    for one in cases:
        spec = Spec(f"{_MEASURE}.kernels:{call}", {"kind": kind, **one.kwargs, **more})
        yield Job(part, f"{one.kernel}, {one.case}, {one.dtype}", 0.2 if small else seconds, spec)


def ceiling_jobs(kind: str, *, small: bool) -> Iterator[Job]:
    """What comes first."""
    copy = {"most_bytes": 1 << 22, "runs": 3} if small else {"most_bytes": 4 << 30, "runs": 15}
    product = {"size": 128, "runs": 3} if small else {"size": 8192, "runs": 15}
    yield Job("ceilings", "copy", 4.0, Spec(f"{_MEASURE}.ceilings:copying", {"kind": kind, **copy}))
    for dtype in ("bfloat16", "float16", "float32", "int8"):
        yield Job("ceilings", f"matmul {dtype}", 1.0, Spec(f"{_MEASURE}.ceilings:multiplying", {"kind": kind, "dtype": dtype, **product}))
    yield Job("ceilings", "launch", 2.0, Spec(f"{_MEASURE}.ceilings:launching", {"kind": kind, "times": 20 if small else 500}))


def correctness_cases(*, small: bool) -> list[KernelCase]:
    """Every kernel, in the dtypes of its data, at realistic sizes; attention also with windows, soft caps and rows of nothing."""
    return (
        [*_small_cases(), *(_in("float32", one) for one in wanted_cases(small=True))]
        if small
        else [*_wide_correctness(), *_exact_correctness()]
    )


def wanted_cases(*, small: bool) -> list[KernelCase]:
    """Those that a figure of the goals is about."""
    if small:
        return [one for one in _small_cases() if one.kernel in ("paged_decode", "prefill_attention")]
    return [_decode("8B", 64, 4096), _prefill("8B", WANTED_PREFILL, ((8192, 0),))]


def timed_cases(*, small: bool) -> list[KernelCase]:
    """The others."""
    if small:
        return [one for one in _small_cases() if one.kernel not in ("paged_decode", "prefill_attention")]
    return [one for one in [*_point_times(), *_attention_times()] if one not in wanted_cases(small=False)]


def swept_cases(*, small: bool) -> list[KernelCase]:
    """Of the two attention kernels."""
    return wanted_cases(small=small)


def _decode(heads: str, batch: int, context: int, **more: Any) -> KernelCase:
    name = ", ".join(
        [f"{heads}, batch {batch}, context {context}", *(name if value is True else f"{name} {value}" for name, value in more.items())]
    )
    return KernelCase("paged_decode", name, {**HEADS[heads], "batch": batch, "context": context, **more})


def _prefill(heads: str, name: str, chunks: tuple[tuple[int, int], ...], **more: Any) -> KernelCase:
    return KernelCase("prefill_attention", name, {**HEADS[heads], "chunks": chunks, **more})


def _attention_times() -> Iterator[KernelCase]:
    for heads in HEADS:
        yield _prefill(heads, f"{heads}, prompt of 1024", ((1024, 0),))
        yield _prefill(heads, f"{heads}, prompt of 8192", ((8192, 0),))
        yield _prefill(heads, f"{heads}, 2048 behind 6144", ((2048, 6144),))
        yield _prefill(heads, f"{heads}, 512 behind 1024, four times", ((512, 1024),) * 4)
    for context in DECODE_CONTEXTS:
        for batch in DECODE_BATCHES:
            for heads in HEADS:
                yield _decode(heads, batch, context)


def _point_times() -> Iterator[KernelCase]:
    for tokens in (64, 8192):
        yield KernelCase("reshape_cache", f"8B, {tokens} tokens", {"kv_heads": 8, "size": 128, "tokens": tokens, "blocks": 16384})
        yield KernelCase("qkv_rope_cache", f"8B, {tokens} tokens", {**LLAMA_8B, "tokens": tokens})
        yield KernelCase("add_rms_norm", f"8B, {tokens} tokens", {"tokens": tokens, "width": 4096})
        yield KernelCase("rotary", f"8B, {tokens} tokens", {"tokens": tokens, "heads": 40, "size": 128})
        yield KernelCase("gated", f"8B, {tokens} tokens", {"tokens": tokens, "width": 14336})
        yield KernelCase("quantise_rows", f"8B, {tokens} tokens", {"tokens": tokens, "width": 4096})
        yield KernelCase("int8_gemm", f"8B up, {tokens} tokens", {"tokens": tokens, "width": 4096, "out_width": 28672})
        yield KernelCase("int8_gemm", f"8B down, {tokens} tokens", {"tokens": tokens, "width": 14336, "out_width": 4096})
    for rows in (1, 64, 256):
        yield KernelCase("sample", f"{rows} rows of 128256", {"rows": rows, "vocab": 128256}, "float32")
    yield KernelCase("advance", "256 rows", {"rows": 256, "context": 4096}, "int64")


def _wide_correctness() -> Iterator[KernelCase]:
    for dtype in ("bfloat16", "float16"):
        for heads in HEADS:
            yield _in(dtype, _decode(heads, 17, 4096, ragged=True))
            yield _in(dtype, _prefill(heads, f"{heads}, 1024, 300 behind 2000, 1 behind 99", ((1024, 0), (300, 2000), (1, 99))))
        yield _in(dtype, KernelCase("reshape_cache", "8B, 1000 tokens", {"kv_heads": 8, "size": 128, "tokens": 1000, "blocks": 2048}))
        yield _in(dtype, KernelCase("qkv_rope_cache", "8B, 1000 tokens", {**LLAMA_8B, "tokens": 1000}))
        yield _in(dtype, KernelCase("qkv_rope_cache", "8B, 1000 tokens, normed", {**LLAMA_8B, "tokens": 1000, "normed": True}))
        yield _in(dtype, KernelCase("add_rms_norm", "8B, 1000 tokens", {"tokens": 1000, "width": 4096}))
        yield _in(dtype, KernelCase("rotary", "8B, 1000 tokens", {"tokens": 1000, "heads": 40, "size": 128}))
        for activation in ("silu", "tanh_gelu"):
            sizes = {"tokens": 1000, "width": 14336, "activation": activation}
            yield _in(dtype, KernelCase("gated", f"8B, 1000 tokens, {activation}", sizes))
        yield _in(dtype, KernelCase("quantise_rows", "8B, 1000 tokens", {"tokens": 1000, "width": 4096}))
        yield _in(dtype, KernelCase("int8_gemm", "8B up, 1000 tokens", {"tokens": 1000, "width": 4096, "out_width": 28672}))
        yield _in(dtype, KernelCase("int8_gemm", "8B up, 3 tokens", {"tokens": 3, "width": 4096, "out_width": 28672}))
    yield from _large_caches()
    yield _decode("8B", 9, 4096, ragged=True, window=1000)
    yield _decode("8B", 9, 4096, ragged=True, softcap=30.0)
    yield _prefill("8B", "8B, 700 behind 1300, window 500", ((700, 1300),), window=500)
    yield _prefill("8B", "8B, 700 behind 1300, soft cap 30", ((700, 1300),), softcap=30.0)


def _large_caches() -> Iterator[KernelCase]:
    """All data lie behind the first 2**31 elements of keys and of values."""
    yield _decode("8B", 9, 1000, ragged=True, spare_blocks=_FAR_BLOCKS)
    yield _prefill("8B", "8B, 300 behind 700, far blocks", ((300, 700),), spare_blocks=_FAR_BLOCKS)
    far = {"spare_blocks": _FAR_BLOCKS}
    yield KernelCase("reshape_cache", "8B, 1000 tokens, far blocks", {"kv_heads": 8, "size": 128, "tokens": 1000, "blocks": 64, **far})
    yield KernelCase("qkv_rope_cache", "8B, 1000 tokens, far blocks", {**LLAMA_8B, "tokens": 1000, **far})


def _exact_correctness() -> Iterator[KernelCase]:
    """In float32, whose tolerance is a thousandth of bfloat16's: a key too many or too few shows."""
    yield _in("float32", _decode("8B", 9, 2048, ragged=True))
    yield _in("float32", _prefill("8B", "8B, 500, 300 behind 1000", ((500, 0), (300, 1000))))
    yield KernelCase("add_rms_norm", "8B, 100 tokens", {"tokens": 100, "width": 4096}, "float32")
    yield KernelCase("gated", "8B, 100 tokens", {"tokens": 100, "width": 14336}, "float32")
    yield KernelCase("qkv_rope_cache", "8B, 100 tokens", {**LLAMA_8B, "tokens": 100}, "float32")
    yield KernelCase("sample", "64 rows of 128256", {"rows": 64, "vocab": 128256}, "float32")
    yield KernelCase("advance", "256 rows", {"rows": 256, "context": 4096}, "int64")


def _in(dtype: str, case: KernelCase) -> KernelCase:
    return KernelCase(case.kernel, case.case, case.sizes, dtype)


def _small_cases() -> list[KernelCase]:
    """Every kernel at sizes for the interpreter."""
    heads = {"heads": 4, "kv_heads": 2, "size": 32}
    plain = [
        ("reshape_cache", {"kv_heads": 2, "size": 32, "tokens": 9, "blocks": 2}),
        ("paged_decode", {**heads, "batch": 3, "context": 40, "ragged": True}),
        ("prefill_attention", {**heads, "chunks": ((20, 0), (5, 17))}),
        ("add_rms_norm", {"tokens": 5, "width": 64}),
        ("rotary", {"tokens": 5, "heads": 4, "size": 32}),
        ("gated", {"tokens": 5, "width": 64}),
        ("qkv_rope_cache", {**heads, "tokens": 9}),
        ("quantise_rows", {"tokens": 5, "width": 64}),
        ("int8_gemm", {"tokens": 5, "width": 64, "out_width": 48}),
    ]
    drawn = KernelCase("sample", "small", {"rows": 3, "vocab": 70}, "float32")
    counted = KernelCase("advance", "small", {"rows": 5, "context": 64}, "int64")
    return [drawn, counted, *(KernelCase(kernel, "small", sizes, "bfloat16") for kernel, sizes in plain)]
