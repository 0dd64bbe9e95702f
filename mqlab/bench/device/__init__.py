"""``mqlab bench device``: what a GPU reaches, and what of that kernels, decode steps and engines reach."""
