"""The prose linter of `make lint`: proselint, and a small style of ours with the glossary as its vocabulary."""
