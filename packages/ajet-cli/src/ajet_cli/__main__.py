"""`python -m ajet_cli` is `ajet`."""

from ajet_cli.main import main

main()
