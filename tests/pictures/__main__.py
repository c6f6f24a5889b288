"""``python -m tests.pictures [--check]``: draw the pictures of the documentation, or say which are not up to date."""

import sys
import tomllib
from pathlib import Path

from tests.pictures.drawing import draw

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def stale() -> dict[Path, str]:
    """Return the pictures that are not what their descriptions give, with what they should be."""
    drawn = {source.with_suffix(".svg"): draw(tomllib.loads(source.read_text())) for source in IMAGES.glob("*.toml")}
    return {file: text for file, text in sorted(drawn.items()) if not file.is_file() or file.read_text() != text}


if __name__ == "__main__":
    found = stale()
    if "--check" in sys.argv[1:]:
        for file in found:
            print(f"{file}: not what {file.with_suffix('.toml').name} gives; run `make pictures`")
        raise SystemExit(bool(found))
    for file, text in found.items():
        file.write_text(text)
        print(file)
