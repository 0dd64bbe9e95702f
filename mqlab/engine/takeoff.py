"""One step: while it is decided, as it departs, and when it is back."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqlab.engine import chunks
from mqlab.engine.sequence import Sequence
from mqlab.engine.tables import BlockTables
from mqlab.plan import Chunk, Plan


@dataclass(slots=True)
class Landed:
    """A step whose plan is done.

    Attributes:
        flown: its sequences, a row of the plan each.
        drew: those that it sampled, in the order of ``Plan.sampling``.
        done: those that wanted only their prompt computed, and have it.
        guessed: how many guesses it verified, by place in ``drew``.
        tokens: that it ran, those of all its rounds.
    """

    flown: tuple[Sequence, ...]
    drew: list[Sequence]
    done: list[Sequence]
    guessed: dict[int, int] = field(default_factory=dict)
    tokens: int = 0


@dataclass(slots=True)
class Agenda:
    """The next step while it is planned.

    Attributes:
        budget: tokens that it may still take.
        decoding: sequences that run their last token, which then draw.
        prompts: those with more to run, and how many of it.
        partial: running ones with more to run, still to be considered.
        rounds: of those that decode more than once.
        guesses: of those that are to verify some.
    """

    budget: int
    decoding: list[Sequence] = field(default_factory=list)
    prompts: list[tuple[Sequence, int]] = field(default_factory=list)
    partial: list[Sequence] = field(default_factory=list)
    rounds: dict[Sequence, int] = field(default_factory=dict)
    guesses: dict[Sequence, tuple[int, ...]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many it runs, those of all rounds."""
        count = len(self.decoding)
        if self.prompts:
            count += sum([own for _, own in self.prompts])
        if self.rounds:
            count += sum(self.rounds.values()) - len(self.rounds)
        if self.guesses:
            count += sum(map(len, self.guesses.values()))
        return count


def take_off(agenda: Agenda, tables: BlockTables) -> tuple[Plan, Landed]:
    """The plan of a step that is decided, and what to keep until it is back. Its sequences count as that far from here on."""
    flown = (*agenda.decoding, *[sequence for sequence, _ in agenda.prompts])
    landed = Landed(flown, agenda.decoding, [], tokens=agenda.tokens)
    plan = Plan((*_decodes(agenda, tables, landed), *_prompts(agenda, tables, landed)))
    for sequence in flown:
        sequence.flights += 1
    return plan, landed


def _decodes(agenda: Agenda, tables: BlockTables, landed: Landed) -> list[Chunk]:
    made: list[Chunk] = []
    rounds, guesses, block_size = agenda.rounds, agenda.guesses, tables.block_size
    for row, sequence in enumerate(agenda.decoding):
        own = guesses.get(sequence, ()) if guesses else ()
        made.append(chunks.decode(sequence, block_size, rounds[sequence] if rounds else 1, own))
        sequence.row = row
        if own:
            landed.guessed[row] = len(own)
        if sequence.computed >= sequence.name_at:
            tables.note(sequence, sequence.computed)
    return made


def _prompts(agenda: Agenda, tables: BlockTables, landed: Landed) -> list[Chunk]:
    made: list[Chunk] = []
    for sequence, count in agenda.prompts:
        chunk = chunks.prompt(sequence, count, tables.block_size)
        made.append(chunk)
        if chunk.samples:
            sequence.row = len(landed.drew)
            landed.drew.append(sequence)
        elif not sequence.draws and not sequence.pending:
            landed.done.append(sequence)
    return made
