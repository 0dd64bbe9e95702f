"""What a run of the device bench does, most wanted first: jobs, groups of engines, and what cannot be measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mqlab.bench.compare_options import SYNC
from mqlab.bench.device.engines import Group
from mqlab.bench.device.jobs import (
    BIG_MODEL,
    SMALL_MODEL,
    Job,
    ceiling_jobs,
    correctness_cases,
    kernel_jobs,
    swept_cases,
    timed_cases,
    wanted_cases,
)
from mqlab.bench.device.options import PARTS, DeviceConfig
from mqlab.config import EngineConfig
from mqlab.model.measure.rows import Facts, Skip
from mqlab.topologies import TOPOLOGIES
from mqlab.wire.spec import Spec

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
"""config.json of the model of ``--size small``."""

_NEEDED_GIB = {BIG_MODEL: 26.0, SMALL_MODEL: 7.0}
"""Of an engine here: weights, KV cache, what a step needs, and CUDA's own."""

_STEPS_GIB = {BIG_MODEL: 32.0, SMALL_MODEL: 10.0}
"""Of the engine whose steps are timed, whose KV cache is larger."""

_ROOM = 0.9
_STARTING = 4
_SMALL_S = 30.0

_SEQUENCES = 64
_STEP_SHAPES = ((1, 1024), (_SEQUENCES, 1024))
_STEP_BLOCKS = 4352
_ENGINE_BLOCKS = 2048
_FEW = (SYNC, "v1", "mq")

Item = Job | Group | Skip


def plan(config: DeviceConfig, facts: Facts, tiny: str) -> list[Item]:
    """In the order in which it is run.

    Args:
        tiny: the folder of the model of ``--size small``.
    """
    items = [*(_small(config, facts, tiny) if config.size == "small" else _full(config, facts))]
    unasked = [part for part in PARTS if part not in config.chosen]
    asked = [item for item in items if item.part in config.chosen]
    return [*asked, *(Skip(part, "all of it", "--parts leaves it out") for part in unasked)]


def _full(config: DeviceConfig, facts: Facts) -> Iterator[Item]:
    kind = facts.kind
    yield from ceiling_jobs(kind, small=False)
    yield from kernel_jobs(kind, "kernels", wanted_cases(small=False), small=False)
    yield from kernel_jobs(kind, "correctness", correctness_cases(small=False), small=False)
    yield _steps(facts, BIG_MODEL, eager=False, seconds=45)
    yield from _engines(config, facts, BIG_MODEL, _FEW, seconds=85)
    yield from kernel_jobs(kind, "kernels", timed_cases(small=False), small=False)
    yield from _engines(config, facts, SMALL_MODEL, (SYNC, "v1", *(name for name in TOPOLOGIES if name != "v1")), seconds=100)
    yield _steps(facts, BIG_MODEL, eager=True, seconds=30)
    yield _steps(facts, SMALL_MODEL, eager=False, seconds=25)
    yield _steps(facts, SMALL_MODEL, eager=True, seconds=15)
    yield from kernel_jobs(kind, "sweep", swept_cases(small=False), small=False)


def _steps(facts: Facts, model: str, *, eager: bool, seconds: float) -> Item:
    name = f"{model}, {'eager' if eager else 'graphs and bubbles'}"
    if (short := _no_room(facts, _STEPS_GIB[model])) is not None:
        return Skip("steps", name, short)
    engine = EngineConfig(
        **_common(model, facts),
        max_model_len=4096,
        max_num_batched_tokens=8192,
        num_kv_blocks=_STEP_BLOCKS,
        cuda_graph_sizes=(1, _SEQUENCES),
        enforce_eager=eager,
    )
    return _steps_job(name, engine, _STEP_SHAPES, runs=30, output_len=96, seconds=seconds)


def _steps_job(name: str, engine: EngineConfig, shapes: Sequence[tuple[int, int]], runs: int, output_len: int, seconds: float) -> Job:
    given = {"engine": engine, "shapes": shapes, "runs": runs}
    if engine.enforce_eager:
        return Job("steps", name, seconds, Spec("mqlab.bench.device.steps:steps", given))
    return Job("steps", name, seconds, Spec("mqlab.bench.device.steps:steps_and_bubbles", {**given, "output_len": output_len}))


def _engines(config: DeviceConfig, facts: Facts, model: str, layouts: Sequence[str], seconds: float) -> Iterator[Item]:
    """As many of them as the device has room for at once."""
    room = int(facts.free_gib * _ROOM / _NEEDED_GIB[model])
    engine = EngineConfig(
        **_common(model, facts),
        max_model_len=1024,
        max_num_batched_tokens=4096,
        num_kv_blocks=_ENGINE_BLOCKS,
        cuda_graph_sizes=(1, 2, 4, 8, 16, 32, 48, _SEQUENCES),
    )
    if room:
        yield Group(
            name=f"{model}: {', '.join(layouts[:room])}",
            engine=engine,
            layouts=tuple(layouts[:room]),
            num_prompts=2 * _SEQUENCES,
            input_len=128,
            output_len=128,
            rounds=config.rounds,
            seed=config.seed,
            starting=_STARTING,
            seconds=seconds,
        )
    for layout in layouts[room:]:
        yield Skip("engines", f"{model}: {layout}", f"{room} engines of {_NEEDED_GIB[model]:.0f} GiB are what the device has room for")


def _no_room(facts: Facts, gib: float) -> str | None:
    return None if facts.free_gib * _ROOM >= gib else f"needs {gib:.0f} GiB, of which the device has {facts.free_gib:.0f} free"


def _common(model: str, facts: Facts) -> dict[str, Any]:
    """Of every engine here."""
    return {
        "model": model,
        "load_format": "dummy",
        "device": facts.kind,
        "attention_backend": "auto" if facts.kind == "cuda" else "torch",
        "max_num_seqs": _SEQUENCES,
        "enable_prefix_caching": False,
        "log_stats_interval": 0.0,
    }


def _small(config: DeviceConfig, facts: Facts, tiny: str) -> Iterator[Item]:
    """The same in little: every kind of job, few of each."""
    kind = facts.kind
    engine = EngineConfig(
        **{**_common(tiny, facts), "max_num_seqs": 4},
        served_model_name="tiny",
        max_model_len=128,
        max_num_batched_tokens=64,
        num_kv_blocks=64,
        cuda_graph_sizes=(1, 4),
        num_threads=1,
    )
    yield from ceiling_jobs(kind, small=True)
    yield from kernel_jobs(kind, "kernels", wanted_cases(small=True), small=True)
    yield from kernel_jobs(kind, "correctness", correctness_cases(small=True), small=True)
    for eager in (False, True):
        name = f"tiny, {'eager' if eager else 'graphs and bubbles'}"
        yield _steps_job(name, replace(engine, enforce_eager=eager), ((1, 32), (4, 32)), runs=3, output_len=8, seconds=_SMALL_S)
    yield Group(
        name=f"tiny: {SYNC}, v1",
        engine=engine,
        layouts=(SYNC, "v1"),
        num_prompts=6,
        input_len=16,
        output_len=8,
        rounds=config.rounds,
        seed=config.seed,
        starting=_STARTING,
        seconds=_SMALL_S,
    )
    yield from kernel_jobs(kind, "kernels", timed_cases(small=True), small=True)
    yield from kernel_jobs(kind, "sweep", swept_cases(small=True), small=True)
