"""Evidence for every value: the transitions behind it, and an alarm where there are none."""
