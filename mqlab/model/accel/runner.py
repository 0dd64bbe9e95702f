"""The runner of a device: each step is enqueued and left to itself, and its tokens come back by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from mqlab.model.accel.accelerator import Accelerator
from mqlab.model.accel.flight import Landing, Pending
from mqlab.model.accel.following import StepSampler
from mqlab.model.accel.memory import memory_left
from mqlab.model.accel.steps import Steps
from mqlab.plan import Plan, SampledTokens
from mqlab.types import ModelInfo

logger = logging.getLogger("mqlab.model")


class DeviceRunner:
    """Obeys Runner on an accelerator.

    ``launch`` enqueues everything on one stream and returns: the copy of the step's numbers, the forward pass (a graph for decodes), the
    draws, and for several rounds all of these again on what the device itself moves on; at last the copy of the tokens to the host, with an
    event behind it. What the host must see before it can go on (logits of a row that steers or wants logprobs) is left over: it is done
    when the step is waited for, or when the next one is launched. On all ranks that share a model the collectives therefore come in one
    order, whatever rank 0 alone knows of the requests.

    Args:
        info: what clients must know.
        accelerator: the device.
        open_steps: gives what runs steps, with KV memory; called again after a rest. What it closes over are the weights.
        sampler: draws.

    Raises:
        ConfigError: the device has not the memory for the cache.

    Attributes:
        sampler: draws of logits; a probe may put a wrapper in its place between steps.
    """

    def __init__(self, info: ModelInfo, accelerator: Accelerator, open_steps: Callable[[], Steps], sampler: StepSampler) -> None:
        self.info = info
        self.sampler: Callable[..., Tensor] = sampler.draw
        self._accelerator = accelerator
        self._open_steps: Callable[[], Steps] | None = open_steps
        self._finish = sampler.finish
        self._landings: list[Landing] = []
        self._before: Pending | None = None
        self._left: Pending | None = None
        self._steps: Steps | None = None
        self.resume()

    def launch(self, plan: Plan) -> DeviceFlight:
        """Enqueue one step.

        Raises:
            RuntimeError: closed or resting; or what was left over of the step before failed.
        """
        steps = self._steps
        if steps is None:
            raise RuntimeError("the runner is closed" if self._open_steps is None else "the runner rests: it has no KV memory")
        with self._accelerator.active(), torch.inference_mode():
            self._finish_left(steps)
            self._note_verified(steps, plan)
            step = steps.begin(plan, self._landings.pop() if self._landings else steps.landing(self._accelerator))
            if step.by_host:
                self._left = step
            else:
                steps.finish(step, self.sampler)
        self._before = step
        return DeviceFlight(self, step)

    def wait(self, step: Pending) -> SampledTokens:
        """Block until a step is done; what was left over of it is done here.

        Raises:
            RuntimeError: closed, or logits that are not finite.
        """
        if step.answer is not None:
            return step.answer
        with self._accelerator.active(), torch.inference_mode():
            if step is self._left:
                if self._steps is None:
                    raise RuntimeError("the runner is closed")
                self._finish_left(self._steps)
            step.landing.ended.wait()
        step.answer = step.answered(self._finish)
        step.let_go()
        self._landings.append(step.landing)
        return step.answer

    def has_enqueued(self, step: Pending) -> bool:
        """Whether nothing of a step was left over."""
        return step is not self._left

    def check(self) -> None:
        """Nothing is needed but this process and its device, which says so itself."""

    def rest(self) -> None:
        """Free the KV memory, and the graphs that hold its addresses."""
        self._steps = self._before = None
        self._accelerator.release()

    def resume(self) -> None:
        """Allocate it again, and capture.

        Raises:
            ConfigError: the device has it no more, or not what the graphs take; the runner goes on resting.
        """
        assert self._open_steps is not None, "it rests"
        with memory_left("to capture graphs"), self._accelerator.active(), torch.inference_mode():
            self._steps = self._open_steps()

    def close(self) -> None:
        """Free weights and KV memory, once the device is done with what it was given, or has failed."""
        if self._open_steps is None:
            return
        try:
            self._accelerator.finish()
        except RuntimeError as error:  # what failed a step fails all that comes after it, and the step has told
            logger.warning("the device has failed: %s", error)
        self._open_steps = self._steps = self._before = self._left = None
        with suppress(RuntimeError):
            self._accelerator.release()

    def _finish_left(self, steps: Steps) -> None:
        step, self._left = self._left, None
        if step is not None:
            steps.finish(step, self.sampler)

    def _note_verified(self, steps: Steps, plan: Plan) -> None:
        """Where chunks follow a plan with drafts: how many of these were right, the host finds out."""
        before = self._before
        if before is None or not any(chunk.drafts for chunk in before.plan.chunks):
            return
        if any(chunk.follows is not None for chunk in plan.chunks):
            steps.note_last([tokens[-1] for tokens in self.wait(before).tokens])


class DeviceFlight:
    """A step that was launched."""

    def __init__(self, runner: DeviceRunner, step: Pending) -> None:
        self._runner = runner
        self._step = step

    @property
    def enqueued(self) -> bool:
        """Whether all of it is with the device, and nothing was left for the host."""
        return self._runner.has_enqueued(self._step)

    def wait(self) -> SampledTokens:
        """Its tokens, when they are there."""
        return self._runner.wait(self._step)
