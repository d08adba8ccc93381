"""What torch is given: its kinds of stores and errors, its events and metrics."""
