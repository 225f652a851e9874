"""One kit for every picture: shapes as values, axes, lines, and a picture as an SVG file of its own."""
