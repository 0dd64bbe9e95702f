"""Which tests must run in one worker: those of a module that has a fixture of the module's own, which is then made once,
and those of a module that is marked ``xdist_group``.

xdist's ``--dist loadgroup`` does this by marks, but writes them where pytest 9.2 no longer reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_FIXTURE = re.compile(r'@pytest\.fixture\([^)]*scope="module"[^)]*\)\n(?:async )?def (\w+)')


def sharing(root: Path) -> set[str]:
    """Test files below ``root`` with a fixture of module scope, of their own or of their folder's conftest; relative, as in test ids."""
    return {path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py") if _shares(path)}


def _shares(path: Path) -> bool:
    source = path.read_text()
    conftest = path.with_name("conftest.py")
    names = _FIXTURE.findall(source) + (_FIXTURE.findall(conftest.read_text()) if conftest.is_file() else [])
    return any(re.search(rf"[(,]\s*{name}\b", source) for name in names) or "xdist_group" in source


class ByModule(LoadScopeScheduling):
    """Hands out single tests, and modules of those that share a fixture."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._sharing = sharing(config.rootpath)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in self._sharing else nodeid
