"""Raw objects and text in, observations for the engine out. Pure: no clock, no log, no I/O."""
