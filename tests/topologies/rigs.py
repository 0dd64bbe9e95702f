"""The topologies of this package, as rigs for the contract; what each can do is said in its own module."""

from __future__ import annotations

from mqlab.contract.cases import rig_of
from mqlab.topologies import TOPOLOGIES

PICKLED = ("mq", "v1", "detok_chain", "detok_ring")
"""Those whose messages are also tried over the second codec."""

RIGS = (*map(rig_of, TOPOLOGIES), *(rig_of(topology, "pickle") for topology in PICKLED))
