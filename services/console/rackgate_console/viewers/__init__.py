"""Who looks at the console, and what they may see."""
