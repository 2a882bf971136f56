"""One module per kind: key → what is → what is written. Each look is safe to run twice, late, or after a crash."""
