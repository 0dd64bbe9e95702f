"""Every kernel on the GPU against its reference there: at the shapes of Llamas, and in caches of more than 2**31 elements (C81)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqlab.bench.device.jobs import KernelCase, correctness_cases
from mqlab.bench.device.process import Jobs
from mqlab.model.measure.rows import Skip
from mqlab.wire.spec import Spec

pytestmark = pytest.mark.gpu

LIMIT_S = 100


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with Jobs() as jobs:
        assert jobs.run(Spec("builtins:list"), LIMIT_S).error == ""
        yield jobs


@pytest.mark.parametrize("case", correctness_cases(small=False), ids=lambda case: f"{case.kernel}, {case.case}, {case.dtype}")
def test_a_kernel_agrees_with_its_reference(jobs: Jobs, case: KernelCase) -> None:
    answer = jobs.run(Spec("mqlab.model.measure.kernels:agree", {"kind": "cuda", **case.kwargs}), LIMIT_S)
    assert answer.error == ""
    (row,) = answer.rows
    if isinstance(row, Skip):
        pytest.skip(row.why)
    assert row.ok, f"{row.error} times what is tolerated"
