"""The types of `facade.kernel.clock`; what mypy lets a program do with them stands in ``microseconds.pyi``."""

Time = Duration = int
