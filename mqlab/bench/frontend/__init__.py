"""``mqlab bench frontend``: what the HTTP front costs for each token that it streams."""
