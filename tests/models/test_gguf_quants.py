"""Every block format that llama.cpp's common files use, against a decoder written from its layout (ggml-common.h), one weight at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from hf_gguf import write_hf_gguf
from safetensors.numpy import load_file
from tiny_gguf import CONFIG, tiny_weights, write_gguf

from mqlab.errors import ModelError
from mqlab.models.gguf import convert

Kind = GGMLQuantizationType
Block = np.ndarray
"""uint8."""

WIDE = CONFIG | {"hidden_size": 256, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Rows as long as the blocks of K-quants."""


def half(block: Block, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def nibble(byte: int, high: bool | int) -> int:
    return int(byte) >> 4 if high else int(byte) & 15


def bits(byte: int, shift: int, count: int) -> int:
    return (int(byte) >> shift) & ((1 << count) - 1)


def q4_0(b: Block, i: int) -> float:
    return half(b, 0) * (nibble(b[2 + i % 16], i >= 16) - 8)


def q4_1(b: Block, i: int) -> float:
    return half(b, 0) * nibble(b[4 + i % 16], i >= 16) + half(b, 2)


def q5_0(b: Block, i: int) -> float:
    return half(b, 0) * ((nibble(b[6 + i % 16], i >= 16) | bits(b[2 + i // 8], i % 8, 1) << 4) - 16)


def q5_1(b: Block, i: int) -> float:
    return half(b, 0) * (nibble(b[8 + i % 16], i >= 16) | bits(b[4 + i // 8], i % 8, 1) << 4) + half(b, 2)


def q8_0(b: Block, i: int) -> float:
    return half(b, 0) * int(b[2 + i : 3 + i].view(np.int8)[0])


def q2_k(b: Block, i: int) -> float:
    quant = bits(b[16 + 32 * (i // 128) + i % 32], 2 * (i % 128 // 32), 2)
    scale = b[i // 16]
    return half(b, 80) * nibble(scale, 0) * quant - half(b, 82) * nibble(scale, 1)


def q3_k(b: Block, i: int) -> float:
    mask, quants, scales = b[:32], b[32:96], b[96:108]
    quant = bits(quants[32 * (i // 128) + i % 32], 2 * (i % 128 // 32), 2) - (0 if bits(mask[i % 32], i // 32, 1) else 4)
    group = i // 16
    low, high = nibble(scales[group % 8], group >= 8), bits(scales[8 + group % 4], 2 * (group // 4), 2)
    return half(b, 108) * ((low | high << 4) - 32) * quant


def k_scales(scales: Block, group: int) -> tuple[int, int]:
    """Scale and minimum of one of eight groups, six bits each, in the twelve bytes of Q4_K and Q5_K."""
    if group < 4:
        return bits(scales[group], 0, 6), bits(scales[group + 4], 0, 6)
    return nibble(scales[group + 4], 0) | bits(scales[group - 4], 6, 2) << 4, nibble(scales[group + 4], 1) | bits(scales[group], 6, 2) << 4


def q4_k(b: Block, i: int) -> float:
    scale, minimum = k_scales(b[4:16], i // 32)
    return half(b, 0) * scale * nibble(b[16 + 32 * (i // 64) + i % 32], i // 32 % 2) - half(b, 2) * minimum


def q5_k(b: Block, i: int) -> float:
    scale, minimum = k_scales(b[4:16], i // 32)
    quant = nibble(b[48 + 32 * (i // 64) + i % 32], i // 32 % 2) | bits(b[16 + i % 32], i // 32, 1) << 4
    return half(b, 0) * scale * quant - half(b, 2) * minimum


def q6_k(b: Block, i: int) -> float:
    half_block, part, lane = i // 128, i % 128 // 32, i % 32
    low = nibble(b[64 * half_block + 32 * (part % 2) + lane], part >= 2)
    high = bits(b[128 + 32 * half_block + lane], 2 * part, 2)
    return half(b, 208) * int(b[192 + i // 16 : 193 + i // 16].view(np.int8)[0]) * ((low | high << 4) - 32)


DECODERS: dict[Kind, Callable[[Block, int], float]] = {
    Kind.F16: lambda b, i: half(b, 0),
    Kind.BF16: lambda b, i: float((b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)[0]),
    Kind.Q4_0: q4_0,
    Kind.Q4_1: q4_1,
    Kind.Q5_0: q5_0,
    Kind.Q5_1: q5_1,
    Kind.Q8_0: q8_0,
    Kind.Q2_K: q2_k,
    Kind.Q3_K: q3_k,
    Kind.Q4_K: q4_k,
    Kind.Q5_K: q5_k,
    Kind.Q6_K: q6_k,
}
HALVES = {
    Kind.F16: (0,),
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
}
"""Where a block has float16 numbers; random bytes there would be infinite at times."""


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: every bit random but for the exponents."""
    rng = np.random.default_rng(0)
    size, stride = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // size, stride), np.uint8)
    for at in HALVES.get(kind, ()):
        blocks[:, at : at + 2] = rng.normal(0, 0.1, len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    if kind == Kind.BF16:
        blocks[:, 1] = 0x3D + (blocks[:, 1] & 0x82)
    return blocks.reshape(rows, -1)


def decoded(kind: Kind, data: np.ndarray) -> np.ndarray:
    """float64 [rows, columns], weight by weight."""
    size, stride = GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1, stride)
    return np.array([DECODERS[kind](block, i) for block in blocks for i in range(size)]).reshape(len(data), -1)


def wide_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {name: values.shape for name, values in tiny_weights().items() if "layers.1" not in name}
    sizes = {"hidden": 256, "kv": 128}
    wide = {
        name: tuple(sizes["hidden"] if n == 64 else 8 if n == 96 else sizes["kv"] if n == 32 else n for n in shape)
        for name, shape in shapes.items()
    }
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in wide.items()}


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.name)
def test_blocks_mean_what_their_layout_says(tmp_path: Path, kind: Kind) -> None:
    up, key = random_blocks(kind, 8, 256), random_blocks(kind, 128, 256)
    raw = {"blk.0.ffn_up.weight": (up, kind), "blk.0.attn_k.weight": (key, kind)}
    source = write_hf_gguf(tmp_path / "wide.gguf", "llama", WIDE, wide_weights(), raw=raw)
    convert(source, tmp_path, progress=False)
    got = load_file(tmp_path / "model.safetensors")
    np.testing.assert_allclose(got["model.layers.0.mlp.up_proj.weight"], decoded(kind, up), rtol=1e-6, atol=1e-6)
    stored = [2 * i + half for half in (0, 1) for i in range(64)]  # row r of the one head is stored at stored[r]
    np.testing.assert_allclose(got["model.layers.0.self_attn.k_proj.weight"][:8], decoded(kind, key[stored[:8]]), rtol=1e-6, atol=1e-6)


ROUGH = {Kind.F16: 1e-3, Kind.BF16: 5e-3, Kind.Q8_0: 1e-2, Kind.Q5_1: 0.07, Kind.Q5_0: 0.08, Kind.Q4_1: 0.15, Kind.Q4_0: 0.15}


@pytest.mark.parametrize("kind", ROUGH, ids=lambda kind: kind.name)
def test_quantised_weights_come_back_close(tmp_path: Path, kind: Kind) -> None:
    convert(write_gguf(tmp_path / "tiny.gguf", tiny_weights(), kind=kind), tmp_path, progress=False)
    got = load_file(tmp_path / "model.safetensors")
    for name, values in tiny_weights().items():
        assert np.linalg.norm(got[name] - values) <= ROUGH[kind] * np.linalg.norm(values), name


def readable(kind: Kind) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def test_a_format_that_cannot_be_decoded_is_refused_with_those_that_can(tmp_path: Path) -> None:
    unknown = [kind for kind in Kind if not readable(kind)]
    assert Kind.Q8_K in unknown
    raw = {"blk.0.ffn_up.weight": (random_blocks(Kind.Q8_K, 8, 256), Kind.Q8_K)}
    source = write_hf_gguf(tmp_path / "wide.gguf", "llama", WIDE, wide_weights(), raw=raw)
    with pytest.raises(ModelError, match=r"stores 'blk\.0\.ffn_up\.weight' as Q8_K.*use a file of F32, F16, .*Q4_K.*BF16") as caught:
        convert(source, tmp_path, progress=False)
    assert not any(f" {kind.name}," in str(caught.value).split("use a file of")[1] for kind in unknown)
    assert not (tmp_path / "model.safetensors").exists()
