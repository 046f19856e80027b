"""A page to look at: a run's states, values, actions and alarms, and the evidence for each."""
