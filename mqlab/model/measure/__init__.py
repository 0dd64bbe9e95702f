"""What ``mqlab bench device`` measures where the tensors are: ceilings of a device, kernels, decode steps, bubbles.

Every function that is a job of the bench runs in a process that does nothing else, takes plain values and gives rows (``rows.py``). The
same code runs on a GPU and, at sizes of a few tokens, on a CPU with Triton's interpreter, where its times mean nothing.
"""
