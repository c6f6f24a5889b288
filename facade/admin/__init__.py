"""What an administrator of the bus does: topics, rights, quotas, checks, and the redrive of dead letters."""
