"""The decoder on a device: a GPU, or a CPU that stands in for one, by the same code."""
