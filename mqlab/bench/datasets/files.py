"""Reading a dataset's file, and saying what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from mqlab.errors import ConfigError


def bad_file(path: Path, where: str, problem: str, expected: str) -> ConfigError:
    """The error for a file that cannot be used.

    Args:
        where: row, line or byte; may be empty.
    """
    return ConfigError(f"{path}{', ' if where else ''}{where}: {problem}; expected {expected}")


def read_text(path: Path, expected: str) -> str:
    """All of a UTF-8 file.

    Raises:
        ConfigError: it cannot be read, or is not text.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_file(path, f"byte {error.start}", "is not UTF-8", expected) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
