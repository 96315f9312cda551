"""Published groups of measurements as evidence: the prior of causes, and what a few measurements of a group teach."""
