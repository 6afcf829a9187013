"""The examples of deploy/hosts for fleets that somebody else's tool looks after."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from coordinator.coordinator_settings import CoordinatorSettings
from deploy.check import boot, hcl, tools

HOSTS: Final = tools.ROOT / "deploy" / "hosts"
KUBERNETES: Final = HOSTS / "kubernetes"
CLOUDS: Final = ("aws", "gcp")
RELEASE: Final = "1.33"


def objects() -> Iterator[dict[str, Any]]:
    """As kustomize builds them where kubectl is, else as they are written."""
    if (kubectl := shutil.which("kubectl")) is not None:
        argv = [kubectl, "kustomize", str(KUBERNETES)]
        built = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
        yield from yaml.safe_load_all(built.stdout)
        return
    for name in yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def test_kubernetes_knows_every_field_of_the_agents() -> None:
    """By Kubernetes' own schemas, strictly: a field that it does not have is a fault."""
    kinds = []
    for each in objects():
        kubernetes_validate.validate(each, RELEASE, strict=True)
        kinds.append(each["kind"])
    assert sorted(kinds) == ["ConfigMap", "DaemonSet", "DaemonSet", "Namespace"]


def test_agents_are_of_the_nodes_own_network_and_may_nothing_else() -> None:
    sets = [each for each in objects() if each["kind"] == "DaemonSet"]
    for each in sets:
        pod = each["spec"]["template"]["spec"]
        assert pod["hostNetwork"]
        assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
        (agent,) = pod["containers"]
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert agent["args"][:2] == ["agent", "--role"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_variable_of_a_cloud_is_declared_and_used(cloud: str) -> None:
    """As far as can be said without the cloud's provider, which is not here."""
    folder = HOSTS / "terraform" / cloud
    files = {path.name: path.read_text() for path in folder.glob("*.tf")}
    (module,) = hcl.load(files).values()
    text = files["main.tf"]
    declared = set(module.variables)
    assert declared
    assert {name for name in declared if f"var.{name}" in text} == declared


@pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform; run: make tools")
def test_terraform_would_write_them_so() -> None:
    argv = ["terraform", "fmt", "-check", "-recursive", "-diff", str(HOSTS / "terraform")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("role", ["client", "server"])
def test_an_instance_is_told_to_join_at_its_first_boot(role: str) -> None:
    template = (HOSTS / "terraform" / "cloud-init.yaml.tftpl").read_text()
    told = {
        "archive_sha256": "0" * 64,
        "archive_url": "https://files.example.net/broadside-hosts.tar.gz",
        "coordinator": "https://10.0.0.4:8443",
        "join_code": "bsj.fingerprint.secret",
        "role": role,
    }
    text = boot.fill(template, told)
    assert list(boot.faults(text)) == []
    schema = tools.cloud_init_schema(text)
    assert not schema.faults
    ((shell, option, script),) = yaml.safe_load(text)["runcmd"]
    assert (shell, option) == ("sh", "-euc")
    checked = subprocess.run(["sh", "-n"], input=script, text=True, check=False, timeout=20)
    assert checked.returncode == 0
    assert f"BROADSIDE_AGENT_ROLE={role}" in script


def test_the_roles_own_settings_are_ones() -> None:
    inventory = yaml.safe_load((HOSTS / "ansible" / "inventory.example.yml").read_text())
    host = inventory["all"]["children"]["broadside_coordinator_host"]["hosts"]
    (told,) = host.values()
    known = {f"BROADSIDE_{name.upper()}" for name in CoordinatorSettings.model_fields}
    assert set(told["broadside_settings"]) <= known
