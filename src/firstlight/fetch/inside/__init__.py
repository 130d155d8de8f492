"""Scripts that run on another host with nothing but its Python 3 (3.7 or newer). They import nothing of ours."""
