"""What the probe asks. A file a topic; each fact is a command and a pure parser, tested by folders in tests/facts/."""
