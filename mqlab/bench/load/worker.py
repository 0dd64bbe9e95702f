"""A load process: ``python -m mqlab.bench.load.worker FRAMES_FD``, one job from stdin to FRAMES_FD (see messages).

It does nothing but send and stamp while the run lasts: bodies come encoded, figures are made elsewhere, records leave at the end.
It ends with its parent, whose end of the pipe is its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from io import FileIO

import msgspec
import uvloop

from mqlab.bench.load.messages import Done, Failed, Job, Progress, Ready, Start, ToWorker, read_frame, write_frame
from mqlab.bench.load.pulse import Pulse
from mqlab.bench.load.sender import Sender, open_session
from mqlab.wire.files import allow_many_files

_TELL_S = 0.25


def main() -> None:
    """Run one job."""
    frames_in, frames_out = FileIO(os.dup(0)), FileIO(int(sys.argv[1]), "w")
    allow_many_files()
    with contextlib.suppress(BrokenPipeError):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_Work(frames_in, frames_out).run())
        except Exception:
            write_frame(frames_out, Failed(traceback.format_exc()))


class _Work:
    """One job and its two pipes."""

    def __init__(self, frames_in: FileIO, frames_out: FileIO) -> None:
        self._in = frames_in
        self._out = frames_out
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)

    async def run(self) -> None:
        job = self._next()
        assert isinstance(job, Job)
        started = self._listen()
        async with open_session(job) as session:
            sender = Sender(job, session)
            warm_up = await sender.run(job.warm_up, 0)
            write_frame(self._out, Ready([record.error for record in warm_up if record.error]))
            start = await started
            await self._measure(sender, job, start)

    async def _measure(self, sender: Sender, job: Job, start: Start) -> None:
        pulse = Pulse()
        telling = asyncio.create_task(self._tell(sender))
        records = await sender.run(job.calls, start.at_ns)
        load = pulse.stop()
        telling.cancel()
        write_frame(self._out, Done(records, load))

    async def _tell(self, sender: Sender) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            write_frame(self._out, Progress(sender.ended))

    def _listen(self) -> asyncio.Future[Start]:
        """Resolves with the start; from here on the end of the pipe ends this process, whatever it does."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Start] = loop.create_future()
        loop.add_reader(self._in.fileno(), lambda: started.set_result(self._start()))
        return started

    def _start(self) -> Start:
        message = self._next()
        assert isinstance(message, Start)
        return message

    def _next(self) -> Job | Start:
        frame = read_frame(self._in)
        if frame is None:
            os._exit(1)
        return self._decoder.decode(frame)


if __name__ == "__main__":
    main()
