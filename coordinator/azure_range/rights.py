"""Authentication with a managed identity, and authorization by role and scope."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from broadside.coordinator.azure_range.machines import Machine
from broadside.coordinator.azure_range.resources import Resource, Resources, properties, short
from broadside.coordinator.azure_range.trace import Trace

_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers"
_ROWS: Final = "Microsoft.Storage/storageAccounts/tableServices/tables/entities"
_MESSAGES: Final = "Microsoft.ServiceBus/namespaces/messages"
_VM: Final = "Microsoft.Compute/virtualMachines"

READ_BLOB: Final = f"{_BLOBS}/blobs/read"
WRITE_BLOB: Final = f"{_BLOBS}/blobs/write"
READ_ROWS: Final = f"{_ROWS}/read"
WRITE_ROWS: Final = (READ_ROWS, f"{_ROWS}/add/action", f"{_ROWS}/update/action", f"{_ROWS}/write")
DELETE_ROWS: Final = f"{_ROWS}/delete"
RECEIVE: Final = f"{_MESSAGES}/receive/action"
SEND: Final = f"{_MESSAGES}/send/action"
READ_METRICS: Final = "Microsoft.Insights/metrics/read"
READ_LOGS: Final = "Microsoft.Insights/logs/AZFWFlowTrace/read"
SWITCH_POLICY: Final = ("Microsoft.Network/firewallPolicies/read",
                        "Microsoft.Network/firewallPolicies/write")  # fmt: skip
START_VM: Final = f"{_VM}/start/action"

# Names and permissions of built-in roles by id, from
# learn.microsoft.com/azure/role-based-access-control/built-in-roles (2026-11).
BUILT_IN: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": (
        "Storage Blob Data Reader",
        (f"{_BLOBS}/read", f"{_BLOBS}/blobs/read"),
    ),
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": (
        "Storage Blob Data Contributor",
        (f"{_BLOBS}/read", f"{_BLOBS}/write", f"{_BLOBS}/delete", f"{_BLOBS}/blobs/*"),
    ),
    "76199698-9eea-4c19-bc75-cec21354c6b6": ("Storage Table Data Reader", (READ_ROWS,)),
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": (
        "Storage Table Data Contributor",
        (*WRITE_ROWS, DELETE_ROWS),
    ),
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": ("Azure Service Bus Data Receiver", (RECEIVE,)),
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": ("Azure Service Bus Data Sender", (SEND,)),
    "090c5cfd-751d-490a-894a-3ce6f1109419": (
        "Azure Service Bus Data Owner",
        ("Microsoft.ServiceBus/*",),
    ),
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": ("Monitoring Reader", ("*/read",)),
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": ("Reader", ("*/read",)),
    "489581de-a3bd-480d-9518-53dea7416b33": (
        "Desktop Virtualization Power On Contributor",
        (f"{_VM}/read", f"{_VM}/instanceView/read", START_VM),
    ),
    "4d97b98b-1d4f-4787-a291-c67834d212e7": ("Network Contributor", ("Microsoft.Network/*",)),
    "b24988ac-6180-42a0-ab88-20f7382dd24c": ("Contributor", ("*",)),
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": ("Owner", ("*",)),
}
# Roles over resources of the Resource Manager. They do not permit data of storage or Service Bus.
_NO_DATA: Final = frozenset({"Monitoring Reader", "Reader", "Contributor", "Owner"})
# Roles from the smallest to the largest. A larger one is too much where a smaller one suffices.
_LARGER: Final[Mapping[str, str]] = {
    "Storage Blob Data Contributor": "Storage Blob Data Reader",
    "Storage Table Data Contributor": "Storage Table Data Reader",
    "Azure Service Bus Data Owner": "Azure Service Bus Data Receiver",
    "Contributor": "Monitoring Reader",
    "Owner": "Monitoring Reader",
}


@dataclass(kw_only=True)
class Grants:
    """Role assignments that the needs of a VM use, with the permitted actions, by id."""

    machine: Machine
    used: dict[str, set[str]] = field(default_factory=dict)


def role_of(resources: Resources, assignment: Resource) -> tuple[str, tuple[str, ...]]:
    """Return the name and the permissions of an assigned role.

    Args:
        resources: All resources, to find custom roles.
        assignment: Role assignment.

    Returns:
        Role name and patterns of permitted actions. There are no patterns if the role is not
        visible.
    """
    role_id = properties(assignment)["roleDefinitionId"]
    if role := BUILT_IN.get(short(role_id).lower()):
        return role
    for item in resources.of_kind("roleDefinitions"):
        if short(item["id"]).lower() == short(role_id).lower():
            permissions = properties(item).get("permissions") or ()
            actions = [action for one in permissions for action in one.get("actions") or ()]
            return str(properties(item).get("roleName") or item["name"]), tuple(actions)
    return f"role {short(role_id)}", ()


def permits(role: tuple[str, tuple[str, ...]], action: str) -> bool:
    """Return True if a role permits an action.

    Args:
        role: Name and patterns of actions, from :func:`role_of`.
        action: Action of the code, such as ``Microsoft.Storage/storageAccounts/.../read``.
    """
    name, actions = role
    is_data = action.startswith((_BLOBS + "/blobs", _ROWS, _MESSAGES))
    if is_data and name in _NO_DATA:
        return False
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in actions)


def assignments(resources: Resources, principal_id: str) -> Iterator[Resource]:
    """Yield the role assignments of a principal.

    Args:
        resources: All resources.
        principal_id: Object id of the identity, not its client id.
    """
    for item in resources.of_kind("roleAssignments"):
        if properties(item)["principalId"] == principal_id:
            yield item


def authenticate(trace: Trace, machine: Machine, client_id: str) -> Resource:
    """Return the identity for which the metadata service issues a token.

    Args:
        trace: Trace to add the hop to.
        machine: VM that requests the token.
        client_id: Client id in the request.

    Raises:
        Stop: The client id is not one of the VM's identities, or an identity is not visible.
    """
    resources = trace.resources
    attached = [(item_id, resources.get(item_id)) for item_id in machine.identity_ids]
    for item_id, identity in attached:
        if identity is None:
            raise trace.fail("identity", f"{short(item_id)} is not visible", item_id)
        if properties(identity)["clientId"] == client_id:
            trace.ok("identity", short(item_id))
            return identity
    names = ", ".join(short(item_id) for item_id, _ in attached) or "none"
    others = [item["name"] for item in resources.of_kind("userAssignedIdentities")
              if properties(item)["clientId"] == client_id]  # fmt: skip
    owner = f" (of {others[0]})" if others else ", which is not a client id"
    raise trace.fail(
        "identity", f"client id {client_id}{owner} is not assigned to the VM; it has {names}"
    )


def authorise(
    trace: Trace, grants: Grants, identity: Resource, target_id: str, actions: Iterable[str]
) -> None:
    """Check that an identity may perform all actions on a resource.

    Args:
        trace: Trace to add the hop to.
        grants: VM whose code performs the actions. Receives the assignments that were used.
        identity: Identity of the token.
        target_id: Id of the resource.
        actions: Actions of the code.

    Raises:
        Stop: No assigned role permits an action on the resource.
    """
    resources = trace.resources
    principal_id, target = properties(identity)["principalId"], target_id.lower() + "/"
    names = []
    for action in actions:
        assignment = None
        for item in assignments(resources, principal_id):
            role = role_of(resources, item)
            scope = properties(item)["scope"].lower() + "/"
            if target.startswith(scope) and permits(role, action):
                assignment = item
                grants.used.setdefault(item["id"].lower(), set()).add(action)
                names.append(f"{role[0]} on {short(properties(item)['scope'])}")
        if assignment is None:
            verb = action.split("/", 1)[1]
            assigned = sorted(
                {
                    f"{role_of(resources, item)[0]} on {short(properties(item)['scope'])}"
                    for item in assignments(resources, principal_id)
                }
            )
            text = f"{identity['name']} lacks {verb} on {short(target_id)}"
            text += f"; it has {', '.join(assigned) or 'no role'}"
            raise trace.fail("role", text, target_id)
        assigned_at = assignment.get("_at")
        created_at = grants.machine.created_at
        if assigned_at and created_at and assigned_at > created_at:
            late_s = assigned_at - created_at
            text = f"{names[-1]} is assigned {late_s:.0f} s after the VM starts, and takes minutes"
            raise trace.fail("role", text)
    trace.ok("role", ", ".join(dict.fromkeys(names)))


def check_rights(trace: Trace, grants: Grants, unmet: Sequence[str]) -> None:
    """Check that the identities of a VM have no role that none of its needs uses.

    Args:
        trace: Trace to add the hop to.
        grants: VM with the assignments that its needs use.
        unmet: Needs that end before their role. With any, nothing is judged.
    """
    if unmet:
        trace.ok("role", f"not judged, because needs are not met: {', '.join(unmet)}")
        return
    resources, count = trace.resources, 0
    for identity_id in grants.machine.identity_ids:
        identity = resources.get(identity_id)
        if identity is None:
            continue
        for item in assignments(resources, properties(identity)["principalId"]):
            _check_assignment(trace, item, grants.used.get(item["id"].lower()))
            count += 1
    trace.ok("role", f"{count} assignments, each in use and no larger than its use")


def _check_assignment(trace: Trace, item: Resource, used: set[str] | None) -> None:
    resources, scope = trace.resources, properties(item)["scope"]
    name = role_of(resources, item)[0]
    if used is None:
        raise trace.fail("role", f"{name} on {short(scope)} is not needed")
    smaller = next((role for role in BUILT_IN.values() if role[0] == _LARGER.get(name)), None)
    if smaller and all(permits(smaller, action) for action in used):
        raise trace.fail("role", f"{name} on {short(scope)}: {smaller[0]} is enough")
    kinds = ("/containers/", "/tables/", "/queues/", "/azurefirewalls/", "/firewallpolicies/",
             "/virtualmachines/")  # fmt: skip
    if not any(kind in scope.lower() for kind in kinds):
        raise trace.fail(
            "role", f"{name} on {short(scope)}: the scope is larger than the resource in use"
        )
