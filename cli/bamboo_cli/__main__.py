"""`python -m bamboo_cli`: the `bamboo` command."""

from bamboo_cli.main import main

main()
