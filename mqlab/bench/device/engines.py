"""Engines on the device behind layouts, each in processes of its own, run in turns: tokens a second with made-up weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import Arm
from mqlab.bench.compare import ArmProcess, launched
from mqlab.config import EngineConfig
from mqlab.errors import MqlabError
from mqlab.model.measure.rows import EngineRate, Row, Skip

_SHORT = 8
_LIMIT = 2.5


@dataclass(frozen=True)
class Group:
    """Engines that are up at the same time.

    Attributes:
        layouts: of each; the first is what the others' tokens are held to.
        num_prompts, input_len, output_len: of a run.
        starting: how many may start at once.
        seconds: that it is expected to take.
    """

    name: str
    engine: EngineConfig
    layouts: tuple[str, ...]
    num_prompts: int
    input_len: int
    output_len: int
    rounds: int
    seed: int
    starting: int
    seconds: float

    part = "engines"

    @property
    def limit_s(self) -> float:
        """After which no round is begun, and nothing is waited for."""
        return _LIMIT * self.seconds

    @property
    def model(self) -> str:
        """As its rows call it."""
        return self.engine.served_model_name or self.engine.model

    def work(self, number: int) -> Work:
        """Of a round; round 0 warms up."""
        if number:
            return Work(self.seed + number, self.num_prompts, self.input_len, self.output_len)
        return Work(self.seed, self.num_prompts, self.input_len, min(_SHORT, self.output_len))

    def arm(self, layout: str) -> Arm:
        """One of its engines."""
        axes = {"preset": "best", "codec": "msgpack", "output": "delta", "detokenize": "none", "concurrency": 0}
        return Arm(label=layout, engine=self.engine, topology=layout, **axes)


def rates(group: Group, seconds: float) -> list[Row]:
    """Tokens a second of each, within ``seconds``: a round that does not fit is not begun, and what could not start is told."""
    return asyncio.run(_Rounds(group, time.monotonic() + seconds).run())


class _Rounds:
    """A group while it runs.

    Args:
        until: of the monotonic clock.
    """

    def __init__(self, group: Group, until: float) -> None:
        self._group = group
        self._until = until
        self._runs: dict[str, list[Run]] = {}
        self._skipped: list[Skip] = []
        self._processes: list[ArmProcess] = []

    async def run(self) -> list[Row]:
        """Start all, run the rounds, end all."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._until - time.monotonic()):
                    await self._take_turns(await self._started(stack))
            except TimeoutError:
                self._skip("engines" if not self._runs else "rounds", "not done in the time that was left")
            for process in self._processes:  # at once, for the stack waits for one after the other
                process.dismiss()
        done = min(map(len, self._runs.values()), default=0)
        runs = {layout: own[:done] for layout, own in self._runs.items() if done}
        return [*_rates(self._group, runs), *self._skipped]

    async def _started(self, stack: AsyncExitStack) -> dict[str, ArmProcess]:
        gate = asyncio.Semaphore(self._group.starting)
        started = await asyncio.gather(*(self._start(stack, gate, layout) for layout in self._group.layouts))
        self._skipped += [one for one in started if isinstance(one, Skip)]
        return {layout: one for layout, one in zip(self._group.layouts, started, strict=True) if isinstance(one, ArmProcess)}

    async def _take_turns(self, processes: dict[str, ArmProcess]) -> None:
        self._runs = {layout: [] for layout in processes}
        for number in range(1, self._group.rounds + 1):
            begin = time.monotonic()
            for layout in _turned(list(processes), number):
                if (run := await self._run(layout, processes[layout], number)) is None:
                    del processes[layout], self._runs[layout]
                else:
                    self._runs[layout].append(run)
            if not processes:
                break
            taken = time.monotonic() - begin
            if number < self._group.rounds and time.monotonic() + taken > self._until:
                self._skip(f"rounds {number + 1} to {self._group.rounds}", "no time was left")
                break

    async def _run(self, layout: str, process: ArmProcess, number: int) -> Run | None:
        """A round of one engine; None where it failed, which costs its own figure and no other."""
        try:
            return await process.run(self._group.work(number))
        except MqlabError as error:
            self._skip(layout, f"it failed in round {number}: {_told(error)}")
            return None

    async def _start(self, stack: AsyncExitStack, gate: asyncio.Semaphore, layout: str) -> ArmProcess | Skip:
        """An engine, up and warm; or why it is not."""
        async with gate:
            process = await stack.enter_async_context(launched(self._group.arm(layout)))
            self._processes.append(process)
            try:
                await process.ready()
                await process.run(self._group.work(0))
            except MqlabError as error:
                return Skip("engines", f"{self._group.name}: {layout}", f"it did not start: {_told(error)}")
            return process

    def _skip(self, what: str, why: str) -> None:
        self._skipped.append(Skip("engines", f"{self._group.name}, {what}", why))


def _told(error: Exception) -> str:
    """What failed, and the last line of what its process said of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


def _turned(layouts: list[str], number: int) -> list[str]:
    """Each round begins with another one."""
    place = number % len(layouts) if layouts else 0
    return layouts[place:] + layouts[:place]


def _rates(group: Group, runs: dict[str, list[Run]]) -> list[EngineRate]:
    first = next(iter(runs.values()), [])
    return [
        EngineRate(
            model=group.model,
            layout=layout,
            tokens_per_s=tuple(run.output_tokens_per_s for run in own),
            tpot_ms=median(run.tpot_ms for run in own),
            cpu_us=median(run.cpu_us_per_token for run in own),
            same=_share_same(first, own),
        )
        for layout, own in runs.items()
    ]


def _share_same(first: Sequence[Run], own: Sequence[Run]) -> float:
    pairs = [pair for one, other in zip(first, own, strict=True) for pair in zip(one.outputs, other.outputs, strict=True)]
    return sum(one == other for one, other in pairs) / len(pairs)
