"""Components of the policy loss."""
