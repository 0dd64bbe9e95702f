"""The modules that make up the contract, in the order in which an engine meets them."""

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
