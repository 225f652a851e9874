"""What the night measured of the main branch: noise bands to propose, and one issue where it became slower."""
