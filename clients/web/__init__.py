"""The operator's page: Tango events in a browser, and operators' actions from it.

`feed` follows attributes and numbers each change; `doors` decides on requests; `app` answers them; `static/` is the
page. The server is a Tango client like any other: a deployment does not notice whether it runs.
"""
