"""Chat messages to a prompt, by the model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from mqlab.errors import ConfigError, InvalidRequest, ModelError
from mqlab.text.adapt import adapted
from mqlab.text.environment import template_environment
from mqlab.text.messages import Message, plain, plain_messages
from mqlab.text.tokenizer import Tokenizer, load_tokenizer_config
from mqlab.text.traits import Traits

_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "
"""Put after the last message to find where it ends; its space is gone where the template strips messages."""


class ChatTemplate:
    """A model's chat template, or the fact that it has none.

    Args:
        source: jinja2 text, or several by name: "default" is used, or "tool_use" where there are tools and such a template.
        special_tokens: bos_token, eos_token, … as the template may print them.
    """

    def __init__(self, source: str | Mapping[str, str] | None, special_tokens: Mapping[str, str] | None = None) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._special_tokens = dict(special_tokens or {})
        self._environment = template_environment()
        self._compiled: dict[str, jinja2.Template] = {}
        self._traits: dict[str, Traits] = {}

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a model folder: chat_template.jinja, else the one in tokenizer_config.json, else none.

        Raises:
            ModelError: tokenizer_config.json cannot be read.
        """
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else load_tokenizer_config(folder).get("chat_template")
        return cls(_by_name(source, folder) if isinstance(source, list) else source, tokenizer.special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt's text; encode it with ``add_special_tokens=False``.

        Args:
            messages: each with ``role`` and ``content``, a string or a list of ``{"type": "text", "text": …}`` parts, which
                are joined by line breaks.
            add_generation_prompt: open a turn of the assistant.
            continue_final_message: leave the last message open, so that the model goes on with it.
            tools: JSON schemas of functions. A template that does not know tools, or calls of them, is given words instead; see adapt.py.
            extra: further variables of the template.

        Raises:
            InvalidRequest: no template, malformed messages, both flags together, documents that it does not read, or the template's own
                refusal.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest("add_generation_prompt and continue_final_message exclude each other; set one of them to false")
        traits = self.traits(bool(tools))
        if extra.get("documents") and "documents" not in traits.variables:
            raise InvalidRequest("documents: the model's chat template does not read them; put them into a message")
        listed = plain(tools, "tools")
        talk = adapted(plain_messages(messages), listed, traits)
        if continue_final_message:
            talk[-1] = {**talk[-1], "content": talk[-1]["content"] + _OPEN_END}
        given = self._special_tokens | plain(extra, "template variables")
        given |= {"messages": talk, "tools": listed or None, "add_generation_prompt": add_generation_prompt}
        text = self._run(traits.source, {"documents": None} | given)
        return _cut_open_end(text) if continue_final_message else text

    def traits(self, with_tools: bool = False) -> Traits:
        """What is known of the template that prints conversations with or without tools.

        Raises:
            InvalidRequest: there is none, or it is none.
        """
        source = self._choose(with_tools)
        if source not in self._traits:
            try:
                self._traits[source] = Traits.of(source, self._environment)
            except (jinja2.TemplateError, RecursionError) as error:
                raise InvalidRequest(f"the model's chat template cannot be used: {error}") from error
        return self._traits[source]

    def _choose(self, with_tools: bool) -> str:
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise InvalidRequest("this model has no chat template; send a plain prompt, or put a chat_template.jinja into its folder")
        return self._sources[name]

    def _run(self, source: str, variables: dict[str, Any]) -> str:
        try:
            if source not in self._compiled:
                self._compiled[source] = self._environment.from_string(source)
            return self._compiled[source].render(variables)
        except Exception as error:  # a template can trip over the messages in any way
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from error


def read_template(path: str) -> str:
    """The chat template in a file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        source = Path(path).read_text(encoding="utf-8")
        ChatTemplate(source).traits()
    except (OSError, UnicodeDecodeError, InvalidRequest) as error:
        raise ConfigError(f"chat_template={path!r}: {error}; name a file with a template like models' chat_template.jinja") from None
    return source


def _by_name(sources: list[Any], folder: Path) -> dict[str, str]:
    try:
        return {one["name"]: one["template"] for one in sources}
    except (TypeError, KeyError) as error:
        raise ModelError(f"{folder / 'tokenizer_config.json'} lists chat templates without name or template; download it again") from error


def _cut_open_end(text: str) -> str:
    tag = _OPEN_END.strip()
    before, found, after = text.rpartition(tag)
    if not found:
        raise InvalidRequest("continue_final_message=True, but the model's chat template does not print the last message; leave it out")
    return before if after.startswith(" ") else before.rstrip()
