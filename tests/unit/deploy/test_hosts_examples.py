"""The examples of deploy/hosts for fleets that somebody else's tool looks after."""

import subprocess
from typing import Any, Final

import pytest
import yaml

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from tests.deploy_check import boot, hcl, tools
from tests.deploy_check.__main__ import cloud_faults, read_files
from tests.deploy_check.schema import Schema

HOSTS: Final = tools.ROOT / "deploy" / "hosts"


def objects() -> list[dict[str, Any]]:
    """As kustomize builds them."""
    if not tools.KUBERNETES.exists():
        pytest.skip("no kustomize; run: make tools")
    return list(yaml.safe_load_all(tools.kubernetes_objects()))


def test_kubernetes_knows_every_field_of_the_agents() -> None:
    kinds = sorted(each["kind"] for each in objects())
    assert kinds == ["ConfigMap", "DaemonSet", "DaemonSet", "Namespace"]
    assert tools.kubeconform().faults == ()


def test_agents_are_of_the_nodes_own_network_and_may_nothing_else() -> None:
    for each in objects():
        if each["kind"] != "DaemonSet":
            continue
        pod = each["spec"]["template"]["spec"]
        assert pod["hostNetwork"]
        assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
        (agent,) = pod["containers"]
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert agent["args"] == ["agent"]
        told = next(each for each in agent["env"] if each["name"] == "BROADSIDE_AGENT_ROLE")
        label = told["valueFrom"]["fieldRef"]["fieldPath"].partition("'")[2].rstrip("']")
        role = each["spec"]["template"]["metadata"]["labels"][label]
        assert pod["nodeSelector"] == {"broadside/role": role}
        assert each["metadata"]["name"] == f"broadside-{role}"


@pytest.mark.parametrize(("cloud", "argument"), [("aws", "image_id"), ("gcp", "machine_type")])
def test_a_provider_knows_every_argument(cloud: str, argument: str) -> None:
    assert list(cloud_faults(cloud)) == []
    files = read_files(HOSTS / "terraform" / cloud)
    schema = Schema.read(tools.ROOT / "tests" / "data" / "clouds" / f"{cloud}.json.gz")
    files["main.tf"] = files["main.tf"].replace(argument, f"{argument}s", 1)
    (module,) = hcl.load(files).values()
    assert any(f"has no argument {argument}s" in fault for fault in schema.faults(module))


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
