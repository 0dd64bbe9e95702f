"""Tensor parallelism: one model over several processes, a share of every layer each."""
