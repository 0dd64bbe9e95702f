"""A model's name or path becomes a local model folder; torch-free."""
