"""Pages and live blocks for people: what a struct looks like on a terminal. A view decides nothing and starts nothing."""
