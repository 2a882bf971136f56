"""How a worker is chosen for a request: one file per policy, all over the same candidates."""
