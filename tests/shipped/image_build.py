"""Build the container images of deploy/docker/Dockerfile with buildah, without an engine.

The base image is the cached Debian 13 root of ``debian_roots`` without the files that Debian's slim
images exclude. Layers are stored beside the roots, so a second build takes seconds. Only one
process at a time uses them.

The build context contains the files that .dockerignore permits, and certificate authorities. These
are the machine's own for a proxy that inspects TLS, and one of the tests (:class:`Authority`).
"""

import datetime as dt
import fcntl
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.azure.wheelhouse import ROOT
from tests.shipped.debian_roots import TRIXIE, debian_root, roots_folder

BASE: Final = "localhost/debian:trixie-slim"
# The images of docker-compose.yml by stage of the Dockerfile.
TAGS: Final[Mapping[str, str]] = {
    "broadside": "localhost/broadside:local",
    "chrony": "localhost/broadside-chrony:local",
}
# The dpkg exclusions of Debian's slim images. Existing files are removed as well.
SLIM: Final = ("doc", "info", "lintian", "locale", "man")
STORE_MAX_BYTES: Final = 8 * 10**9
BUILD_TIMEOUT_S: Final = 1800
MACHINE_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Built and mounted image with its settings."""

    name: str
    root: Path
    size_bytes: int
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    folder: str
    uid: int
    gid: int


class Authority:
    """Certificate authority that the image trusts, because it was in deploy/docker/ca."""

    def __init__(self, folder: Path):
        """Create the authority in a folder, or load the existing one.

        Cached layers depend on it.
        """
        self.certificate = folder / "authority.crt"
        self._key = folder / "authority.key"
        if not self.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            made = _certificate("Broadside tests", key, "Broadside tests", key, authority=True)
            self._key.write_bytes(_pem(key))
            self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, folder: Path) -> Path:
        """Return a PEM file with the key and the certificate of a DNS name."""
        signer = serialization.load_pem_private_key(self._key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        issued = _certificate(name, key, "Broadside tests", signer, authority=False)
        path = folder / f"{name}.pem"
        path.write_bytes(_pem(key) + issued.public_bytes(serialization.Encoding.PEM))
        return path


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = dt.datetime.now(dt.UTC)
    usage = functools.partial(
        x509.KeyUsage,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    local, signers = key.public_key(), signer.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(local)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=3650 if authority else 30))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            usage(digital_signature=True, key_cert_sign=authority, crl_sign=authority),
            critical=True,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(local), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signers), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@contextmanager
def built_images() -> Iterator[tuple[Mapping[str, Image], Authority]]:
    """Build the images of both stages, and mount them for the duration of the context.

    Yields:
        Images by their names in docker-compose.yml, and the authority that they trust.

    Raises:
        RuntimeError: buildah is missing or failed, with the end of its output.
    """
    if shutil.which("buildah") is None:
        raise RuntimeError("buildah is missing; run: make tools")
    folder = roots_folder() / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = _Store(folder)
        authority = Authority(folder)
        try:
            store.prepare()
            with tempfile.TemporaryDirectory(prefix="broadside-context-") as context:
                _write_context(Path(context), authority)
                for stage, tag in TAGS.items():
                    store.build(stage, tag, Path(context))
            yield {tag.partition("/")[2]: store.mount(tag) for tag in TAGS.values()}, authority
        finally:
            store.buildah("rm", "--all")


def _write_context(folder: Path, authority: Authority) -> None:
    """Copy the authorities and the files that .dockerignore permits."""
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line.startswith("!"):
            for source in ROOT.glob(line[1:]):
                target = folder / source.relative_to(ROOT)
                if source.is_dir() and not source.is_symlink():
                    ignored = shutil.ignore_patterns("__pycache__", "*.so")
                    shutil.copytree(source, target, symlinks=True, ignore=ignored)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target, follow_symlinks=False)
    shutil.copy2(ROOT / ".dockerignore", folder)
    for source in (authority.certificate, *MACHINE_AUTHORITIES.glob("*.crt")):
        shutil.copyfile(source, folder / "deploy" / "docker" / "ca" / source.name)


class _Store:
    """buildah with its own storage, which may be removed at any time."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._driver = "overlay"

    def buildah(self, *argv: str, fails: bool = True) -> str:
        done = subprocess.run(
            ["buildah", *argv],
            env=os.environ
            | {
                "STORAGE_DRIVER": self._driver,
                "BUILDAH_ISOLATION": "chroot",
                "CONTAINERS_STORAGE_CONF": str(self._folder / "storage.conf"),
                # Images are not searched in any registry.
                "CONTAINERS_REGISTRIES_CONF": "/dev/null",
            },
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode and fails:
            parts = (done.stdout + done.stderr).strip()[-3000:]
            raise RuntimeError(f"buildah {argv[0]} failed: {parts}")
        return done.stdout.strip() if done.returncode == 0 else ""

    def prepare(self) -> None:
        """Select the storage driver, remove old data and create the base image."""
        root, run = self._folder / "root", self._folder / "run"
        text = f'[storage]\ndriver = "overlay"\ngraphroot = "{root}"\nrunroot = "{run}"\n'
        (self._folder / "storage.conf").write_text(text)
        chosen = self._folder / "driver"
        if chosen.exists():
            self._driver = chosen.read_text()
            self.buildah("rm", "--all")
            if _bytes_under(root) > STORE_MAX_BYTES:
                self.buildah("rmi", "--all", "--force")
        else:
            # If a file system does not support overlays, use vfs, which will copy everything.
            self._driver = next(filter(self._works, ("overlay", "vfs")))
            chosen.write_text(self._driver)
        if not self.buildah("images", "--quiet", BASE, fails=False):
            self._make_base()

    def _works(self, driver: str) -> bool:
        self._driver = driver
        container = self.buildah("from", "scratch", fails=False)
        return bool(container and self.buildah("mount", container, fails=False))

    def _make_base(self) -> None:
        container = self.buildah("from", "scratch")
        root = Path(self.buildah("mount", container))
        subprocess.run(["cp", "-a", f"{debian_root(TRIXIE, ('apt',))}/.", root], check=True)
        rules = []
        for name in SLIM:
            rules.append(f"path-exclude /usr/share/{name}/*")
            shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
        rules.append("path-include /usr/share/doc/*/copyright")
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text("\n".join(rules) + "\n")
        self.buildah("umount", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self, stage: str, tag: str, context: Path) -> None:
        """Build a stage of the Dockerfile. If nothing has changed, cached layers are used."""
        arguments = [f"--build-arg=BASE_IMAGE={BASE}"]
        if index := os.environ.get("PIP_INDEX_URL"):
            arguments.append(f"--build-arg=PIP_INDEX_URL={index}")
        file = context / "deploy" / "docker" / "Dockerfile"
        self.buildah(
            "build", "--quiet", "--layers", "--pull-never", f"--target={stage}", f"--tag={tag}",
            f"--file={file}", *arguments, str(context),
        )  # fmt: skip

    def mount(self, tag: str) -> Image:
        """Mount a built image."""
        result = json.loads(self.buildah("inspect", "--type=image", tag))["OCIv1"]["config"]
        root = Path(self.buildah("mount", self.buildah("from", "--pull-never", tag)))
        uid = int(result["User"])
        users = (line.split(":") for line in (root / "etc/passwd").read_text().splitlines())
        return Image(
            name=tag,
            root=root,
            size_bytes=_bytes_under(root),
            environment=dict(entry.split("=", 1) for entry in result.get("Env", [])),
            entrypoint=tuple(result.get("Entrypoint") or ()),
            command=tuple(result.get("Cmd") or ()),
            folder=result.get("WorkingDir") or "/",
            uid=uid,
            gid=next(int(fields[3]) for fields in users if int(fields[2]) == uid),
        )


def _bytes_under(folder: Path) -> int:
    """Return the disk usage of a folder in bytes, as du counts it."""
    done = subprocess.run(
        ["du", "-sx", "--block-size=1", folder], capture_output=True, text=True, check=False
    )
    return int((done.stdout.split() or ["0"])[0])
