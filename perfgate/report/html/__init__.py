"""A report as one HTML file that works offline: figures are SVG without scripts, and nothing is fetched."""
