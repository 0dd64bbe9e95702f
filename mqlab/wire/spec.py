"""A recipe for an object: an import path and keyword arguments, resolved in the process that builds it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from mqlab.errors import ConfigError


@dataclass(frozen=True)
class Spec:
    """``Spec("package.module:factory", {"key": value})``. Picklable, so it crosses into a child process.

    Attributes:
        target: import path of a callable.
        kwargs: its keyword arguments, picklable.
    """

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def resolve(self) -> Any:
        """The callable itself.

        Raises:
            ConfigError: the target names no module or no attribute.
        """
        module, colon, name = self.target.partition(":")
        if not colon or module == "__main__":
            raise ConfigError(f"spec target {self.target!r} must be 'package.module:factory', importable in another process")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"spec target {self.target!r} cannot be resolved: {error}") from error
        return found

    def build(self, *args: Any) -> Any:
        """Call the factory with ``args`` and the spec's keyword arguments."""
        return self.resolve()(*args, **self.kwargs)
