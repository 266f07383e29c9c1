"""An engine that samples from a Hugging Face model in this process."""
