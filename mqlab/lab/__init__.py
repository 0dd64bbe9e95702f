"""The notebook surface, thin."""
