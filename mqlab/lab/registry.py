"""The sessions of this kernel by name. Held weakly: a session that nobody else knows is dropped, and its engine with it."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakValueDictionary

from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.lab.session import Session


@dataclass(frozen=True)
class Served:
    """What makes two ``serve`` commands the same; ``layout`` tells the texts of a topology in a file of the user's own apart."""

    config: EngineConfig
    server: ServerConfig
    timing: Timing
    detach: bool = False
    layout: str = ""


class Registry:
    """Names to sessions, and what each one serves; None for one that is attached to."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._served: dict[str, Served | None] = {}

    def known(self) -> dict[str, Session]:
        """Sessions by name, also those that were stopped, as long as somebody holds them."""
        return dict(sorted(self._sessions.items()))

    def live(self) -> dict[str, Session]:
        """Sessions that were not stopped, by name."""
        return {name: session for name, session in self.known().items() if not session.stopped}

    def find(self, served: Served) -> Session | None:
        """A session that serves just this and is well: busy, too, for an engine in this process answers nobody during a step.

        Not one that has loaded another model since.
        """
        same = (session for name, session in self.live().items() if self._served[name] == served and session.info.epoch == 1)
        return next((session for session in same if session.state()[0] in ("ready", "busy")), None)

    def names(self, session: Session) -> list[str]:
        """Every name of a live session."""
        return [name for name, known in self.live().items() if known is session]

    def get(self, name: str) -> Session | None:
        """The live session of that name."""
        return self.live().get(name)

    def add(self, name: str, session: Session, served: Served | None) -> None:
        """Know a session by a name, its first or another one."""
        self._sessions[name] = session
        self._served[name] = served


SESSIONS = Registry()
"""The one of this process."""
