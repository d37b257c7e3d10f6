"""`python -m skillserver` is the console script."""

from skillserver.cli import main

main()
