"""Quality metrics: arrays that the receive pipelines publish, as attributes of the devices."""
