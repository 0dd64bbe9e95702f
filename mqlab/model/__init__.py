"""Tensors: the decoder, its KV memory, attention, sampling. The only package with torch."""
