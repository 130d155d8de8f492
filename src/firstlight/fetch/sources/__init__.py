"""The built-in sources, registered like any third party's."""
