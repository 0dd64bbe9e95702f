"""Kernels, one a file: the kernel and its reference side by side."""
