"""Kernels compiled ahead of time, which needs no GPU, and what of a GPU each takes: registers, spills, shared memory."""
