"""``kvaware replay``: recorded requests sent through the real extender, to modelled workers, once per policy."""
