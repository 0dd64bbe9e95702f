"""Measurements and faults that wrap a seam."""
