"""Parts of the policy loss."""
