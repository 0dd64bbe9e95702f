"""Forgetting cached prompts, by the name that README gives it."""

from __future__ import annotations

from pathlib import Path

from small_model import write_small_model

from mqlab import LLM, SamplingParams


def test_after_a_reset_a_prompt_is_new_again(tmp_path: Path, model_folder: Path) -> None:
    prompt, params = list(range(100, 148)), SamplingParams(temperature=0, max_tokens=3)
    with LLM(str(write_small_model(tmp_path / "small", model_folder)), num_threads=1, num_kv_blocks=20) as llm:

        def hits() -> int:
            before = llm.stats().prefix_hits
            llm.generate([prompt], params, use_tqdm=False)
            return llm.stats().prefix_hits - before

        assert (hits(), hits()) == (0, 32)
        llm.reset_prefix_cache()
        assert (hits(), hits()) == (0, 32)
