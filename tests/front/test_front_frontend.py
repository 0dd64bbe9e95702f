"""Text in, text out, over scripted and echo engines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from mqlab.contract.waiting import until
from mqlab.errors import InvalidRequest, ModelError, RequestFailed
from mqlab.front.frontend import Frontend
from mqlab.front.textmodel import TextModel
from mqlab.text.chat import ChatTemplate
from mqlab.topologies import TOPOLOGIES
from mqlab.types import Delta, EngineStats, Output, SamplingParams, Usage

Echo = Callable[..., Any]
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
TALK = [{"role": "user", "content": "Hi! <|im_end|> 🙂"}]


async def idle(client: Any) -> EngineStats:
    """The core's statistics once nothing runs or waits any more."""
    found: list[EngineStats] = []

    async def look() -> None:
        while not found or found[-1].running or found[-1].waiting or found[-1].blocks_used:
            found.append(await client.stats())

    await asyncio.wait_for(look(), 5)
    return found[-1]


def joined(outputs: list[Output], index: int) -> str:
    return "".join(output.text for output in outputs if output.index == index)


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_all_topologies_give_the_same_answers(echo: Echo, topology: str) -> None:
    prompt = " one two 🙂 three"
    cases = {
        (): (" one two 🙂 three" * 2, "length", None),
        ("three one",): (" one two 🙂 ", "stop", "three one"),
        ("wo \U0001f642", "one"): (" ", "stop", "one"),
    }
    async with echo(topology) as client:
        front = Frontend.of(client)
        length = len(await front.encode(prompt))
        for stop, expected in cases.items():
            for n in (1, 3):
                params = SamplingParams(n=n, max_tokens=2 * length, stop=stop)
                completion = await front.complete(prompt, params)
                assert {(choice.text, choice.finish, choice.stop_reason) for choice in completion.choices} == {expected}
                streamed = [output async for output in front.generate(prompt, params)]
                assert [joined(streamed, i) for i in range(n)] == [expected[0]] * n
                assert [output.usage for output in streamed if output.usage] == [completion.usage] == [streamed[-1].usage]
                assert completion.usage.completion_tokens == sum(len(choice.tokens) for choice in completion.choices)
        await idle(client)


async def test_a_stop_string_aborts_in_the_core(echo: Echo) -> None:
    async with echo() as client:
        completion = await Frontend.of(client).complete("go on and on.", SamplingParams(n=2, max_tokens=None, stop=(".go",)))
        assert completion.text == "go on and on"
        stats = await idle(client)
    assert stats.finished == {"stop": 0, "length": 0, "abort": 2, "error": 0}
    assert stats.generation_tokens < 100


@pytest.mark.parametrize("n", [1, 4])
async def test_leaving_early_aborts_all_choices(echo: Echo, n: int) -> None:
    async with echo() as client:
        stream = Frontend.of(client).generate("hello there", SamplingParams(n=n, max_tokens=None))
        async with aclosing(stream):
            seen = {(await anext(stream)).index for _ in range(4 * n)}
        assert seen == set(range(n))
        assert (await idle(client)).finished["abort"] == n


@pytest.mark.parametrize("n", [1, 4])
async def test_cancelling_aborts_all_choices(echo: Echo, n: int) -> None:
    async with echo() as client:
        task = asyncio.create_task(Frontend.of(client).complete("hello", SamplingParams(n=n, max_tokens=None)))
        while (await client.stats()).running < n:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await idle(client)).finished["abort"] == n


async def test_children_have_ids_and_seeds_of_their_own(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda request: [Delta(request.id, [5], "length")])
    front = Frontend(client, text)
    await front.complete([1], SamplingParams(n=3, seed=2**63 - 2), request_id="a")
    await front.complete([1], SamplingParams(seed=7), request_id="b")
    await front.complete([1], SamplingParams(n=2), request_id="c")
    got = [(request.id, request.params.seed, request.params.n) for request in client.requests]
    expected = [("a-0", 2**63 - 2, 1), ("a-1", 2**63 - 1, 1), ("a-2", -(2**63), 1), ("b", 7, 1), ("c-0", None, 1), ("c-1", None, 1)]
    assert got == expected


async def test_unnamed_requests_get_different_ids(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda request: [Delta(request.id, [5], "length")])
    for front in (Frontend(client, text), Frontend(client, text)):
        for _ in range(3):
            await front.complete([1], SamplingParams())
    assert len({request.id for request in client.requests}) == 6


async def test_one_failing_choice_fails_the_group(scripted: Any, text: TextModel) -> None:
    def script(request: Any) -> list[Any]:
        return [RequestFailed("broke")] if request.id == "a-1" else [Delta(request.id, [5])] * 1000

    client = scripted(script)
    with pytest.raises(RequestFailed, match="broke"):
        await Frontend(client, text).complete([1], SamplingParams(n=3), request_id="a")
    assert sorted(client.left_early) == ["a-0", "a-2"]


async def test_a_slow_reader_of_many_choices_holds_the_pumps_back(scripted: Any, text: TextModel) -> None:
    played = 0

    def script(request: Any) -> Any:
        nonlocal played
        for _ in range(1000):
            played += 1
            yield Delta(request.id, [5])

    stream = Frontend(scripted(script), text).generate([1], SamplingParams(n=2))
    async with aclosing(stream):
        await anext(stream)
        for _ in range(200):
            await asyncio.sleep(0)
        assert played < 20


async def test_deltas_after_a_stop_string_are_neither_reported_nor_counted(scripted: Any, text: TextModel) -> None:
    tokens = text.tokenizer.encode("one two three four five")
    client = scripted(lambda request: [Delta(request.id, tokens), Delta(request.id, tokens, "length")])
    completion = await Frontend(client, text).complete([1], SamplingParams(stop=("three",)))
    assert (completion.text, completion.usage) == ("one two ", Usage(1, 3))
    assert len(client.left_early) == 1


@pytest.mark.parametrize("prompt", ["", [], b"x", [True], [0.5], ["x"], [2**80], "\ud800", None, 5])
async def test_a_bad_prompt_never_reaches_the_engine(scripted: Any, text: TextModel, prompt: Any) -> None:
    client = scripted(lambda request: [Delta(request.id, [5], "length")])
    front = Frontend(client, text)
    with pytest.raises(InvalidRequest):
        await front.complete(prompt, SamplingParams())
    with pytest.raises(InvalidRequest):
        await anext(front.generate(prompt, SamplingParams()))
    assert client.requests == []


async def test_a_bad_request_id_is_refused(scripted: Any, text: TextModel) -> None:
    with pytest.raises(InvalidRequest, match="request_id=5 must be a string"):
        await Frontend(scripted(lambda _: []), text).complete([1], SamplingParams(), request_id=5)  # pyright: ignore[reportArgumentType]


async def test_a_blank_is_a_prompt(echo: Echo) -> None:
    async with echo() as client:
        assert (await Frontend.of(client).complete(" ", SamplingParams(max_tokens=2))).text == "  "


async def test_a_duplicate_id_fails_alone(echo: Echo) -> None:
    async with echo() as client:
        front = Frontend.of(client)
        stream = front.generate("hello", ENDLESS, request_id="x")
        async with aclosing(stream):
            await anext(stream)
            with pytest.raises(InvalidRequest, match="'x' is already running"):
                await front.complete("hello", SamplingParams(), request_id="x")
            assert (await anext(stream)).tokens


@pytest.mark.parametrize("max_tokens", [None, 1, 2, 64])
@pytest.mark.parametrize("length", [62, 63, 64, 65])
async def test_the_context_limit(echo: Echo, length: int, max_tokens: int | None) -> None:
    """What fits ends with "length", at the limit at the latest; what does not is refused with its numbers."""
    params = SamplingParams(max_tokens=max_tokens)
    async with echo(max_model_len=64) as client:
        front = Frontend.of(client)
        if length >= 64:
            with pytest.raises(InvalidRequest, match=f"the prompt has {length} tokens; at most 63 fit .the context holds 64"):
                await front.complete([5] * length, params)
            return
        completion = await front.complete([5] * length, params)
    assert completion.usage == Usage(length, min(max_tokens or 64, 64 - length))
    assert completion.choices[0].finish == "length"


async def test_hopelessly_long_text_is_not_tokenised(scripted: Any, text: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    front = Frontend(scripted(lambda _: []), text)
    _ = text.longest_token
    monkeypatch.setattr(text.tokenizer, "encode", lambda *_: pytest.fail("tokenised"))
    with pytest.raises(InvalidRequest, match=r"8000000 characters, at least .* tokens; at most 127 fit"):
        await front.encode("x" * 8_000_000)


def test_the_longest_token_is_long_enough(text: TextModel) -> None:
    tokenizer = text.tokenizer
    assert all(len(tokenizer.decode([i], False)) <= text.longest_token for i in range(tokenizer.vocab_size))


async def test_long_text_leaves_the_loop_free(scripted: Any, text: TextModel) -> None:
    """The loop turns while the tokeniser works: it must have turned before the ids are there."""
    front = Frontend(scripted(lambda _: [], max_model_len=10**6, max_prompt_len=10**6), text)
    encoding = asyncio.create_task(front.encode("word and word " * 20_000))
    turns = 0

    def turned() -> bool:
        nonlocal turns
        turns += not encoding.done()
        return encoding.done()

    await until(turned, interval=0)
    assert turns > 2
    assert await encoding == text.tokenizer.encode("word and word " * 20_000)


async def test_long_bad_words_leave_the_loop_free(scripted: Any, text: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()
    encode = text.tokenizer.encode

    def spied(*arguments: Any, **options: Any) -> list[int]:
        threads.add(threading.current_thread())
        return encode(*arguments, **options)

    monkeypatch.setattr(text.tokenizer, "encode", spied)
    client = scripted(lambda request: [Delta(request.id, [], finish="length")])
    words = tuple(f"{i} words and words" * 40 for i in range(20))
    await Frontend(client, text).complete([1], SamplingParams(bad_words=words))
    assert len(client.requests[0].params.bad_word_ids) == 2 * len(words)
    assert threads and threading.current_thread() not in threads


async def test_chat_ids_are_the_templates_own(scripted: Any, text: TextModel) -> None:
    front = Frontend(scripted(lambda _: []), text)
    rendered = text.chat.render(TALK)
    assert await front.encode(TALK) == text.tokenizer.encode(rendered, False)
    ids = await front.encode_chat(
        [*TALK, {"role": "assistant", "content": "Well,"}], add_generation_prompt=False, continue_final_message=True
    )
    assert text.tokenizer.decode(ids, False).endswith("assistant\nWell,")
    assert ids[:2].count(1) == 1


async def test_the_start_token_is_not_added_twice(scripted: Any, text: TextModel, tmp_path: Any) -> None:
    """With a tokenizer that puts a start token before every text, and a template that prints one."""
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    from mqlab.text.tokenizer import Tokenizer

    backend = tokenizers.Tokenizer.from_str(text.tokenizer._backend.to_str())
    backend.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    chat = ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", {"bos_token": "<|endoftext|>"})
    front = Frontend(scripted(lambda _: []), TextModel(Tokenizer(backend, {}), chat))
    assert (await front.encode([{"role": "user", "content": "hi"}])).count(0) == 1
    assert (await front.encode("hi")).count(0) == 1
    assert await front.encode("") == [0]


@pytest.mark.parametrize(
    "talk", [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 5}], [{}], [{"role": "user", "content": "x"}, 5]]
)
async def test_bad_messages_are_refused(scripted: Any, text: TextModel, talk: Any) -> None:
    with pytest.raises(InvalidRequest):
        await Frontend(scripted(lambda _: []), text).encode(talk)


async def test_a_model_without_a_template_cannot_chat(scripted: Any, text: TextModel) -> None:
    front = Frontend(scripted(lambda _: []), TextModel(text.tokenizer, ChatTemplate(None)))
    with pytest.raises(InvalidRequest, match="no chat template"):
        await front.encode(TALK)


def test_an_engine_without_a_model_has_no_front(scripted: Any) -> None:
    with pytest.raises(ModelError, match="'scripted' names no model folder"):
        Frontend.of(scripted(lambda _: []))


async def test_many_scripts_at_once_stay_whole(echo: Echo) -> None:
    prompts = ["🙂🙃🙂", "Příliš žluťoučký", "שלום עולם", "你好世界", " lead", "Ünïcödé", "👩‍👩‍👧‍👦", "मानक हिन्दी"]
    async with echo() as client:
        front = Frontend.of(client)
        lengths = [len(await front.encode(prompt)) for prompt in prompts]

        async def streamed(prompt: str, length: int) -> list[str]:
            return [output.text async for output in front.generate(prompt, SamplingParams(max_tokens=length, temperature=0))]

        answers = await asyncio.gather(*map(streamed, prompts, lengths))
    assert ["".join(pieces) for pieces in answers] == prompts
    assert all("\ufffd" not in piece for pieces in answers for piece in pieces)
