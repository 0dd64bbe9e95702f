"""Text-level use of any client."""
