"""Flags of vLLM and SGLang that mqlab spells otherwise, or has no use for: accepted where they ask for what is so anyway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

_BARE = ("",)
_ALIKE = 0.75
_SHOWN = 3


@dataclass(frozen=True)
class Foreign:
    """A flag of another program.

    Attributes:
        why: what a user is told where it cannot be had.
        fine: values that ask for what is so anyway; the empty one stands for the flag without a value.
    """

    why: str
    fine: tuple[str, ...] = ()

    def take_value(self, rest: list[str]) -> str:
        """The value of the flag, where it has one: taken off the arguments behind it."""
        return rest.pop(0) if rest and self.fine != _BARE and not rest[0].startswith("--") else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` with names that begin like this one, or are much like it; empty where there are none."""
    names = list(known)
    begin = [one for one in names if len(name) > len("--x") and one.startswith(name)]
    found = begin[:_SHOWN] or get_close_matches(name, names, n=1, cutoff=_ALIKE)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _named(ours: str) -> Foreign:
    return Foreign(f"here it is {ours}")


_ONE_MODEL = Foreign("an engine is one copy of a model, over as many GPUs as --tensor-parallel-size says", ("1",))
_NO_LORA = Foreign("there are no adapters; merge them into the model's weights")
_GRAPHS = _named("--enforce-eager, --cuda-graph-sizes and --torch-compile")
_NO_REVISIONS = Foreign("a model is what its folder holds; pass the folder of that revision")
_NO_ROPE = Foreign("the model's config.json says it")
_NO_MEDIA = Foreign("models read text only")
_NO_TRACES = Foreign("what happened is recorded anyway; 'mqlab trace' shows it")

_VLLM: dict[str, Foreign] = {
    "--model": Foreign("the model is given without a flag: mqlab serve MODEL"),
    "--speculative-config": _named("--num-speculative-tokens N with --prompt-lookup-max N and --prompt-lookup-min N (n-gram lookup only)"),
    "--speculative-model": _named("--num-speculative-tokens N (n-gram lookup only)"),
    "--ngram-prompt-lookup-max": _named("--prompt-lookup-max"),
    "--ngram-prompt-lookup-min": _named("--prompt-lookup-min"),
    "--num-gpu-blocks-override": _named("--num-kv-blocks"),
    "--kv-cache-memory-bytes": _named("--kv-cache-gb"),
    "--generation-config": Foreign("what a request leaves out has OpenAI's default; leave the flag out", ("vllm",)),
    "--spec-tokens": _named("--num-speculative-tokens"),
    "--spec-method": Foreign("n-gram lookup is the only one; --num-speculative-tokens turns it on", ("ngram",)),
    "--max-num-queued-reqs": _named("--max-pending"),
    "--shutdown-timeout": _named("--drain-timeout"),
    "--enable-sleep-mode": _named("--enable-control, which serves /sleep and /wake_up"),
    "--structured-outputs-config": Foreign("llguidance does it; leave it out"),
    "--data-parallel-size-local": _ONE_MODEL,
    "--prefill-context-parallel-size": _ONE_MODEL,
    "--nnodes": _named("torchrun --nnodes N … -m mqlab serve"),
    "--max-loras": _NO_LORA,
    "--max-lora-rank": _NO_LORA,
    "--optimization-level": _GRAPHS,
    "--profiler-config": Foreign("'mqlab profile' and /start_profile (with --enable-control) take no preparation; leave it out"),
    "--trust-remote-code": Foreign("no code out of a model's folder is run; leave it out", _BARE),
    "--use-v2-block-manager": Foreign("there is one block manager", _BARE),
    "--enable-auto-tool-choice": Foreign("it is on", _BARE),
    "--disable-uvicorn-access-log": Foreign("there is no access log", _BARE),
    "--disable-fastapi-docs": Foreign("there are none", _BARE),
    "--no-enable-log-requests": Foreign("requests are never logged", _BARE),
    "--no-enable-lora": Foreign("there are no adapters", _BARE),
    "--disable-custom-all-reduce": Foreign("NCCL does it", _BARE),
    "--enable-prompt-tokens-details": Foreign("they are always told", _BARE),
    "--enable-server-load-tracking": Foreign("it is always on", _BARE),
    "--enable-log-requests": Foreign("requests are never logged; 'mqlab trace' shows what became of each"),
    "--max-log-len": Foreign("requests are never logged"),
    "-pp": _ONE_MODEL,
    "-dp": _ONE_MODEL,
    "--pipeline-parallel-size": _ONE_MODEL,
    "--data-parallel-size": _ONE_MODEL,
    "--decode-context-parallel-size": _ONE_MODEL,
    "--enable-expert-parallel": _ONE_MODEL,
    "--distributed-executor-backend": Foreign("each GPU has a process, and torchrun starts those of several hosts", ("uni", "mp")),
    "--swap-space": Foreign("requests that are preempted are computed again; leave it out", ("0",)),
    "--cpu-offload-gb": Foreign("the weights are in the host's memory", ("0",)),
    "--preemption-mode": Foreign("requests that are preempted are computed again", ("recompute",)),
    "--kv-cache-dtype": Foreign("keys and values have the type of --dtype", ("auto",)),
    "--tokenizer": Foreign("a model's folder holds its tokenizer; another one goes into the folder as tokenizer.json"),
    "--tokenizer-mode": Foreign("there is one kind", ("auto",)),
    "--skip-tokenizer-init": Foreign("a server speaks text"),
    "--response-role": Foreign("answers are the assistant's", ("assistant",)),
    "--runner": Foreign("models generate, and embed by the way", ("auto", "generate")),
    "--task": Foreign("models generate, and embed by the way", ("auto", "generate")),
    "--stream-interval": Foreign("each token is streamed when it is there", ("1",)),
    "--max-num-partial-prefills": Foreign("the token budget says how many there are", ("1",)),
    "--guided-decoding-backend": Foreign("llguidance does it", ("auto", "guidance")),
    "--structured-outputs-config.backend": Foreign("llguidance does it", ("auto", "guidance")),
    "--uvicorn-log-level": Foreign("the server writes its own few lines", ("info", "warning", "error", "critical")),
    "--revision": _NO_REVISIONS,
    "--code-revision": _NO_REVISIONS,
    "--tokenizer-revision": _NO_REVISIONS,
    "--hf-overrides": _NO_ROPE,
    "--rope-scaling": _NO_ROPE,
    "--rope-theta": _NO_ROPE,
    "--enable-lora": _NO_LORA,
    "--lora-modules": _NO_LORA,
    "--compilation-config": _GRAPHS,
    "--max-seq-len-to-capture": Foreign("a graph holds any context; leave it out"),
    "--cudagraph-capture-sizes": _named("--cuda-graph-sizes"),
    "--limit-mm-per-prompt": _NO_MEDIA,
    "--allowed-local-media-path": _NO_MEDIA,
    "--otlp-traces-endpoint": _NO_TRACES,
    "--collect-detailed-traces": _NO_TRACES,
    "--reasoning-parser": Foreign("what a model thinks is part of its text"),
    "--kv-transfer-config": Foreign("a KV cache stays in its engine"),
    "--headless": Foreign("engine and front start together; --topology says how they are laid out"),
    "--config": Foreign("settings are flags; keep a command line in a script"),
    "--root-path": Foreign("let the proxy in front strip the path"),
    "--middleware": Foreign("a server of your own: mqlab.server.app.build_app gives an ASGI app"),
}
_SGLANG: dict[str, Foreign] = {
    "--model-path": _VLLM["--model"],
    "--mem-fraction-static": _named("--gpu-memory-utilization, or --kv-cache-gb"),
    "--max-running-requests": _named("--max-num-seqs"),
    "--chunked-prefill-size": _named("--max-num-batched-tokens"),
    "--max-prefill-tokens": _named("--max-num-batched-tokens"),
    "--context-length": _named("--max-model-len"),
    "--schedule-policy": _named("--scheduling-policy"),
    "--num-continuous-decode-steps": _named("--num-scheduler-steps"),
    "--disable-radix-cache": _named("--no-enable-prefix-caching"),
    "--disable-overlap-schedule": Foreign("it is off unless --async-scheduling asks for it; leave it out", _BARE),
    "--disable-cuda-graph": _named("--enforce-eager"),
    "--cuda-graph-bs": _named("--cuda-graph-sizes"),
    "--cuda-graph-max-bs": _named("--cuda-graph-sizes"),
    "--enable-torch-compile": _named("--torch-compile"),
    "--page-size": _named("--block-size"),
    "--random-seed": _named("--seed"),
    "--max-queued-requests": _named("--max-pending"),
    "--tokenizer-worker-num": _named("--api-server-count"),
    "--decode-log-interval": _named("--log-stats-interval, in seconds"),
    "--dp-size": _ONE_MODEL,
}
ENGINE_FLAGS: Mapping[str, Foreign] = _VLLM | _SGLANG
"""By the flag as it is spelt there, of commands that start an engine. vLLM 0.5 to 0.32, SGLang 0.5."""
