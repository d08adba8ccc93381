"""Launching workers: what runs them, what runs in them, and how they fail."""
