"""The routes of both listeners, one file per audience: parse → engine → render."""
