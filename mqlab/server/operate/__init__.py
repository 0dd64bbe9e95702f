"""The routes that operate and watch a server, and the document that tells of all routes."""
