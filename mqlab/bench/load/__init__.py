"""Sends requests from processes of their own and stamps what comes back."""
