"""The runner of rank 0: what it runs, the other ranks run too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mqlab.errors import ConfigError
from mqlab.model.parallel.group import PeerLost, TorchGroup
from mqlab.model.parallel.messages import Rest, Resume, Run, bare
from mqlab.model.parallel.workers import Workers
from mqlab.plan import InFlight, Plan, Runner, SampledTokens
from mqlab.types import ModelInfo


class SamplingRunner(Runner, Protocol):
    """One that samples by something that may be replaced.

    Attributes:
        sampler: makes tokens of logits.
    """

    sampler: Callable[..., Any]


class ParallelRunner:
    """Obeys Runner over several processes.

    Args:
        runner: this rank's.
        workers: the others'.
        group: of all of them.
    """

    def __init__(self, runner: SamplingRunner, workers: Workers, group: TorchGroup) -> None:
        self.info: ModelInfo = runner.info
        self._runner = runner
        self._workers = workers
        self._group = group

    @property
    def sampler(self) -> Callable[..., Any]:
        """That of this rank, the only one that samples."""
        return self._runner.sampler

    @sampler.setter
    def sampler(self, sampler: Callable[..., Any]) -> None:
        self._runner.sampler = sampler

    def launch(self, plan: Plan) -> InFlight:
        """Start one step, on all ranks.

        Raises:
            RankDied: one is gone.
        """
        self._workers.tell(Run(bare(plan)))
        with lost(self._workers):
            return _Flight(self._runner.launch(plan), self._workers)

    def check(self) -> None:
        """See that all ranks are there.

        Raises:
            RankDied: one is gone.
        """
        self._workers.check()

    def rest(self) -> None:
        """Free the KV memory of all ranks."""
        self._workers.tell(Rest())
        self._runner.rest()

    def resume(self) -> None:
        """Allocate it again.

        Raises:
            ConfigError: a rank has it no more; all go on resting.
        """
        self._workers.tell(Resume())
        refused: list[str] = []
        try:
            with lost(self._workers):
                self._runner.resume()
        except ConfigError as error:
            refused.append(str(error))
        refused += [one.cause for one in self._workers.hear()]
        if refused:
            self.rest()
            raise ConfigError(refused[0])

    def close(self) -> None:
        """End the other ranks, free what this one has."""
        self._workers.close()
        self._group.close()  # before the runner, which waits for the device, and that for ranks which are no more
        self._runner.close()


@contextmanager
def lost(workers: Workers) -> Iterator[None]:
    """What a collective that fails within means: a rank was lost, and which."""
    try:
        yield
    except PeerLost as error:
        raise workers.cause_of(error) from error


class _Flight:
    """A step of all ranks."""

    def __init__(self, flight: InFlight, workers: Workers) -> None:
        self._flight = flight
        self._workers = workers

    def wait(self) -> SampledTokens:
        """What rank 0 sampled.

        Raises:
            RankDied: another rank was lost meanwhile.
        """
        with lost(self._workers):
            sampled = self._flight.wait()
        # Between GPUs the collective of a rank that is gone is cut short, and what came of it means nothing.
        self._workers.check()
        return sampled
