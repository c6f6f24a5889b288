"""The pictures of the documentation: each ``docs/images/NAME.toml`` becomes ``docs/images/NAME.svg``.

``python -m tests.pictures`` draws them, ``--check`` says which are not up to date.
"""
