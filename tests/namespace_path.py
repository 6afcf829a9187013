"""Two network namespaces with a wire between them, for tests and benchmarks. They need root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

CLIENT, SERVER = "10.123.0.1", "10.123.0.2"
WAIT_S = 30.0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=WAIT_S)


@contextmanager
def path_between() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the command prefixes of the client's and the server's namespace."""
    names = [f"path{os.getpid()}{end}" for end in "cs"]
    with ExitStack() as made:
        for name in names:
            _ip("netns", "add", name)
            made.callback(_ip, "netns", "del", name)
        _ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "v0", "netns", names[1])
        for name, address in zip(names, (CLIENT, SERVER), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            _ip("-n", name, "link", "set", "v0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        client, server = (("ip", "netns", "exec", name) for name in names)
        yield client, server


def add_nft_rule(prefix: tuple[str, ...], rule: str) -> None:
    """Add a rule of nftables for packets that the namespace receives."""
    hook = "type filter hook input priority 0;"
    text = f"table ip t {{\nchain c {{\n{hook}\n{rule}\n}}\n}}\n"
    subprocess.run([*prefix, "nft", "-f", "-"], input=text, text=True, check=True, timeout=WAIT_S)
