"""A conversation as text, without holding up the event loop."""

from __future__ import annotations

import asyncio

from mqlab.front.prompts import ChatPrompt
from mqlab.front.textmodel import TextModel

LONG_TALK = 64
"""Messages; more are put through the template in a thread: it takes some 5 us for each, whatever its length."""


async def render(text: TextModel, chat: ChatPrompt) -> str:
    """What the template prints.

    Raises:
        InvalidRequest: no template, or messages that it refuses.
    """
    if len(chat.messages) <= LONG_TALK:
        return text.render(chat.messages, **chat.options)
    return await asyncio.to_thread(text.render, chat.messages, **chat.options)
