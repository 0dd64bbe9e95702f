"""Makes the contract importable beside the tests that apply it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite(
    "contract",
    "contract_abort",
    "contract_calls",
    "contract_close",
    "contract_death",
    "contract_embed",
    "contract_exit",
    "contract_model",
    "contract_model_lifecycle",
    "contract_requests",
    "contract_start",
)
