"""The GPU's sampler, in the interpreter, and its float64 reference: token by token what the CPU draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels import sample as module
from mqlab_kernels.kernel import Config
from mqlab_kernels.sample import INFINITE, MASKED, NOT_A_NUMBER, sample, sample_reference
from sampling import chunk, random_logits
from torch import Tensor

from mqlab.model.sampler import Sampler


@dataclass(frozen=True)
class Batch:
    """S rows and their parameters: [S] each."""

    logits: Tensor
    temperatures: np.ndarray
    top_ks: np.ndarray
    top_ps: np.ndarray
    min_ps: np.ndarray
    seeds: np.ndarray
    indices: np.ndarray

    @staticmethod
    def of(logits: Tensor, seed: int = 0, **given: Any) -> Batch:
        """Parameters drawn by chance, but for those that are given, one for all rows or one a row."""
        (rows, vocab), rng = logits.shape, np.random.default_rng(seed)
        some = {
            "temperatures": rng.choice([0, 0.3, 0.7, 1, 2], rows),
            "top_ks": rng.choice([-1, 0, 1, 5, 40, vocab // 2, vocab - 1, vocab + 9], rows),
            "top_ps": rng.choice([1, 0.95, 0.5, 0.1], rows),
            "min_ps": rng.choice([0, 0, 0.05, 0.3], rows),
            "seeds": rng.integers(2**63, size=rows),
            "indices": rng.integers(5000, size=rows),
        }
        kinds = {name: values.dtype for name, values in some.items()}
        wide = {name: np.broadcast_to(np.asarray(value, kinds[name]), (rows,)).copy() for name, value in given.items()}
        return Batch(logits, **(some | wide))

    def arguments(self, ratio: torch.dtype = torch.float64, count: torch.dtype = torch.int64) -> tuple[Tensor, ...]:
        """Of ``sample``."""
        temperatures, top_ps, min_ps = (torch.from_numpy(one).to(ratio) for one in (self.temperatures, self.top_ps, self.min_ps))
        top_ks, seeds, indices = (torch.from_numpy(one) for one in (self.top_ks, self.seeds, self.indices))
        return self.logits, temperatures, top_ks.to(count), top_ps, min_ps, seeds, indices

    def on_the_cpu(self) -> list[int]:
        """What the CPU's sampler draws."""
        names = ("temperature", "top_k", "top_p", "min_p")
        params = zip(self.temperatures.tolist(), self.top_ks.tolist(), self.top_ps.tolist(), self.min_ps.tolist(), strict=True)
        noise = zip(self.seeds.tolist(), self.indices.tolist(), strict=True)
        chunks = [chunk(*own, **dict(zip(names, values, strict=True))) for own, values in zip(noise, params, strict=True)]
        return list(Sampler()(self.logits.clone(), tuple(chunks)).tokens)

    def shaken(self) -> list[set[int]]:
        """For each row the tokens that rounding may choose: what the reference draws of weights and shares that are off by 1e-5."""
        outcomes: list[set[int]] = [set() for _ in self.seeds]
        for heat in (1 - 1e-6, 1, 1 + 1e-6):
            for share in (1 - 1e-5, 1, 1 + 1e-5):
                shares = np.where(self.top_ps < 1, self.top_ps * share, 1)
                off = replace(self, temperatures=self.temperatures * heat, top_ps=shares, min_ps=self.min_ps * share)
                for own, token in zip(outcomes, sample_reference(*off.arguments()).tolist(), strict=True):
                    own.add(token)
        return outcomes


def check(batch: Batch, tokens: Tensor, expected: list[int]) -> None:
    """They are the same, but where rounding decides."""
    got = tokens.tolist()
    if got != expected:
        wrong = [row for row, both in enumerate(zip(got, expected, strict=True)) if not set(both) <= batch.shaken()[row]]
        assert not wrong, [(row, got[row], expected[row]) for row in wrong]
        assert sum(a != b for a, b in zip(got, expected, strict=True)) <= 1 + len(got) // 100


@pytest.mark.parametrize("step", [0, 0.25])
@pytest.mark.parametrize("vocab", [1, 20, 64, 300])
def test_the_reference_draws_what_the_cpu_draws(vocab: int, step: float) -> None:
    """Logits in steps have many ties."""
    batch = Batch.of(stepped(random_logits(150, vocab), step))
    check(batch, sample_reference(*batch.arguments()), batch.on_the_cpu())


def stepped(logits: Tensor, step: float) -> Tensor:
    return (logits / step).round() * step if step else logits


@pytest.mark.parametrize(("rows", "vocab", "step"), [(6, 20, 0), (8, 300, 0.25), (6, 1000, 0)])
def test_the_kernel_draws_what_the_cpu_draws(rows: int, vocab: int, step: float) -> None:
    batch = Batch.of(stepped(random_logits(rows, vocab), step), seed=1)
    check(batch, sample(*batch.arguments()), batch.on_the_cpu())


def test_rows_of_several_spans_and_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than a program looks at at once, and more that hold a token of top_k: in small, by a config for it."""
    monkeypatch.setattr(module, "choose_draw", lambda *_: Config(constants={"TILE": 16, "SPAN": 32}))
    kinds = {"temperatures": [0, 1.5, 1, 1], "top_ks": [0, 0, 900, 2500], "top_ps": [1, 0.2, 0.9, 1], "min_ps": [0, 0, 0, 0]}
    batch = Batch.of(stepped(random_logits(4, 5001), 0.0625), **kinds)
    check(batch, sample(*batch.arguments()), batch.on_the_cpu())


@pytest.mark.full
@settings(deadline=None, max_examples=60)
@given(vocab=st.integers(1, 2000), seed=st.integers(0, 2**32), step=st.sampled_from([0, 0.03125, 0.5, 4]))
def test_the_kernel_draws_what_the_cpu_draws_at_any_size(vocab: int, seed: int, step: float) -> None:
    batch = Batch.of(stepped(random_logits(8, vocab, seed=seed), step), seed)
    check(batch, sample(*batch.arguments()), batch.on_the_cpu())


@pytest.mark.full
@settings(deadline=None, max_examples=40)
@given(vocab=st.integers(1, 2000), seed=st.integers(0, 2**32), dtype=st.sampled_from([torch.bfloat16, torch.float16]))
def test_the_kernel_draws_what_the_cpu_draws_of_half_precision_at_any_size(vocab: int, seed: int, dtype: torch.dtype) -> None:
    batch = Batch.of(random_logits(8, vocab, seed=seed).to(dtype), seed)
    check(batch, sample(*batch.arguments()), replace(batch, logits=batch.logits.float()).on_the_cpu())


@pytest.mark.full
@pytest.mark.parametrize("vocab", [32_000, 128_256, 151_936, 262_144])
def test_the_kernel_draws_what_the_cpu_draws_of_real_vocabularies(vocab: int) -> None:
    """Logits as bfloat16 heads give them, which are full of ties, and as float32 ones do."""
    for logits in (random_logits(8, vocab).bfloat16().float(), 3 * random_logits(8, vocab, seed=1)):
        batch = Batch.of(logits)
        check(batch, sample(*batch.arguments()), batch.on_the_cpu())


@pytest.mark.full
@pytest.mark.parametrize("surveying", module.SURVEY_SWEEP, ids=str)
@pytest.mark.parametrize("drawing", module.DRAW_SWEEP, ids=str)
def test_every_config_draws_the_same(surveying: Any, drawing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_survey", lambda *_: surveying)
    monkeypatch.setattr(module, "choose_draw", lambda *_: drawing)
    batch = Batch.of(stepped(random_logits(10, 9000), 0.125))
    check(batch, sample(*batch.arguments()), batch.on_the_cpu())


def test_single_precision_parameters_do_as_well() -> None:
    batch = Batch.of(random_logits(5, 200), seed=3)
    check(batch, sample(*batch.arguments(torch.float32, torch.int32)), batch.on_the_cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_drawn_from_as_they_are(dtype: torch.dtype) -> None:
    batch = Batch.of(random_logits(3, 131).to(dtype), temperatures=[0, 1, 0.7], top_ks=[0, 0, 20], top_ps=[1, 0.9, 1], min_ps=0.02)
    expected = replace(batch, logits=batch.logits.float()).on_the_cpu()
    check(batch, sample(*batch.arguments()), expected)
    check(batch, sample_reference(*batch.arguments()), expected)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("sampler", [sample, sample_reference])
def test_small_values_mean_the_likeliest(sampler: Any) -> None:
    """Also where differences of logits overflow a float32's exponent."""
    logits = random_logits(1, 130)[0]
    kinds = {"temperatures": [1e-5, 1, 1, 2], "top_ks": [0, 1, 0, 0], "top_ps": [1, 1, 1e-300, 1], "min_ps": [0, 0, 0, 1]}
    for spread in (1.0, 1e37):
        batch = Batch.of((spread * logits).expand(4, -1), **kinds)
        assert sampler(*batch.arguments()).tolist() == [int(logits.argmax())] * 4


@pytest.mark.parametrize("sampler", [sample, sample_reference])
def test_rows_without_a_largest_logit_say_why(sampler: Any) -> None:
    """Wherever what is broken stands, and whatever is asked."""
    logits = random_logits(5, 150)
    logits[0, 70], logits[1, 149], logits[2], logits[3, 64:] = math.nan, math.inf, -math.inf, -math.inf
    for kinds in ({"temperatures": 0}, {"temperatures": 1, "top_ks": 5, "top_ps": 0.5, "min_ps": 0.1}):
        batch = Batch.of(logits, **kinds)
        tokens = sampler(*batch.arguments()).tolist()
        assert tokens[:3] == [NOT_A_NUMBER, INFINITE, MASKED]
        assert tokens[3:] == replace(batch, logits=logits.where(logits > -math.inf, -1e30).nan_to_num(0)).on_the_cpu()[3:]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, 150)
    logits[0, [70, 71, 140]] = 3.0
    logits[1] = -0.0
    assert sample(*Batch.of(logits, temperatures=0).arguments()).tolist() == [70, 0]


def test_nothing_outside_of_a_row_is_read_or_written() -> None:
    """Rows lie among others that are not numbers, and so does what is written."""
    wide, out = torch.full((4, 400), math.nan), torch.full((6,), 7)
    batch = Batch.of(random_logits(2, 131), temperatures=1, top_ks=[3, 0], top_ps=[1, 0.9], min_ps=0)
    wide[1:3, 5:136] = batch.logits
    given = replace(batch, logits=wide[1:3, 5:136]).arguments()
    tokens = sample(*given, out=out[2:4])
    assert tokens.data_ptr() == out[2:].data_ptr()
    assert out.tolist() == [7, 7, *batch.on_the_cpu(), 7, 7]


def test_nothing_to_sample() -> None:
    assert sample(*Batch.of(torch.empty(0, 50)).arguments()).shape == (0,)


def test_rows_that_are_not_dense_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        sample(*Batch.of(torch.zeros(50, 2).T).arguments())


def test_the_reference_need_not_ask_the_device_where_no_row_has_a_top_p() -> None:
    batch = Batch.of(random_logits(40, 200), top_ps=1)
    logits, temperatures, top_ks, _, *rest = batch.arguments()
    assert sample_reference(logits, temperatures, top_ks, None, *rest).tolist() == batch.on_the_cpu()
