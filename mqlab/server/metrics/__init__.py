"""What a server counts, and the page that tells it."""
