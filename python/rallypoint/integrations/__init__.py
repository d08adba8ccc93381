"""Callbacks for training libraries: their steps, checkpoints and evaluations.

`rallypoint.integrations.transformers`, `.lightning` and `.accelerate` each import their library
and nothing else of this package imports them. In a process that Rallypoint's agent has not
started they only fence the checkpoints (rallypoint.fence). `.jax` tells JAX where its processes
are.
"""
