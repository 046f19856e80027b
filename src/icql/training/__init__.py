"""The training loop and everything a run leaves behind."""
