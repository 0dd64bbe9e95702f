"""A front follows its engine's model: tokenizer and template are swapped with it, and nothing of the old one is used after that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from mqlab.errors import ModelError, ModelUnavailable
from mqlab.front.frontend import Frontend
from mqlab.front.llm import LLM
from mqlab.front.textmodel import TextModel
from mqlab.topologies import TOPOLOGIES
from mqlab.types import Delta, SamplingParams

Echo = Callable[..., Any]
WORDS = ["one", "two", "three", "hi"]
FIVE = SamplingParams(max_tokens=5)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose tokenizer knows four words, and whose template prints a message as it is."""
    folder = tmp_path_factory.mktemp("other")
    backend = tokenizers.Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="hi"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_another_model_brings_its_own_words(echo: Echo, other_folder: Path, topology: str) -> None:
    async with echo(topology) as client:
        front = Frontend.of(client)
        before = await front.complete("one two", FIVE)
        await client.load("other", path=str(other_folder), vocab_size=4)
        after = await front.complete("one two", FIVE)
        chat = await front.complete([{"role": "user", "content": "three hi"}], FIVE)
        assert before.prompt_tokens != after.prompt_tokens == (0, 1)
        assert (before.text, after.text) == ("one twoone twoone", "one two one two one")
        assert chat.prompt_tokens == (2, 3)
        assert (front.text.tokenizer.vocab_size, client.info.epoch) == (4, 2)


async def test_ids_of_another_model_are_refused(echo: Echo, other_folder: Path) -> None:
    async with echo() as client:
        front = Frontend.of(client)
        tokens = await front.tokenise("one two")
        assert (await front.complete(tokens, FIVE)).text == "one twoone twoone"
        await client.load("other", path=str(other_folder))
        for use in (front.complete(tokens, FIVE), front.embed(tokens), anext(front.generate(tokens, FIVE))):
            with pytest.raises(ModelUnavailable, match="tokenised for another model than 'other'"):
                await use


async def test_streams_of_the_old_model_end_with_their_own_error(echo: Echo, other_folder: Path) -> None:
    async with echo("aio", device_time=0.005) as client:
        front = Frontend.of(client)
        stream = front.generate("one two", SamplingParams(n=2, max_tokens=None, ignore_eos=True))
        await anext(stream)
        await client.load("other", path=str(other_folder))
        with pytest.raises(ModelUnavailable):
            async for _ in stream:
                pass
        assert (await front.complete("one two", FIVE)).text == "one two one two one"


@pytest.mark.parametrize("put_away", ["unload", "sleep"])
async def test_without_a_model_requests_are_refused_until_there_is_one(echo: Echo, other_folder: Path, put_away: str) -> None:
    async with echo() as client:
        front = Frontend.of(client)
        await getattr(client, put_away)()
        for use in (front.complete("one", FIVE), front.embed("one"), front.encode("one"), front.complete([5], FIVE)):
            with pytest.raises(ModelUnavailable, match="load one" if put_away == "unload" else "wake it up"):
                await use
        if put_away == "sleep":
            await client.wake_up()
            assert (await front.complete("one two", FIVE)).text == "one twoone twoone"
        await client.load("other", path=str(other_folder))
        assert (await front.complete("one two", FIVE)).text == "one two one two one"


async def test_a_front_may_start_without_a_model(echo: Echo, other_folder: Path) -> None:
    async with echo() as client:
        await client.unload()
        front = Frontend.of(client)
        with pytest.raises(ModelUnavailable):
            _ = front.text
        await client.load("other", path=str(other_folder))
        assert (await front.complete("one two", FIVE)).text == "one two one two one"


async def test_many_requests_load_it_once_and_the_loop_turns(
    scripted: Any, text: TextModel, other_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = scripted(lambda request: [Delta(request.id, [0], "length")])
    front = Frontend(client, text)
    loads: list[bool] = []
    load = TextModel.load

    def counted(folder: Path) -> TextModel:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loads.append(False)
        else:
            loads.append(True)
        return load(folder)

    monkeypatch.setattr(TextModel, "load", counted)
    client.info = msgspec.structs.replace(client.info, epoch=2, path=str(other_folder))
    first = asyncio.create_task(front.complete("one", FIVE))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(*(front.complete("one two", FIVE) for _ in range(20)))
    assert len(loads) <= 2, "once, and once more where whoever began it has left"
    assert not any(loads), "in a thread"
    assert {tuple(request.prompt) for request in client.requests} == {(0, 1)}
    assert {request.epoch for request in client.requests} == {2}


async def test_a_model_without_a_tokenizer_says_so_and_the_next_one_serves(scripted: Any, text: TextModel, other_folder: Path) -> None:
    client = scripted(lambda request: [Delta(request.id, [0], "length")])
    front = Frontend(client, text)
    for path, reason in (("", "names no model folder"), ("/nowhere", "tokenizer.json")):
        client.info = msgspec.structs.replace(client.info, epoch=client.info.epoch + 1, path=path)
        for _ in range(2):
            with pytest.raises(ModelError, match=reason):
                await front.complete("one", FIVE)
    client.info = msgspec.structs.replace(client.info, epoch=9, path=str(other_folder))
    assert (await front.complete("one", FIVE)).prompt_tokens == (0,)


@pytest.mark.parametrize("put_away", ["unload", "sleep"])
def test_offline(echo: Echo, other_folder: Path, put_away: str) -> None:
    with LLM.of(echo()) as llm:
        assert llm.load("other", path=str(other_folder)).epoch == 2
        assert llm.info.name == "other"
        assert llm.generate("one two", FIVE, use_tqdm=False)[0].text == "one two one two one"
        assert getattr(llm, put_away)().rss_after > 0
        with pytest.raises(ModelUnavailable, match="send the request again"):
            llm.generate("one", FIVE, use_tqdm=False)
        again = llm.wake_up() if put_away == "sleep" else llm.load("other", path=str(other_folder))
        assert again.state == "ready"
        assert llm.generate("hi", FIVE, use_tqdm=False)[0].text == "hi hi hi hi hi"
