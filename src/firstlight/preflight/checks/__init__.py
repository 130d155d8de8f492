"""The checks, a file a topic. Each returns findings and changes nothing."""
