"""The engine is killed while the official client streams: it raises.

Every kind of call, and the end of the server itself: tests/cases/test_cases_kill.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import serving

LONG: dict[str, Any] = {"prompt": "Hello world", "max_tokens": 5000}
SLOW = {"device_time": 0.01, "max_num_seqs": 2}


async def test_the_official_client_raises_in_the_middle_of_a_stream(model_folder: Path) -> None:
    async with serving(model_folder, "v1", **SLOW) as served, served.openai() as client:
        stream = await client.completions.create(model="echo", stream=True, **LONG)
        with pytest.raises(openai.APIError, match="SIGKILL"):
            async for _ in stream:
                os.kill(served.client.info.pid, signal.SIGKILL)
