"""The runner of rank 0: what it runs, the other ranks run too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from mqlab.errors import ConfigError, RankDied
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
        with self._together():
            return _Flight(self._runner.launch(plan), self._together, self.check)

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
            ConfigError: a rank has it no more; all go on resting, unless ``check`` says that one failed in the midst of what all do.
        """
        self._workers.tell(Resume())
        with self._together():
            refused = self._own_refusal()
        refused += [one.cause for one in self._workers.hear()]
        if refused:
            self.rest()
            raise ConfigError(refused[0])

    def _own_refusal(self) -> list[str]:
        try:
            self._runner.resume()
        except ConfigError as error:
            if self._group.closed:
                raise
            return [str(error)]
        return []

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all ranks do at once: when it fails here alone, the others would wait for this one, and this one then for their answers."""
        try:
            with lost(self._workers):
                yield
        except RankDied:
            raise
        except Exception as error:
            self._group.close()
            self._workers.give_up(f"rank 0 of the model failed: {type(error).__name__}: {error}")
            raise

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

    def __init__(self, flight: InFlight, together: Callable[[], AbstractContextManager[None]], check: Callable[[], None]) -> None:
        self._flight = flight
        self._together = together
        self._check = check

    def wait(self) -> SampledTokens:
        """What rank 0 sampled.

        Raises:
            RankDied: another rank was lost meanwhile.
        """
        with self._together():
            sampled = self._flight.wait()
        # Between GPUs the collective of a rank that is gone is cut short, and what came of it means nothing.
        self._check()
        return sampled
