"""From a config to a runner over several processes: this one is rank 0, and the engine's."""

from __future__ import annotations

from itertools import count

from torch._C._distributed_c10d import PrefixStore

from mqlab.config import EngineConfig, Settings
from mqlab.model import load
from mqlab.model.making import Alone
from mqlab.model.parallel.messages import Build, Connect
from mqlab.model.parallel.ranks import Ranks, local_ranks
from mqlab.model.parallel.runner import ParallelRunner, lost
from mqlab.model.parallel.torchrun import remote_ranks

_keys = count()


def foresee(config: EngineConfig) -> None:
    """See whether ``build`` could, as far as one can without memory.

    Raises:
        ConfigError, ModelError: as ``build``.
    """
    load.foresee(config, Alone(size=config.tensor_parallel_size))


def build(config: EngineConfig) -> ParallelRunner:
    """Start the other ranks, or meet those that torchrun has started, and open the model on all of them.

    Raises:
        ConfigError, ModelError: as ``mqlab.model.load.build``, on any rank. RankDied: one failed otherwise.
    """
    foresee(config)  # what cannot be is told before anything is started
    torchrun = Settings.read().torchrun
    ranks = local_ranks(config.tensor_parallel_size) if torchrun is None else remote_ranks(config, torchrun)
    try:
        return _open(config, ranks)
    except BaseException:
        ranks.workers.close()
        raise


def _open(config: EngineConfig, ranks: Ranks) -> ParallelRunner:
    workers, key = ranks.workers, f"engine-{next(_keys)}"
    ranks.place.check(config)
    workers.ask(Build(config))
    workers.tell(Connect(key))
    with lost(workers):
        group = ranks.place.meet(PrefixStore(key, ranks.store), config)
        try:
            workers.on_death(group.abort)
            runner = load.build(config, group)
        except BaseException:
            group.close()  # the others may wait for this rank
            raise
    return ParallelRunner(runner, workers, group)
