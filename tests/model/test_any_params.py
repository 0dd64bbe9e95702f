"""Whatever sampling parameters are in range, a small model gives an answer or an error for that request alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from checksum import drain
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.errors import InvalidRequest
from mqlab.model.load import build
from mqlab.types import Pooling, Request, SamplingParams

VOCAB = 97
TOKENS = st.integers(0, VOCAB)
ODD = {
    "temperature": [0, 1e-300, 9e-6, 1e-5, 1e-4, 1, 2],
    "top_p": [5e-324, 1e-6, 0.5, 1],
    "top_k": [-1, 0, 1, VOCAB, VOCAB + 5, 2**31 - 1],
    "min_p": [0, 5e-324, 1],
    "presence_penalty": [-2, 0, 2],
    "frequency_penalty": [-2, 0, 2],
    "repetition_penalty": [5e-324, 1e-30, 1, 1e300],
    "seed": [-(2**63), 0, 2**63 - 1, None],
    "max_tokens": [0, 1, 6],
    "ignore_eos": [True, False],
    "logprobs": [None, 0, 3, -1],
    "prompt_logprobs": [None, 0, 3, -1],
}


@st.composite
def odd_params(draw: st.DrawFn) -> SamplingParams:
    fields: dict[str, Any] = {name: draw(st.sampled_from(values)) for name, values in ODD.items()}
    fields["min_tokens"] = draw(st.integers(0, fields["max_tokens"]))
    fields["logit_bias"] = draw(st.dictionaries(TOKENS, st.sampled_from([-100.0, -1e-300, 5.0, 100.0]), max_size=VOCAB))
    fields["allowed_token_ids"] = draw(st.none() | st.lists(TOKENS, min_size=1, max_size=4).map(tuple))
    fields["bad_word_ids"] = draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=5).map(tuple))
    fields["stop_token_ids"] = draw(st.lists(TOKENS, max_size=3).map(tuple))
    return SamplingParams(**fields)


def test_any_parameters_beside_a_neighbour(make_model: Callable[..., Any], tmp_path: Path) -> None:
    make_model("Llama", num_hidden_layers=1)
    engine = EngineConfig(model=str(tmp_path), dtype="float32", num_kv_blocks=40, num_threads=1, max_logprobs=-1)
    runner = build(engine)
    neighbour = Request("neighbour", [4, 5], SamplingParams(seed=3, max_tokens=6, ignore_eos=True))
    core = EngineCore(runner, engine, ManualClock())
    core.add(neighbour)
    alone = drain(core).answers[0, "neighbour"]

    @settings(deadline=None, max_examples=60)
    @given(odd_params(), st.none() | st.builds(Pooling, st.sampled_from(["mean", "last", "cls"])))
    def ask(params: SamplingParams, pooling: Pooling | None) -> None:
        core = EngineCore(runner, engine, ManualClock())
        core.add(neighbour)
        asked = Request("odd", [1, 2, 3], params, pooling=pooling)
        try:
            core.add(asked)
        except InvalidRequest:
            asked = neighbour
        answers = drain(core).answers
        assert answers[0, "neighbour"] == alone
        assert answers[0, asked.id].finish in ("stop", "length", "error")
        assert set(answers[0, asked.id].tokens) <= set(params.allowed_token_ids or range(VOCAB)) or asked is neighbour

    ask()
    runner.close()
