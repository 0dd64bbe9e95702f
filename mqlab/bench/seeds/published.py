"""The experiments: one for each figure of the four documents, with what each reported.

What all have in common with the systems measured there: 256 sequences at most in a step (vLLM's default), no prefix cache (off by
default in V0, turned off by hand in V1), greedy answers of given lengths. The historical arms send what those systems sent: pickled
cumulative outputs with the text that the engine made. ``aio`` and ``sync`` send nothing, so there codec and output say nothing; that
those systems made cumulative outputs in one process, too, is left out of both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqlab.bench.seeds.experiment import Claim, Experiment, SeedArm, Wanted
from mqlab.topologies import TOPOLOGIES

LLAMA = "sim:llama-3.1-8b@h100"
PYTHIA = "sim:pythia-70m@h100"
ECHO = "echo:smollm2-135m"

_PR_8157 = "vLLM PR 8157: Llama-3.1-8B-Instruct, one H100, ShareGPT, served over HTTP"
_SONAR_1056 = "Aphrodite's MQ engine (sonar PR 1056): pythia-70m, 2,000 prompts, 128/128"
_PR_11636 = "vLLM PR 11636: Llama 8B, H100, sonnet 250/200"
_PR_7394 = "vLLM PR 7394: Llama-3-8B, H100, sonnet 550/150, 10 requests/s"

_ENGINE: dict[str, Any] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 8192,
    "enable_prefix_caching": False,
    "log_stats_interval": 0.0,
}
_SHAREGPT: dict[str, Any] = {"lengths": "sharegpt", "num_prompts": 448}
_SHORT: dict[str, Any] = {"num_prompts": 48, "input_len": 64, "output_len": 24}
_HISTORICAL: dict[str, Any] = {"preset": "historical", "codec": "pickle", "output": "cumulative", "detokenize": "engine"}
_AT_ONCE: dict[str, Any] = {"num_scheduler_steps": 8, "multi_step_stream_outputs": False}
_STREAMED: dict[str, Any] = {"num_scheduler_steps": 8, "multi_step_stream_outputs": True}

_SINGLE_GAIN = "mq_over_aio_single: mq / aio (output_tokens_per_s)"
_SHOWN = Wanted(text="shown")
_NEARLY_ALL = Wanted(text="≥ 0.95", low=0.95)


def _over_http(experiment: Experiment, arms: tuple[str, ...]) -> Experiment:
    """The same through the server."""
    chosen = tuple(replace(arm, http=True) for arm in experiment.arms if arm.label in arms)
    claims = tuple(_claimed_over_http(claim) for claim in experiment.claims if claim.over in arms)
    question = f"over HTTP, with the load from a process of its own: {experiment.question}"
    return replace(experiment, name=f"{experiment.name}_http", question=question, arms=chosen, claims=claims)


def _claimed_over_http(claim: Claim) -> Claim:
    """What it is held against was measured over HTTP, too."""
    name, colon, figure = (claim.wanted.below or "").partition(": ")
    return replace(claim, wanted=replace(claim.wanted, below=f"{name}_http: {figure}")) if colon else claim


_SINGLE = Experiment(
    name="mq_over_aio_single",
    question="what does taking the engine off the front's event loop gain, step by step?",
    model=LLAMA,
    engine=_ENGINE,
    workload=_SHAREGPT,
    quick=_SHORT,
    arms=(SeedArm(label="aio", topology="aio", **_HISTORICAL), SeedArm(label="mq", topology="mq", **_HISTORICAL)),
    claims=(
        Claim(
            over="mq",
            under="aio",
            published="33.3 / 25.2 requests/s = 1.32",
            ratio=33.3 / 25.2,
            source=_PR_8157,
            wanted=Wanted(text="≥ 1.15", low=1.15),
        ),
        Claim(over="mq", under="aio", metric="output_tokens_per_s", source="the whole run, as multi-step is measured", wanted=_SHOWN),
    ),
)

_MULTI = replace(
    _SINGLE,
    name="mq_over_aio_multi",
    question="and with eight steps to a schedule?",
    workload={**_SHAREGPT, "num_prompts": 320},
    metric="output_tokens_per_s",  # a window of a few seconds begins and ends within bursts of eight tokens
    arms=(
        SeedArm(label="aio", topology="aio", engine=_AT_ONCE, **_HISTORICAL),
        SeedArm(label="mq", topology="mq", engine=_AT_ONCE, **_HISTORICAL),
        SeedArm(label="aio streamed", topology="aio", engine=_STREAMED, **_HISTORICAL),
        SeedArm(label="mq streamed", topology="mq", engine=_STREAMED, **_HISTORICAL),
    ),
    claims=(
        Claim(
            over="mq",
            under="aio",
            published="42.3 / 39.3 requests/s = 1.08",
            ratio=42.3 / 39.3,
            source=f"{_PR_8157}; one message for all tokens of a schedule",
            wanted=Wanted(text="below the gain of single steps", below=_SINGLE_GAIN),
        ),
        Claim(over="mq streamed", under="aio streamed", source="not published: a message for each token", wanted=_SHOWN),
    ),
)

_PYTHIA = Experiment(
    name="pythia",
    question="how much of a synchronous engine is left behind an event loop, and behind a queue, where a step takes no time?",
    model=PYTHIA,
    engine={**_ENGINE, "max_model_len": 512},
    workload={"num_prompts": 2000, "input_len": 128, "output_len": 128},
    quick=_SHORT,
    rounds=7,
    metric="output_tokens_per_s",
    arms=(
        SeedArm(label="sync", topology="sync"),
        SeedArm(label="aio historical", topology="aio", **_HISTORICAL),
        SeedArm(label="mq historical", topology="mq", **_HISTORICAL),
        SeedArm(label="aio best", topology="aio"),
        SeedArm(label="mq best", topology="mq"),
        SeedArm(label="v1 best", topology="v1"),
    ),
    claims=(
        Claim(
            over="mq historical",
            under="sync",
            published="53.3 / 66.5 requests/s = 0.80",
            ratio=53.3 / 66.5,
            source=_SONAR_1056,
            wanted=Wanted(text="near 0.80 (0.65 to 0.95)", low=0.65, high=0.95),
        ),
        Claim(
            over="aio historical",
            under="sync",
            published="25.3 / 66.5 requests/s = 0.38",
            ratio=25.3 / 66.5,
            source=_SONAR_1056,
            wanted=Wanted(text="near 0.38 (0.25 to 0.55)", low=0.25, high=0.55),
        ),
        Claim(over="v1 best", under="sync", wanted=_NEARLY_ALL),
        Claim(over="mq best", under="sync", wanted=_NEARLY_ALL),
        Claim(over="aio best", under="sync", wanted=_NEARLY_ALL),
    ),
)

_THREE = Experiment(
    name="three_over_two",
    question="does a process for detokenising help?",
    model=LLAMA,
    engine=_ENGINE,
    workload={"lengths": "sonnet", "num_prompts": 512, "input_len": 250, "output_len": 200},
    quick=_SHORT,
    rounds=7,
    metric="output_tokens_per_s",
    arms=(SeedArm(label="2 processes", topology="v1"), SeedArm(label="3 processes", topology="detok_chain", detokenize="process")),
    claims=(
        Claim(
            over="3 processes",
            under="2 processes",
            published="54.05 / 55.99 requests/s = 0.965",
            ratio=54.05 / 55.99,
            source=_PR_11636,
            wanted=Wanted(text="< 1, with its interval", high=1.0, whole=True),
        ),
    ),
)

_FASTER = Wanted(text="the same direction: < 1", high=1.0, whole=True)
_PROXY = Experiment(
    name="proxy",
    question="what does one socket for all requests gain over one for each, and over an engine in the server's process?",
    model=LLAMA,
    engine=_ENGINE,
    workload={"lengths": "sonnet", "num_prompts": 60, "rate": 10.0},
    quick={"num_prompts": 12, "output_len": 24},
    metric="tpot_ms",
    arms=(
        SeedArm(label="rpc", topology="rpc", **_HISTORICAL),
        SeedArm(label="rpc_proxy", topology="rpc_proxy", **_HISTORICAL),
        SeedArm(label="aio", topology="aio", **_HISTORICAL),
    ),
    claims=(
        Claim(over="rpc_proxy", under="rpc", published="49.0 / 51.4 ms = 0.95", ratio=49.0 / 51.4, source=_PR_7394, wanted=_FASTER),
        Claim(over="rpc_proxy", under="aio", published="49.0 / 72.3 ms = 0.68", ratio=49.0 / 72.3, source=_PR_7394, wanted=_FASTER),
    ),
)

_V1 = Experiment(
    name="v1_over_sync",
    question="how near is the best layout to an engine that nothing stands in front of?",
    model=LLAMA,
    engine=_ENGINE,
    workload=_SHAREGPT,
    quick=_SHORT,
    arms=(SeedArm(label="sync", topology="sync"), SeedArm(label="v1", topology="v1")),
    claims=(
        Claim(
            over="v1",
            under="sync",
            published="within 3 %",
            source=_PR_11636,
            wanted=Wanted(text="≥ 0.98", low=0.98),
        ),
    ),
)

_MEMORY = Experiment(
    name="memory",
    question="what does the second process cost in memory?",
    model=LLAMA,
    engine=_ENGINE,
    workload={"lengths": "sharegpt", "num_prompts": 128, "output_len": 64, "alone": True},
    quick=_SHORT,
    probes=False,
    metric="memory_mb",
    arms=(SeedArm(label="aio", topology="aio", **_HISTORICAL), SeedArm(label="mq", topology="mq", **_HISTORICAL)),
    claims=(
        Claim(over="mq", under="aio", published="“close”", source="vLLM PR 7394", wanted=_SHOWN),
        Claim(over="mq", wanted=_SHOWN),
        Claim(over="aio", wanted=_SHOWN),
    ),
)

_CEILING = Experiment(
    name="ceiling",
    question="how many tokens go through a layout when the device takes no time?",
    model=ECHO,
    engine=_ENGINE,
    workload={"num_prompts": 256, "input_len": 128, "output_len": 256},
    quick={"output_len": 16},
    probes=False,
    one_each=True,
    metric="output_tokens_per_s",
    arms=tuple(SeedArm(label=name, topology=name, detokenize="process" if name.startswith("detok_") else "front") for name in TOPOLOGIES),
    claims=tuple(
        Claim(over=name, wanted=Wanted(text="≥ 100,000 tokens/s", low=100_000) if name == "v1" else _SHOWN) for name in TOPOLOGIES
    ),
)

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        _SINGLE,
        _over_http(_SINGLE, ("aio", "mq")),
        _MULTI,
        _over_http(_MULTI, ("aio", "mq")),
        _PYTHIA,
        _THREE,
        _over_http(_THREE, ("2 processes", "3 processes")),
        _PROXY,
        _over_http(_PROXY, ("rpc", "rpc_proxy", "aio")),
        _V1,
        _MEMORY,
        _CEILING,
    )
}
"""By name, in the order in which they run."""
