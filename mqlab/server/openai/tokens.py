"""/tokenize and /detokenize: text or a conversation to token ids, and back, without the engine. Names and shapes are vLLM's.

A text may be longer than the model's context here, for to know that is what some ask for; but not without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from mqlab.front.frontend import LONG_TEXT
from mqlab.front.prompts import ChatPrompt, check_unicode
from mqlab.front.rendering import render
from mqlab.front.textmodel import TextModel
from mqlab.server.errors import bad_request
from mqlab.server.openai.chat import Chat
from mqlab.server.openai.fields import Int
from mqlab.server.openai.jsonroute import JsonRoute
from mqlab.server.openai.protocol import ChatBody
from mqlab.server.openai.tools import ToolChoice, Tools
from mqlab.server.state import ServerState
from mqlab.text.tokenizer import Tokenizer

T = TypeVar("T")

MAX_AT_ONCE = 2**20
"""Characters of a text, or token ids, at most: for so much text the tokenizer needs about 200 MB and two seconds."""

_LONG_IDS = 4096
"""Token ids from which on they become text off the event loop."""


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: a prompt, or the messages of a chat; one of the two.

    Attributes:
        add_special_tokens: put the tokenizer's start and end tokens around it; a prompt's default is true, a chat's false, for its
            template prints them.
        return_token_strs: tell each token's name in the vocabulary.
        others: of chats, as on their route.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    tools: Tools = []
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    documents: list[dict[str, Any]] = []
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /tokenize answers; ``token_strs`` are null where they were not asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Int]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /detokenize answers: the text, special tokens shown."""

    prompt: str


_NOT_OFFERED: dict[str, Any] = {"chat_template": None}


def routes(state: ServerState) -> list[Route]:
    """/tokenize and /detokenize."""
    chat = Chat(state.config.tool_call_parser)

    async def tokenize(body: TokenizeBody, request: Request) -> TokenizeAnswer:
        del request
        state.check_model(body.model)
        current = await state.front.current()
        tokenizer = current.text.tokenizer
        text, special = await _text(body, current.text, chat)
        _check_size(text, "messages" if body.prompt is None else "prompt")
        ids = await _work(len(text) > LONG_TEXT, tokenizer.encode, text, special)
        names = await _work(len(ids) > _LONG_IDS, _names, tokenizer, ids) if body.return_token_strs else None
        return TokenizeAnswer(count=len(ids), max_model_len=current.info.max_model_len, tokens=ids, token_strs=names)

    async def detokenize(body: DetokenizeBody, request: Request) -> DetokenizeAnswer:
        del request
        state.check_model(body.model)
        current = await state.front.current()
        _check_size(body.tokens, "tokens")
        _check_ids(body.tokens, current.info.vocab_size)
        text = await _work(len(body.tokens) > _LONG_IDS, current.text.tokenizer.decode, body.tokens, False)
        return DetokenizeAnswer(prompt=text)

    return [
        Route("/tokenize", JsonRoute(TokenizeBody, tokenize, _NOT_OFFERED), methods=["POST"]),
        Route("/detokenize", JsonRoute(DetokenizeBody, detokenize), methods=["POST"]),
    ]


async def _text(body: TokenizeBody, text: TextModel, chat: Chat) -> tuple[str, bool]:
    """What to tokenise, and whether with special tokens around it."""
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("send either prompt or messages", "prompt" if body.messages is None else "messages")
    if body.prompt is not None:
        check_unicode(body.prompt, "prompt")
        return body.prompt, body.add_special_tokens is not False
    (prompt,) = chat.plan(_chat(body), text).prompts
    assert isinstance(prompt, ChatPrompt), "a conversation is one"
    rendered = await render(text, prompt)
    check_unicode(rendered, "messages")
    return rendered, body.add_special_tokens is True


def _chat(body: TokenizeBody) -> ChatBody:
    shared = set(ChatBody.__struct_fields__) & set(TokenizeBody.__struct_fields__)
    return ChatBody(**{name: getattr(body, name) for name in shared})


def _check_size(given: str | Sequence[int], field: str) -> None:
    if len(given) > MAX_AT_ONCE:
        kind = "characters" if isinstance(given, str) else "ids"
        raise bad_request(f"{field} has {len(given)} {kind}, and at most {MAX_AT_ONCE} are taken at once; send it in parts", field)


async def _work(long: bool, work: Callable[..., T], *args: Any) -> T:
    """Off the event loop where it takes longer than a thread costs."""
    return await asyncio.to_thread(work, *args) if long else work(*args)


def _names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.name(id) for id in ids]


def _check_ids(ids: Sequence[int], size: int) -> None:
    for place, id in enumerate(ids):
        if not 0 <= id < size:
            raise bad_request(f"tokens[{place}]={id} is no token; the vocabulary has ids 0 to {size - 1}", "tokens")
