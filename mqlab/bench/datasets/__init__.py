"""Prompts to measure with: made, or read from the formats that the field uses."""

from mqlab.bench.datasets.load import load_samples, settled
from mqlab.bench.datasets.sample import ByteTokenizer, Encoder, Sample, prompt_ids

__all__ = ["ByteTokenizer", "Encoder", "Sample", "load_samples", "prompt_ids", "settled"]
