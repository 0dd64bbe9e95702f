"""Tensors: the decoder, its KV memory, attention, sampling. The only package with torch."""

from mqlab.config import calm_openmp

calm_openmp()
