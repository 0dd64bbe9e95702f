"""The settings of ``mqlab bench seeds``; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass

from mqlab.config import check, check_types, option


@dataclass(frozen=True, kw_only=True)
class SeedsConfig:
    """How often, and where the results go."""

    rounds: int | None = option(None, "runs of each arm, in turns; each experiment's own number unless given")
    quick: bool = option(False, "short runs, three rounds: to see that everything works, not to quote")
    model: str | None = option(None, "another model for all experiments, for example echo:smollm2-135m")
    traces: bool = option(False, "keep what the probes recorded of an experiment's arms as well, as NAME.mqtrace")
    output_dir: str = option("out/seeds", "one JSON for each experiment is written there", metavar="DIR")

    def __post_init__(self) -> None:
        check_types(self)
        check(self.rounds is None or self.rounds >= 3, self, "rounds", "must be at least 3: fewer runs have no interval")
