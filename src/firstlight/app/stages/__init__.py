"""The stages of `up`, each a coroutine over the Session that returns one line of summary."""
