"""Load and measurement."""
