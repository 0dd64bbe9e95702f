"""The live streams of a client, by request id."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqlab.client.direct import Direct, Owner
from mqlab.client.mailbox import Holding, Mailbox
from mqlab.client.slot import Slot
from mqlab.errors import InvalidRequest, MqlabError
from mqlab.types import Delta, Request


class Streams:
    """Opens, feeds and ends the mailboxes of requests. All methods on the event loop's thread.

    Where ``kind`` allows it, another thread may put deltas that end no request.

    Args:
        kind: of the mailboxes that hold deltas for a reader.
    """

    def __init__(self, kind: type[Holding] = Slot) -> None:
        self.kind = kind
        self._slots: dict[str, Mailbox] = {}

    def __len__(self) -> int:
        """How many there are, with those that were left and whose core has not ended them yet."""
        return len(self._slots)

    @property
    def idle(self) -> bool:
        """Whether every stream has all that it will get."""
        return all(slot.finished for slot in self._slots.values())

    async def open(self, request: Request) -> Holding:
        """A mailbox for a new request, to be read. Waits while a request that was left early still owns the id.

        Raises:
            InvalidRequest: the id is running.
        """
        await self._own(request)
        slot = self._slots[request.id] = self._new_slot(request)
        return slot

    async def open_direct(self, request: Request, owner: Owner) -> Direct:
        """Like ``open``, but what arrives is handed to ``owner`` at once.

        Raises:
            InvalidRequest: the id is running.
        """
        await self._own(request)
        slot = self._slots[request.id] = self._new_direct(request, owner)
        return slot

    async def _own(self, request: Request) -> None:
        while (old := self._slots.get(request.id)) is not None:
            if not old.left:
                raise InvalidRequest(f"request id {request.id!r} is already running; ids must be unique among live requests")
            await old.ended()

    def _new_slot(self, request: Request) -> Holding:
        del request
        return self.kind()

    def _new_direct(self, request: Request, owner: Owner) -> Direct:
        del request
        return Direct(owner)

    def leave(self, request_id: str, last: Delta | None, *, alive: bool) -> bool:
        """Its reader goes, having been given ``last`` at last. True when the core is ``alive`` and must be told: it has not finished."""
        slot = self._slots[request_id]
        if slot.finished or not alive:
            del self._slots[request_id]
            return False
        slot.left = True
        return True

    def put(self, deltas: Iterable[Delta]) -> None:
        """What a step brought; unknown ids are ignored."""
        slots = self._slots
        for delta in deltas:
            slot = slots.get(delta.id)
            if slot is None:
                continue
            if slot.left:
                if delta.finish is None:
                    continue
                del slots[delta.id]
            slot.put(delta)

    def fail(self, make_error: Callable[[], MqlabError]) -> None:
        """End every stream; each with an error of its own, for a raised exception carries its raiser's traceback."""
        for request_id, slot in list(self._slots.items()):
            if slot.left:
                del self._slots[request_id]
            slot.fail(make_error())
