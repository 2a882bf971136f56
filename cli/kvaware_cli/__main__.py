"""``python -m kvaware_cli``: the ``kvaware`` command without its entry point, as the demo starts it."""

from kvaware_cli.main import main

main()
