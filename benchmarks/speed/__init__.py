"""Speed of the package against plain code, the hardware and other methods."""
