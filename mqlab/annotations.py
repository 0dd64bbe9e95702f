"""Annotations of settings: whether a value keeps to one, and what that allows in a user's words."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", NoneType: "None"}


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value is what an annotation allows."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def in_words(kind: Any) -> str:
    """What an annotation allows."""
    arms = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(in_words, arms))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, arms))}"
    if get_origin(kind) is tuple and arms[-1] is Ellipsis:
        return f"a tuple of {in_words(arms[0]).removeprefix('a ')}s"
    return _WORDS.get(kind, str(kind))
