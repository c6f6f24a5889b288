"""The flows: one folder for each kind of data, which plugs in by its manifest.

They are for a site that runs the facade of SDP. A flow in ``facade/flows/NAME`` has its messages, worker, view and
simulator, and imports no other flow; what several share is in `facade.sdp`. Begin with ``manifest.py`` and
``composition.py`` of a small one, such as ``facade/flows/quality``. ``docs/how-to/add-a-flow.md`` makes a new one.
"""
