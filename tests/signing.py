"""Checksums of a saved folder made right again, as a stranger who wants to be believed would."""

from __future__ import annotations

import json
from pathlib import Path

from pyro_mgp.storage import untrusted
from pyro_mgp.storage.header import own_checksum


def sign(folder: Path) -> None:
    """Write the checksums of the files as they are into the header, and that of the header itself."""
    header = json.loads((folder / "header.json").read_text("utf-8"))
    files = [path for path in folder.iterdir() if path.name != "header.json" and path.is_file()]
    header["checksums"] = {path.name: untrusted.digest(path) for path in files}
    header["checksum"] = own_checksum(header)
    (folder / "header.json").write_text(json.dumps(header), "utf-8")
