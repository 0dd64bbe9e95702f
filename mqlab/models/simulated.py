"""Names of simulated models: sim:<model>@<device>."""

from __future__ import annotations

from dataclasses import dataclass

from mqlab.errors import ModelError
from mqlab.models.devices import device_names

PREFIX = "sim:"
_FORM = f"{PREFIX}<model>@<device>"


def is_simulated(model: str) -> bool:
    """Whether a model's name asks for the simulated device."""
    return model.startswith(PREFIX)


@dataclass(frozen=True)
class Simulated:
    """What such a name says.

    Attributes:
        model: whose shape is simulated: a shipped one, a folder with config.json, or any other model.
        device: name, alias or .toml file of the device.
    """

    model: str
    device: str

    @staticmethod
    def parse(name: str) -> Simulated:
        """Of a name that begins with ``sim:``.

        Raises:
            ModelError: model or device is missing.
        """
        model, at, device = name.removeprefix(PREFIX).rpartition("@")
        if not (at and model and device):
            missing = "device" if not (at and device) else "model"
            known = ", ".join(device_names())
            raise ModelError(f"{name!r} names no {missing}; write {_FORM}, such as {PREFIX}llama-3.1-8b@h100, with one of {known}")
        return Simulated(model, device)
