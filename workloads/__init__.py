"""What is asked of an engine: prompts, lengths and conversations, drawn from seeds."""
