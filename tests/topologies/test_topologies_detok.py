"""What only the layouts with a detokenizer have: text made on the way, stop strings that end requests there, a third process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqlab.client.base import BaseClient
from mqlab.contract import abort, death, model_lifecycle, requests
from mqlab.contract.processes import gone
from mqlab.contract.rig import ALERT, FAST, PATIENT, SEEN_S, Check, Rig, ask, begin, echo_of, outcome, read, settled, the_child
from mqlab.contract.waiting import until
from mqlab.errors import EngineDeadError, EngineStartError, RequestFailed
from mqlab.front.frontend import Frontend
from mqlab.probes.recording import Recording
from mqlab.topologies import make_client
from mqlab.types import Delta, Output, Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

LAYOUTS = ["detok_chain", "detok_ring"]
ROLES = ("engine", "detokenizer")
TEXT = "Paris, 1889 — naïve café 😀 and more. "
SLOW = {"device_time": 0.002}
FOREVER = SamplingParams(max_tokens=None, ignore_eos=True)


def with_words(topology: str, wiring: Wiring, *, folder: Path, **options: Any) -> BaseClient:
    """A client whose echo core has the tokenizer of a model."""
    core = replace(wiring.core, kwargs={"path": str(folder), **wiring.core.kwargs})
    return make_client(topology, replace(wiring, core=core), **options)


def rig_of(topology: str, folder: Path, **options: Any) -> Rig:
    return Rig(f"{topology}-words", partial(with_words, topology, folder=folder, **options), roles=ROLES)


@asynccontextmanager
async def front_of(topology: str, folder: Path, *, echo: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Frontend]:
    async with rig_of(topology, folder, **options).client(echo={"eos_token_ids": (), **(echo or {})}, timing=PATIENT) as client:
        yield Frontend.of(client)


CHECKS = [
    requests.check_end_and_stop_tokens,
    requests.check_refused_and_failed_requests_are_alone,
    abort.check_abort_at_random_moments,
    abort.check_an_id_is_free_after_an_abort_at_any_moment,
    model_lifecycle.check_another_model_is_loaded,
    model_lifecycle.check_live_requests_end_with_their_model,
    death.check_what_came_before_death_can_be_read,
]


@pytest.mark.parametrize("topology", LAYOUTS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_with_text_they_obey_the_contract(topology: str, check: Check, model_folder: Path) -> None:
    await check(rig_of(topology, model_folder))


ASKED = {
    "plain": SamplingParams(max_tokens=40),
    "stop": SamplingParams(max_tokens=60, stop=("naïve", "café")),
    "stop is kept": SamplingParams(max_tokens=60, stop=("café",), include_stop_str_in_output=True),
    "stop late": SamplingParams(max_tokens=60, stop=("1889",), min_tokens=12),
    "stop is never met": SamplingParams(max_tokens=20, stop=("nowhere",)),
    "stop over tokens": SamplingParams(max_tokens=60, stop=("e and mo", "😀 a")),
    "stop token": SamplingParams(max_tokens=60, stop_token_ids=(28,)),
    "logprobs": SamplingParams(max_tokens=9, logprobs=2, prompt_logprobs=1),
    "logprobs and stop": SamplingParams(max_tokens=60, logprobs=0, stop=("1889",)),
    "several": SamplingParams(max_tokens=30, n=2, stop=("café",)),
    "nothing new": SamplingParams(max_tokens=0),
}


async def outputs_of(front: Frontend, params: SamplingParams) -> list[Output]:
    return [output async for output in front.generate(TEXT, params, request_id="a")]


def told(outputs: list[Output]) -> list[object]:
    """What was told of each choice, however it was cut into outputs."""
    choices = []
    for index in sorted({output.index for output in outputs}):
        own = [output for output in outputs if output.index == index]
        text, tokens = "".join(output.text for output in own), [token for output in own for token in output.tokens]
        logprobs = [one for output in own for one in output.logprobs or ()]
        choices.append((text, tokens, logprobs, own[0].prompt_logprobs, own[-1].finish, own[-1].stop_reason))
    return [*choices, outputs[-1].usage]


@pytest.mark.parametrize("topology", LAYOUTS)
@pytest.mark.parametrize(
    ("preset", "echo"),
    [("best", {}), ("historical", {"num_scheduler_steps": 7, "multi_step_stream_outputs": False})],
    ids=["best", "historical-bursts"],
)
async def test_outputs_are_those_of_any_other_layout(topology: str, preset: str, echo: dict[str, Any], model_folder: Path) -> None:
    async with front_of("inproc", model_folder) as expected, front_of(topology, model_folder, echo=echo, preset=preset) as front:
        for name, params in ASKED.items():
            assert told(await outputs_of(front, params)) == told(await outputs_of(expected, params)), name
        assert (await front.embed(TEXT)).values == (await expected.embed(TEXT)).values
        await settled(front.client)  # type: ignore[arg-type]


async def deltas_of(client: BaseClient, params: SamplingParams, **changes: Any) -> list[Delta]:
    ids = await Frontend.of(client).encode(TEXT)
    return [delta async for delta in client.generate(Request("a", ids, params, **changes))]


async def test_a_stop_string_ends_the_request_in_the_detokenizer(model_folder: Path) -> None:
    """The engine would go on for ever: it is told, by the detokenizer, and by nobody else."""
    async with rig_of("detok_chain", model_folder).client(echo=SLOW) as client:
        params = SamplingParams(max_tokens=None, ignore_eos=True, stop=("café",))
        for aborted in (1, 2, 3):  # with the same id at once: it waits until the engine is done with the one before
            deltas = await deltas_of(client, params)
            assert "".join(delta.text or "" for delta in deltas) == "Paris, 1889 — naïve "
            assert (deltas[-1].finish, deltas[-1].stop_reason) == ("stop", "café")
            stats = await settled(client)
            assert stats.finished["abort"] == aborted
        assert stats.generation_tokens < 3 * 40, "it was told soon"


async def test_what_waits_for_an_id_can_be_aborted(model_folder: Path) -> None:
    """The engine does not turn while the first request of this id ends; the second one is then gone before it began."""
    async with rig_of("detok_chain", model_folder).client(slow_step=0.15) as client:
        ids = await Frontend.of(client).encode("café")
        params = SamplingParams(max_tokens=None, ignore_eos=True, stop=("café",))
        assert (await read(client.generate(Request("a", ids, params))))[1] == "stop"
        second = asyncio.create_task(read(client.generate(Request("a", ids, FOREVER))))
        await asyncio.sleep(0)
        await client.abort(["a"])
        assert await outcome(second) == ([], "abort")
        assert (await settled(client)).finished["abort"] == 1


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_tokens_pass_through_where_they_shall(topology: str, model_folder: Path) -> None:
    async with rig_of(topology, model_folder, detokenize=False).client() as client:
        deltas = await deltas_of(client, SamplingParams(max_tokens=5, stop=("naïve",)))
        assert {delta.text for delta in deltas} == {None} and deltas[-1].finish == "length"


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_a_slow_detokenizer_holds_up_nothing_but_its_readers(topology: str, model_folder: Path) -> None:
    async with rig_of(topology, model_folder).client(echo=SLOW, timing=PATIENT) as client:
        ids = tuple(range(300, 320))
        request = ask("a", prompt=ids, params=SamplingParams(max_tokens=200, ignore_eos=True))
        stream = await begin(client, ask("b", prompt=ids))
        detokenizer = await the_child("detokenizer")
        detokenizer.suspend()
        reader = asyncio.create_task(read(client.generate(request)))
        if topology == "detok_ring":  # the other way leads through the detokenizer
            await until(lambda: client.glance().generation_tokens > 400)
        else:
            before = client.glance().generation_tokens
            await until(lambda: client.glance().generation_tokens > before + 200)
        assert not reader.done()
        detokenizer.resume()
        assert await outcome(reader) == (echo_of(request, 200), "length")
        late = await anext(stream)
        assert len(late.tokens) > 100 and late.text, "what came meanwhile is one delta"
        await stream.aclose()


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_logs_are_by_role(topology: str) -> None:
    client = make_client(topology, Rig(topology, partial(make_client, topology)).wiring(timing=FAST))
    async with client:
        assert list(client.processes) == list(ROLES)
        assert client.pids.keys() == {"front", *ROLES} and client.run_folder is not None
        for role in ROLES:
            with (client.run_folder / f"{role}.log").open("a") as log:
                log.write(f"words of the {role}\n")
        tail = client.log_tail()
        assert tail.index("engine.log:\n") < tail.index("words of the engine") < tail.index("detokenizer.log:\nwords of the detokenizer")


def broken_detokenizer(wiring: Wiring, after: int, *, hang: bool = False) -> Wiring:
    """Its sockets fail, in the detokenizer, once they have received so much; or it stays there."""
    return replace(wiring, engine_socket=Spec("brokensocket:socket_class", {"after": after, "hang": hang}))


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_a_detokenizer_that_cannot_start_says_why(topology: str) -> None:
    rig = Rig(topology, lambda wiring: make_client(topology, broken_detokenizer(wiring, 0)))
    error = await outcome(rig.client().start())
    assert isinstance(error, EngineStartError)
    assert "detokenizer: OSError: this socket was told to break" in error.cause
    assert "Traceback" in str(error) and "brokensocket.py" in str(error)


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_a_detokenizer_that_fails_ends_all(topology: str) -> None:
    rig = Rig(topology, lambda wiring: make_client(topology, broken_detokenizer(wiring, 20)))
    async with rig.client(echo=SLOW) as client:
        error = await outcome(read(client.generate(ask("a"))))
        assert isinstance(error, EngineDeadError)
        assert "the detokenizer died: OSError: this socket was told to break" in error.cause and "brokensocket.py" in error.traceback


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_a_detokenizer_that_hangs_is_seen(topology: str) -> None:
    rig = Rig(topology, lambda wiring: make_client(topology, broken_detokenizer(wiring, 20, hang=True)))
    async with rig.client(echo=SLOW, timing=ALERT) as client:
        error = await outcome(read(client.generate(ask("a"))))
        assert isinstance(error, EngineDeadError) and "the detokenizer has been in phase" in error.cause
        await until(lambda: all(map(gone, client.processes.values())))


@pytest.mark.parametrize("topology", LAYOUTS)
async def test_each_process_records_under_its_role(topology: str, tmp_path: Path) -> None:
    wiring = Rig(topology, partial(make_client, topology)).wiring(timing=FAST).recorded(tmp_path)
    async with make_client(topology, wiring) as client:
        await read(client.generate(ask("a", params=SamplingParams(max_tokens=30))))
        await settled(client)
        recording = Recording(tmp_path)
        await until(lambda: all(sent == received for sent, received in _ends(recording).values()), timeout=SEEN_S)
        ends = _ends(recording)
        assert {role: pid for role, pid in client.pids.items() if f"{role}-{pid}" in recording.processes()} == client.pids
        assert ends.keys() == {edge.name for edge in client.shape.edges} and min(sent for sent, _ in ends.values()) > 1
        recording.close()


def _ends(recording: Recording) -> dict[str, list[int]]:
    """Messages sent and received by edge."""
    ends: dict[str, list[int]] = {}
    for counters in recording.read().values():
        for name, value in counters.items():
            match name.split("."):
                case ["socket", edge, ("sent" | "received") as direction, "messages"]:
                    ends.setdefault(edge, [0, 0])[direction == "received"] += value
    return ends


# --- the ring's own


async def test_a_stream_interval_holds_tokens_back_before_the_socket(model_folder: Path) -> None:
    async with rig_of("detok_ring", model_folder, stream_interval=8).client() as client:
        deltas = await deltas_of(client, SamplingParams(max_tokens=30, ignore_eos=True))
        assert [len(delta.tokens) for delta in deltas][:-1] == [8] * (len(deltas) - 1) and sum(len(delta.tokens) for delta in deltas) == 30
        assert "".join(delta.text or "" for delta in deltas).startswith(TEXT)


async def test_a_scheduler_that_spins_serves_and_lives() -> None:
    rig = Rig("ring-spin", partial(make_client, "detok_ring", idle="spin"), roles=ROLES)
    await death.check_quiet_is_not_death(rig)


async def test_a_request_whose_state_was_dropped_fails_alone(model_folder: Path) -> None:
    async with rig_of("detok_ring", model_folder, max_states=2).client(echo=SLOW) as client:
        first = await begin(client, ask("first"))
        others = [await begin(client, ask(id)) for id in ("second", "third")]
        error = await outcome(read(first))
        assert isinstance(error, RequestFailed) and "2 requests (max_states)" in str(error)
        await until(lambda: client.glance().running == 2)  # the engine does not go on with it
        for stream in others:
            assert (await anext(stream)).tokens
            await stream.aclose()
