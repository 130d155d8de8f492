"""One command a file; each holds a click command named `command`."""
