"""Every topology through every check of the contract."""

from __future__ import annotations

import pytest
from rigs import RIGS

from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.contract.themes import THEMES


def cases() -> list[object]:
    """Each check with each rig that it says something about; the second codec only where messages matter."""
    return [
        pytest.param(
            check,
            rig,
            id=f"{rig.name}-{check.__name__.removeprefix('check_')}",
            marks=[pytest.mark.full] if hasattr(check, "full") else [],
        )
        for theme in THEMES
        for check in checks_of(theme)
        for rig in RIGS
        if applies(check, rig) and (rig.codec == "msgpack" or hasattr(check, "every_codec"))
    ]


@pytest.mark.parametrize(("check", "rig"), cases())
async def test_contract(check: Check, rig: Rig) -> None:
    await check(rig)
