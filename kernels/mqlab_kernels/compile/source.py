"""What of the source a compiled kernel is made of."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import Any


def fingerprint(function: Any) -> str:
    """A hash of ``code_of`` a kernel."""
    code = code_of(function)
    text = "\n".join(f"{name}: {code[name]}" for name in sorted(code))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_of(function: Any) -> dict[str, str]:
    """The code of a kernel, of the kernels of this package that it calls, and the constants that these use, by name with their module.

    Comments, docstrings, line breaks and all that is no part of a kernel are left out.
    """
    parts: dict[str, str] = {}
    _collect(function, parts)
    return parts


def _collect(function: Any, parts: dict[str, str]) -> None:
    """Add the code of a jitted function and of all that it reaches."""
    from triton.language import constexpr

    plain = function.fn
    name = f"{plain.__module__}.{plain.__qualname__}"
    if name in parts:
        return
    tree = _without_docstrings(ast.parse(textwrap.dedent(inspect.getsource(plain))))
    parts[name] = ast.unparse(tree)
    for used in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(plain.__globals__)):
        value = plain.__globals__[used]
        if _is_jitted_here(value):
            _collect(value, parts)
        elif isinstance(value, constexpr):
            parts[f"{plain.__module__}.{used}"] = repr(value)


def _is_jitted_here(value: Any) -> bool:
    """Whether it is a kernel of this package, compiled or of the interpreter."""
    return getattr(getattr(value, "fn", None), "__module__", "").startswith(f"{__name__.partition('.')[0]}.")


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
