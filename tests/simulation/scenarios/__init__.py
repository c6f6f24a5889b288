"""Small scenarios that are played on a real broker and on the model of the brokers; what they tell must be the same."""
