"""What will not start is told between processes by its kind, so that whoever hears of it raises what was raised."""

from __future__ import annotations

import os

import pytest

from mqlab.errors import ConfigError, ModelError, refusal_kind, refusal_of
from mqlab.wire.report import Reporter, ReportReader


class NarrowerConfigError(ConfigError):
    """One below a class that a user catches."""


class NarrowerModelError(ModelError):
    """One below a class that a user catches."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("why"), ConfigError),
        (NarrowerConfigError("why"), ConfigError),
        (ModelError("why"), ModelError),
        (NarrowerModelError("why"), ModelError),
    ],
)
def test_a_refusal_reaches_the_parent_as_what_its_user_catches(error: ConfigError | ModelError, kind: type[Exception]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb"):
        Reporter(writing).refused(error, "Traceback")
        (report,) = ReportReader(reading).read()
    assert report.refusal is not None and report.refusal == refusal_kind(error)
    heard = refusal_of(report.refusal, report.cause)
    assert type(heard) is kind and str(heard) == "why"


def test_what_is_broken_is_no_refusal() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb"):
        Reporter(writing).failed("KeyError: 1", "Traceback")
        (report,) = ReportReader(reading).read()
    assert report.kind == "failed" and report.refusal is None
