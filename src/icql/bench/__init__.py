"""What an update and a retrieval cost on this machine, beside the paper's tables."""
