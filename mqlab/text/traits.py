"""What a chat template knows: which variables it reads, which roles it names, how calls of tools are written in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jinja2
import jinja2.meta

from mqlab.text.toolcalls import HERMES, LLAMA3, CallFormat

_OTHER_TAGGED = ("<function=", "<arg_key>")
"""Between ``<tool_call>`` tags these models write something else than JSON: Qwen3-Coder, GLM 4.5."""


@dataclass(frozen=True)
class Traits:
    """One template, as its source shows it.

    Attributes:
        variables: those that it reads.
    """

    source: str
    variables: frozenset[str]

    @staticmethod
    def of(source: str, environment: jinja2.Environment) -> Traits:
        """Of a template.

        Raises:
            jinja2.TemplateSyntaxError: it is none.
        """
        return Traits(source, frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source))))

    def names(self, role: str) -> bool:
        """Whether it treats this role in a way of its own."""
        return f"'{role}'" in self.source or f'"{role}"' in self.source

    @property
    def knows_tools(self) -> bool:
        """Whether it tells the model of tools."""
        return "tools" in self.variables

    @property
    def knows_calls(self) -> bool:
        """Whether it prints calls that were made."""
        return "tool_calls" in self.source

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How the model writes calls; None where that is not known. A template that tells of no tools is told of Hermes's way."""
        if not self.knows_tools:
            return HERMES
        if HERMES.opens in self.source and not any(tag in self.source for tag in _OTHER_TAGGED):
            return HERMES
        return LLAMA3 if LLAMA3.opens in self.source or self.names("ipython") else None
