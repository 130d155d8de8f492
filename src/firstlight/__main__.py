"""`python -m firstlight`."""

from firstlight.app.main import main

main()
