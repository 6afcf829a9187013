"""Tests for hosts examples that need processes, sockets or real time."""

from typing import Any

import pytest
import yaml

from tests.deploy_check import tools


def objects() -> list[dict[str, Any]]:
    """Return the objects created by kustomize."""
    if not tools.KUBERNETES.exists():
        pytest.skip("no kustomize; run: make tools")
    return list(yaml.safe_load_all(tools.kubernetes_objects()))


def test_kubernetes_manifests_are_valid() -> None:
    kinds = sorted(item["kind"] for item in objects())
    assert kinds == ["ConfigMap", "DaemonSet", "DaemonSet", "Namespace"]
    assert tools.kubeconform().faults == ()


def test_agent_pods_use_host_network_without_capabilities() -> None:
    for item in objects():
        if item["kind"] != "DaemonSet":
            continue
        pod = item["spec"]["template"]["spec"]
        assert pod["hostNetwork"]
        assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
        (agent,) = pod["containers"]
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert agent["args"] == ["agent"]
        role_variable = next(
            item for item in agent["env"] if item["name"] == "BROADSIDE_AGENT_ROLE"
        )
        label = role_variable["valueFrom"]["fieldRef"]["fieldPath"].partition("'")[2].rstrip("']")
        role = item["spec"]["template"]["metadata"]["labels"][label]
        assert pod["nodeSelector"] == {"broadside/role": role}
        assert item["metadata"]["name"] == f"broadside-{role}"
