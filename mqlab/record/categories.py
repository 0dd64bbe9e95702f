"""What a sampled stack was doing: asyncio, zmq, codec, …, by its innermost decisive frame.

Rules, applied from the innermost frame outwards; the first frame that any rule knows decides:

1. Frames of a library or of a layer of mqlab belong to one category (``_PLACES``, longest match first). C code without frames of
   its own counts for the Python function that called it: ``msgspec`` called from ``mqlab/wire/codecs.py`` is codec.
2. Frames that say nothing by themselves (the rest of the standard library, numpy, generated code, C without a rule) hand on to their
   caller; any other library, and the user's own code, is ``other`` even when an event loop called it.
3. A stack in which nothing decides is ``other``.

Whether a thread ran at all is not in its stack: uvloop waits inside C code below the same frame as it works in. py-spy leaves waiting
threads out unless asked, so what it saw is what ran; in a capture with waiting threads ``is_wait`` tells which frames may be waits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache

OTHER = "other"
QUEUED = "no core"
IDLE = "idle"

COLOURS = {
    "torch": "#7fb2e0",
    "scheduler": "#9fd8f7",
    "codec": "#f0e442",
    "zmq": "#66c2a5",
    "asyncio": "#dba3c4",
    "http": "#c8b08a",
    "JSON": "#efb54a",
    "tokenizer": "#ec9a6d",
    "front": "#c5cfa0",
    "probes": "#b9b9c9",
    OTHER: "#dcd5c8",
    QUEUED: "#c9a0a0",
    IDLE: "#f7f4ee",
}
"""Every category in the order of pictures and tables, with a fill that dark text reads on; tints of the Okabe-Ito palette."""

MEANING = {
    "torch": "model, kernels, torch, numba, triton",
    "scheduler": "the engine's own Python: admission, blocks, steps",
    "codec": "messages to bytes and back: msgspec, pickle",
    "zmq": "sockets between processes, and the loops that serve them",
    "asyncio": "event loops and what they do between callbacks",
    "http": "HTTP server and client",
    "JSON": "bodies to JSON and back",
    "tokenizer": "text to tokens and back",
    "front": "the front's bookkeeping: clients, streams, choices",
    "probes": "mqlab's own measuring",
    OTHER: "garbage collection, imports, and whatever no rule knows",
    QUEUED: "ready to run, but other processes or threads had the cores",
    IDLE: "time in which no thread of the process ran",
}

_PLACES = {
    "torch": (
        *("mqlab/model/", "mqlab_kernels/", "torch/", "triton/", "numba/", "llvmlite/"),
        *("libtorch", "libc10", "libgomp", "libmkl", "libomp", "libiomp", "libopenblas"),
    ),
    "scheduler": ("mqlab/engine/", "mqlab/types.py", "mqlab/plan.py"),
    "codec": ("mqlab/wire/codecs.py", "mqlab/wire/cumulative.py", "msgspec/", "msgpack/", "pickle.py", "cloudpickle/", "copyreg.py"),
    "zmq": ("zmq/", "mqlab/wire/", "mqlab/topologies/", "libzmq", "libsodium"),
    "asyncio": ("asyncio/", "uvloop/", "selectors.py", "mqlab/lab/hop.py", "_asynciomodule", "libuv"),
    "http": ("uvicorn/", "httptools/", "starlette/", "fastapi/", "aiohttp/", "h11/", "httpx/", "httpcore/", "http/", "mqlab/server/"),
    "JSON": ("json/", "orjson/", "ujson/", "simplejson/", "mqlab/server/openai/"),
    "tokenizer": ("tokenizers/", "mqlab/text/", "mqlab/engine/detokenize.py", "transformers/", "sentencepiece/", "tiktoken/", "jinja2/"),
    "front": ("mqlab/front/", "mqlab/client/"),
    "probes": ("mqlab/probes/", "mqlab/record/", "mqlab/wire/counters.py", "mqlab/wire/statspage.py"),
}
_BY_LENGTH = sorted(((place, category) for category, places in _PLACES.items() for place in places), key=lambda pair: -len(pair[0]))

_NEUTRAL = sys.stdlib_module_names | {"numpy", "python", "psutil"}

_OF_GC = ("gc_collect", "_PyGC", "deduce_unreachable")
_OF_LIBUV = ("uv_", "uv__", "Loop__")
_NATIVE = (".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".pyx")

# Functions below which a thread may be waiting: their frame is innermost while C code waits for them. Also libc's, with --native.
_WAITS = frozenset(
    (
        *("select", "poll", "wait", "_wait", "_try_wait", "join", "acquire", "get", "put", "sleep", "recv", "accept", "readinto", "read"),
        *("_recv", "recv_into", "_worker", "_shutdown", "_wait_for_tstate_lock"),
        *("epoll_wait", "epoll_pwait", "futex", "nanosleep", "clock_nanosleep", "ppoll", "sem_wait", "syscall", "pause", "wait4"),
    )
)
_LOOPS = frozenset(("run", "run_forever", "run_until_complete"))
"""Of asyncio: below them uvloop both works and waits."""


def split(frame: str) -> tuple[str, str]:
    """Function and file of a frame; the file is empty where it has none."""
    function, found, file = frame.rpartition(" (")
    return (function, file.removesuffix(")")) if found else (frame, "")


def _hands_on(file: str) -> bool:
    """Whether a frame of this file, which no rule knows, leaves the decision to its caller."""
    first = file.partition("/")[0]
    return not file or first.startswith("<") or ".so" in file or file.endswith(_NATIVE) or first.removesuffix(".py") in _NEUTRAL


@lru_cache(maxsize=1 << 16)
def of_frame(frame: str) -> str | None:
    """The category that a frame decides, None where it says nothing."""
    function, file = split(frame)
    if function.startswith(_OF_GC):
        return OTHER
    if function.startswith(_OF_LIBUV):
        return "asyncio"
    file = "/" + file.replace("\\", "/").partition(":")[0]
    found = next((category for place, category in _BY_LENGTH if f"/{place}" in file), None)
    return found or (None if _hands_on(file[1:]) else OTHER)


def of_stack(stack: Sequence[str]) -> str:
    """The category of a stack, outermost frame first."""
    return next((category for frame in reversed(stack) if (category := of_frame(frame))), OTHER)


def is_wait(frame: str) -> bool:
    """Whether a thread whose innermost frame this is may be waiting instead of running."""
    function, file = split(frame)
    last = function.rpartition(".")[2]
    if last in _LOOPS:
        return "asyncio/" in file or "uvloop/" in file
    return last in _WAITS or last.startswith(("pthread_cond_", "__futex"))
