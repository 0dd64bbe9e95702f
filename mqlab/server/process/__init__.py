"""The processes of a server: one front or several, launched, watched, ended."""
