"""Unpacks an OCI image layout as a runtime does: image.py LAYOUT FOLDER.

For each machine FOLDER/<machine> gets `root`, its files, and `entrypoint`, a word a line.
"""

import gzip
import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

layout, folder = Path(sys.argv[1]), Path(sys.argv[2])
assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def blob(descriptor: dict[str, Any]) -> bytes:
    text = (layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    assert len(text) == descriptor["size"], descriptor
    return text


[entry] = json.loads((layout / "index.json").read_text())["manifests"]
version = Path("VERSION").read_text().strip()
assert entry["annotations"]["org.opencontainers.image.ref.name"] == version
machines = []
for image in json.loads(blob(entry))["manifests"]:
    manifest = json.loads(blob(image))
    config = json.loads(blob(manifest["config"]))
    machine = config["architecture"]
    assert image["platform"] == {"architecture": machine, "os": "linux"}
    machines.append(machine)
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"])
    root = folder / machine / "root"
    root.mkdir(parents=True)
    for layer, digest in zip(manifest["layers"], config["rootfs"]["diff_ids"]):
        packed = folder / machine / "layer.tar.gz"
        packed.write_bytes(blob(layer))
        with tarfile.open(packed) as archive:
            assert {(m.name, m.uid) for m in archive if m.uid} == {("data", 65532)}
            archive.extractall(root, numeric_owner=True, filter="fully_trusted")
        assert (
            digest == "sha256:" + hashlib.sha256(gzip.decompress(packed.read_bytes())).hexdigest()
        )
    settings = config["config"]
    assert settings["User"] == "65532:65532" and set(settings["Volumes"]) == {"/data"}
    (folder / machine / "entrypoint").write_text("\n".join(settings["Entrypoint"]) + "\n")
    # The recipe that builds it by hand starts the same.
    recipe = Path("examples/container/Containerfile").read_text()
    assert f"ENTRYPOINT {json.dumps(settings['Entrypoint'])}" in recipe
assert machines == ["amd64", "arm64"]
