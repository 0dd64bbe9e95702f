"""``python -m mqlab``: the ``mqlab`` command."""

from mqlab.cli import entry

entry()
