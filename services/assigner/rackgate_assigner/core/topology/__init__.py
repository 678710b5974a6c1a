"""The domains of a flavor, and the numbers over them."""
