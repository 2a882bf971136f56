"""``kvaware demo``: pods placed on a cluster described by YAML, by the real extender, with every decision shown."""
