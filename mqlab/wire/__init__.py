"""Plumbing that every topology shares; no policy."""
