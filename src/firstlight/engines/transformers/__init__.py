"""transformers is no serving engine; on the CPU it computes trusted next-token distributions of small models."""
