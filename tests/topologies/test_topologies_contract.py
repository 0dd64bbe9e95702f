"""Every topology through every check of the contract."""

from __future__ import annotations

import contract_abort
import contract_calls
import contract_close
import contract_death
import contract_embed
import contract_exit
import contract_model_lifecycle
import contract_requests
import contract_start
import pytest
from contract import Check, Rig, applies, checks_of
from rigs import RIGS

THEMES = (
    contract_start,
    contract_requests,
    contract_abort,
    contract_calls,
    contract_embed,
    contract_model_lifecycle,
    contract_death,
    contract_close,
    contract_exit,
)


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
