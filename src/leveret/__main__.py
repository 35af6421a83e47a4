"""`python -m leveret`."""

from leveret.cli.main import app

app()
