"""How fast attention and serving are: what making serving faster is worth, beside what it costs in answers."""
