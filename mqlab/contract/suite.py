"""``mqlab check-topology``: every check of the contract against one topology, in processes of their own."""

from __future__ import annotations

import time

from mqlab.bars import progress_bar
from mqlab.contract.options import CheckConfig
from mqlab.contract.pool import Pool
from mqlab.contract.verdict import Verdict
from mqlab.topologies import layout_label


def check_topology(config: CheckConfig, *, progress: bool = True) -> Verdict:
    """Put a topology through the contract. Its code runs in other processes only; an interrupt ends them.

    Raises:
        ConfigError: no such topology, or it cannot be loaded; no such check.
    """
    begin = time.monotonic()
    outcomes = []
    with Pool(config) as pool:
        names = [case.name for case in pool.plan.cases if not case.skipped]
        with progress_bar(layout_label(config.topology), shown=progress, total=len(names), unit="check") as bar:
            for outcome in pool.run(names):
                outcomes.append(outcome)
                bar.update()
                if failed := sum(not one.passed for one in outcomes):
                    bar.set_postfix_str(f"{failed} failed")
    return Verdict(config, pool.plan.cases, outcomes, time.monotonic() - begin)


def main(config: CheckConfig) -> int:
    """The command; 0 where all passed, 1 where one failed."""
    verdict = check_topology(config)
    print(verdict)
    return 0 if verdict.ok else 1
