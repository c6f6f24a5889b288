"""`make containers`: the images, Compose and Prometheus of docker/, started for real and driven from outside."""
