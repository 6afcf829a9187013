"""Bill of materials in CycloneDX 1.6 for each file of a release."""

import email
import re
import sys
import uuid
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.build_tools import commit, sha256, source_date_s, version_number
from deploy.components import Carried, ComponentSource

SUFFIX: Final = ".cdx.json"
# Namespace for serial numbers, which can be any fixed one.
_SPACE: Final = uuid.UUID("6c0a4f0e-0f0b-5f3a-9d63-5a0c2f2ad0a5")


def write_sbom(artefact: Path, components: Iterable[Component]) -> Path:
    """Write ``ARTEFACT.cdx.json``, with the same bytes for the same artefact and components.

    Args:
        artefact: File to describe.
        components: Components that it has or needs.

    Returns:
        The path of the new file.
    """
    digest = sha256(artefact)
    bom = Bom(serial_number=uuid.uuid5(_SPACE, digest), components=components)
    bom.metadata.timestamp = datetime.fromtimestamp(source_date_s(), UTC)
    complete = Component(
        type=ComponentType.CONTAINER if ".oci" in artefact.name else ComponentType.APPLICATION,
        name="broadside",
        version=version_number(),
        bom_ref=artefact.name,
        description=artefact.name,
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        properties=[Property(name="broadside:commit", value=commit() or "unknown")],
    )
    bom.metadata.component = complete
    bom.register_dependency(complete, bom.components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the bill of materials of {artefact.name} is not CycloneDX 1.6: {problem}")
    output = artefact.with_name(artefact.name + SUFFIX)
    output.write_text(text + "\n", "utf-8")
    return output


def carried_components(carried: Iterable[Carried]) -> Iterable[Component]:
    """Return an entry for each component in an archive."""
    for item in carried:
        url = _package_url(item)
        # There can be a package for each Python version.
        reference = f"{url}#{item.sha256}" if item.sha256 else str(url)
        licences = LicenseFactory()
        result = (
            licences.make_from_string(item.licence)
            if item.kind is not ComponentSource.DEBIAN
            else licences.make_with_name(item.licence)
        )
        yield Component(
            type=ComponentType.LIBRARY,
            name=item.name,
            version=item.version,
            bom_ref=reference,
            purl=url,
            licenses=[result] if item.licence else (),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=item.sha256)]
            if item.sha256
            else (),
        )


def required_components(wheel: Path) -> Iterable[Component]:
    """Return an entry for each dependency of a wheel, with its version limits."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (item for item in opened.namelist() if item.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(opened.read(name))
    for line in fields.get_all("Requires-Dist") or ():
        required = re.match(r"[A-Za-z0-9._-]+", str(line))
        if required is None:
            sys.exit(f"{wheel.name} needs {line!r}, which names no package")
        url = PackageURL("pypi", name=required[0].lower().replace("_", "-"))
        yield Component(
            type=ComponentType.LIBRARY,
            name=url.name,
            bom_ref=str(line),
            purl=url,
            properties=[Property(name="broadside:requires", value=str(line))],
        )


def _package_url(part: Carried) -> PackageURL:
    match part.kind:
        case ComponentSource.PYTHON:
            return PackageURL("pypi", name=part.name, version=part.version)
        case ComponentSource.DEBIAN:
            return PackageURL(
                "deb",
                "debian",
                part.name,
                part.version,
                {"arch": "amd64", "distro": "trixie"},
            )
        case ComponentSource.GO:
            space, _, name = part.name.rpartition("/")
            return PackageURL("golang", space or None, name, part.version)
