"""Which category a stack belongs to, and how samples and CPU time become shares."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.record.categories import COLOURS, MEANING, is_wait, of_stack
from mqlab.record.flame import Stacks
from mqlab.record.part import Part
from mqlab.record.shares import Categories

RUN = "Runner.run (asyncio/runners.py)"


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        ("MainThread;main (a.py);encode (mqlab/wire/codecs.py)", "codec"),
        ("dumps (mqlab/wire/codecs.py);_dumps (pickle.py)", "codec"),
        ("respond (mqlab/server/app.py);encode (mqlab/server/openai/stream.py)", "JSON"),
        ("respond (mqlab/server/app.py);dumps (json/__init__.py);iterencode (json/encoder.py)", "JSON"),
        ("run (uvicorn/server.py);data_received (uvicorn/protocols/http/httptools_impl.py)", "http"),
        ("decode (mqlab/text/tokenizer.py);_decode (tokenizers/__init__.py)", "tokenizer"),
        ("step (mqlab/engine/core.py);schedule (mqlab/engine/scheduler.py);OrderedDict.pop (collections/__init__.py)", "scheduler"),
        ("step (mqlab/engine/core.py);forward (mqlab/model/decoder.py);linear (torch/nn/functional.py)", "torch"),
        ("forward (mqlab/model/decoder.py);concatenate (numpy/_core/multiarray.py)", "torch"),
        ("mkl_blas_avx512_sgemm_kernel_0_b0 (libtorch_cpu.so)", "torch"),
        ("run (mqlab/topologies/mq.py);Socket.send (zmq/sugar/socket.py)", "zmq"),
        ("Socket.send (zmq/sugar/socket.py);write (libc.so.6)", "zmq"),
        (f"MainThread;{RUN}", "asyncio"),
        (f"{RUN};uv_run (core.c);epoll_pwait (libc.so.6)", "asyncio"),
        (f"{RUN};EpollSelector.select (selectors.py)", "asyncio"),
        (f"{RUN};spin (a.py)", "other"),
        (f"{RUN};fetch (pandas/io.py)", "other"),
        (f"{RUN};generate (mqlab/client/base.py);__init__ (<string>)", "front"),
        ("gc_collect_main (python3.11)", "other"),
        ("MainThread;Condition.wait (threading.py)", "other"),
        ("read (mqlab/probes/recording.py)", "probes"),
    ],
)
def test_the_innermost_decisive_frame_decides(stack: str, category: str) -> None:
    assert of_stack(stack.split(";")) == category


@pytest.mark.parametrize(
    ("frame", "waits"),
    [
        ("EpollSelector.select (selectors.py)", True),
        ("Condition.wait (threading.py)", True),
        (RUN, True),
        ("run (mine.py)", False),
        ("epoll_wait (libc.so.6)", True),
        ("pthread_cond_timedwait (libc.so.6)", True),
        ("decode (mqlab/wire/codecs.py)", False),
        ("no file", False),
    ],
)
def test_frames_in_which_a_thread_may_wait(frame: str, waits: bool) -> None:
    assert is_wait(frame) == waits


def test_every_category_has_a_colour_and_a_meaning() -> None:
    assert set(COLOURS) == set(MEANING)


def part(text: str, **facts: object) -> Part:
    return Part("front", Stacks.parse(text), **{"ticks": 100, "seconds": 1.0, **facts})  # type: ignore[arg-type]


def test_samples_are_scaled_to_the_cpu_time_of_their_thread() -> None:
    """Of a thread with 0.3 s of CPU, a third of the samples is 0.1 s, however many samples there were."""
    one = part("loop;send (zmq/a.py) 20\nloop;step (mqlab/engine/core.py) 40\n", cpu_s={"loop": 0.3})
    shares = Categories([one])
    assert shares.share("front", "zmq") == pytest.approx(0.1)
    assert shares.share("front", "scheduler") == pytest.approx(0.2)
    assert shares.share("front", "idle") == pytest.approx(0.7)


def test_without_cpu_time_the_samples_stand_alone() -> None:
    shares = Categories([part("loop;send (zmq/a.py) 20\n")])
    assert (shares.share("front", "zmq"), shares.share("front", "idle")) == (0.2, 0.8)


@pytest.mark.parametrize(("cpu", "asyncio", "codec"), [(0.0, 0.0, 0.0), (0.1, 0.0, 0.1), (0.3, 0.2, 0.1), (1.0, 0.9, 0.1)])
def test_with_waiting_threads_cpu_time_tells_a_busy_loop_from_an_idle_one(cpu: float, asyncio: float, codec: float) -> None:
    one = part(f"loop;{RUN} 90\nloop;{RUN};encode (mqlab/wire/codecs.py) 10\n", cpu_s={"loop": cpu})
    shares = Categories([one], idle=True)
    assert shares.share("front", "asyncio") == pytest.approx(asyncio)
    assert shares.share("front", "codec") == pytest.approx(codec)


def test_threads_without_python_and_waiting_for_a_core_count() -> None:
    cpu = {"loop": 0.5, "ZMQbg/IO/0 (native)": 0.25, "python (native)": 1.25}
    shares = Categories([part("loop;forward (torch/nn.py) 50\n", cpu_s=cpu, queued_s=0.5)])
    assert shares.share("front", "torch") == pytest.approx((0.5 + 1.25) / 2.5)
    assert shares.share("front", "zmq") == pytest.approx(0.25 / 2.5)
    assert shares.share("front", "no core") == pytest.approx(0.5 / 2.5)
    assert shares.share("front", "idle") == 0


def test_shares_of_the_lock_are_samples() -> None:
    shares = Categories([part("loop;send (zmq/a.py) 20\n", cpu_s={"loop": 0.9}, queued_s=0.1)], gil=True)
    assert shares.share("front", "zmq") == 0.2 and shares.share("front", "no core") == 0


counts = st.dictionaries(
    st.tuples(st.sampled_from(["loop", "worker"]), st.sampled_from([RUN, "send (zmq/a.py)", "spin (b.py)"])), st.integers(1, 100)
)


@given(counts, st.dictionaries(st.sampled_from(["loop", "worker", "ZMQbg (native)"]), st.floats(0, 2)), st.booleans())
def test_shares_sum_to_one_and_match_the_cpu_time(stacks: dict[tuple[str, ...], int], cpu: dict[str, float], idle: bool) -> None:
    one = Part("x", Stacks(stacks), 100, seconds=1.0, cpu_s=cpu)
    rows = Categories([one], idle=idle).rows
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert all(row.share >= 0 and row.cpus >= 0 for row in rows)
    if not idle and cpu.keys() >= {stack[0] for stack in stacks}:
        assert sum(row.cpus for row in rows if row.category != "idle") == pytest.approx(sum(cpu.values()), abs=1e-6)


def test_categories_show_themselves() -> None:
    shares = Categories([part("loop;send (zmq/a.py) 20\nloop;x (b.py) 1\n")])
    html = shares._repr_html_()
    text = "".join(ElementTree.fromstring(f"<div>{html}</div>").itertext())
    assert "zmq 20%" in text and "idle 79%" in text and "sockets between processes" in text
    assert not re.search(r"<script|<style|\bid=|onload", html)
    assert str(shares) == "front        idle 79%, zmq 20%, other 1%" and str(shares) in repr(shares)
    frame = shares.to_pandas()
    assert list(frame.columns) == ["role", "category", "cpus", "share", "samples"] and len(frame) == len(shares) == 3
