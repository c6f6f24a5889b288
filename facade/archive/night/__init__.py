"""The report of a night: figures from an archive, and the page that shows them."""
