"""Subscription in the Resource Manager that stores resources and rejects like Azure."""

import base64
import copy
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.azure_emulator import booted
from tests.azure_emulator.azure_catalogue import (
    ALWAYS,
    BASE,
    NAMESPACES,
    ROLES,
    SIZES,
    SUBSCRIPTION,
    built_in_role,
    offer_terms,
    region_shown,
    sizes_for_sale,
    start_of_authority,
    usage_shown,
    vcpus_of,
)
from tests.azure_emulator.azure_refusals import (
    REGIONS,
    Refused,
    Resource,
    Store,
    exists,
    refuse,
    refuse_delete,
)
from tests.azure_emulator.computed import TENANT, complete
from tests.azure_emulator.published import Published
from tests.azure_emulator.resource_ids import group_of, guid, kind_of, named, parent_of

# Shortened durations of long operations, by kind.
SLOW_S: Final[Mapping[str, float]] = {
    "azurefirewalls": 1.5, "bastionhosts": 1.0, "virtualmachinescalesets": 0.8,
    "virtualmachines": 0.8, "natgateways": 0.2, "firewallpolicies": 0.3, "loadbalancers": 0.2,
    "rulecollectiongroups": 0.3, "privateendpoints": 0.4, "hubvirtualnetworkconnections": 0.4,
}  # fmt: skip
_SCALE_SET: Final = "microsoft.compute/virtualmachinescalesets"
# Faults of bodies from the provider itself, which the service accepts.
PROVIDERS_OWN: Final = (
    "Microsoft.Insights/components.properties.ApplicationId: read-only",
    "Microsoft.Storage/storageAccounts.sku.tier: read-only",
)
# Fields that a replacing PUT preserves.
_KEPT: Final = (
    "ipAddress", "principalId", "clientId", "tenantId", "primaryEndpoints", "customerId", "vmId",
    "uniqueId", "AppId", "InstrumentationKey", "ConnectionString",
)  # fmt: skip
# Children that are shown in their parent and stored separately.
_PARTS: Final = (
    ("virtualnetworks", "subnets"), ("virtualnetworks", "virtualNetworkPeerings"),
    ("networksecuritygroups", "securityRules"), ("routetables", "routes"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, body and headers of a response."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Operation:
    """Long operation that ends at an instant with success or an error."""

    key: str
    verb: str
    # Monotonic time.
    over_at: float
    error: str | None = None
    is_settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Body of a PUT or PATCH with its faults."""

    kind: str
    version: str
    is_published: bool
    faults: tuple[str, ...]


@dataclass(kw_only=True)
class Subscription:
    """One subscription of one tenant. All methods are called under :attr:`lock`."""

    published: Published
    # Delay until a new role assignment is effective.
    role_delay_s: float = 2.0
    registration_s: float = 0.5
    # Every request of this number gets status 429. 0 disables it.
    throttle_every: int = 41
    vcpus_max: int = 1000
    # Number of next operations that fail, by kind.
    failing: Counter[str] = field(default_factory=Counter)
    store: Store = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _registered: dict[str, float] = field(default_factory=dict)
    _operations: dict[str, Operation] = field(default_factory=dict)
    # Group by name of soft-deleted workspaces.
    _purged: dict[str, str] = field(default_factory=dict)
    _requests_count: int = 0

    # What the rehearsal itself asks -----------------------------------------------------------

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def plant(self, path: str, body: Resource, location: str = "eastus") -> Resource:
        """Add a resource that exists before the range."""
        me = {"location": location, **copy.deepcopy(body), "id": path}
        me |= {"name": path.rsplit("/", 1)[1], "type": kind_of(path)}
        complete(self.store, me)
        self.store[path.lower()] = me
        return me

    def register(self) -> None:
        """Register every resource provider, like the platform team of a landing zone."""
        now = time.monotonic()
        self._registered |= {item.lower(): now for item in NAMESPACES}

    def snapshot(self) -> dict[str, str]:
        """Return all resources as their owner sees them, by id."""
        with self.lock:
            self._settle()
            return {
                item["id"]: json.dumps(
                    {key: value for key, value in item.items() if key[0] != "_"}, sort_keys=True
                )
                for item in self.store.values()
            }

    def body_faults(self) -> list[str]:
        """Return the faults of all bodies against the published types."""
        results = {f"{item.version} {fault}" for item in self.sent for fault in item.faults}
        return sorted(item for item in results if not any(local in item for local in PROVIDERS_OWN))

    def may(self, principal: str, role: str, scope: str) -> bool:
        """Return whether a data role with this prefix is effective for a principal at a scope."""
        wanted = tuple(value for name, value in ROLES.items() if name.startswith(role))
        now = time.monotonic()
        return any(
            item["properties"]["principalId"] == principal
            and item["properties"]["roleDefinitionId"].endswith(wanted)
            and (scope.lower() + "/").startswith(item["properties"]["scope"].lower() + "/")
            and now - item.get("_at", now) >= self.role_delay_s
            for item in self.store.values()
            if item["type"].lower() == "microsoft.authorization/roleassignments"
        )

    # Requests ---------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: Mapping[str, list[str]], body: Any) -> Answer:
        """Answer one request to management.azure.com, or raise :class:`Refused`."""
        self._requests_count += 1
        if self.throttle_every and self._requests_count % self.throttle_every == 0:
            return Answer(
                status=429, headers={"Retry-After": "1"},
                body={"error": {"code": "TooManyRequests", "message": "slower, please"}},
            )  # fmt: skip
        version = (query.get("api-version") or [""])[0]
        if not version:
            raise Refused(400, "MissingApiVersionParameter", path)
        self._settle()
        low = path.lower()
        if "/rehearsaloperations/" in low:
            return self._operation(low.rsplit("/", 1)[1], is_location="/results/" in low)
        if method == "POST":
            return self._post(path, low)
        if method in ("PUT", "PATCH"):
            if method == "PATCH" and not exists(self.store, path):
                raise Refused(404, "ResourceNotFound", path)
            return self._put(path, version, body or {}, patch=method == "PATCH")
        if method == "DELETE":
            return self._delete(path, query)
        if low in self.store:
            shown = self._shown(self.store[low])
            return Answer(status=200 if method == "GET" else 204, body=shown)
        return Answer(status=200, body=self._read(path, low, query))

    def _settle(self) -> None:
        """End the operations that are due."""
        now = time.monotonic()
        for operation in self._operations.values():
            if operation.is_settled or now < operation.over_at:
                continue
            operation.is_settled = True
            if operation.verb == "DELETE":
                self._remove(operation.key)
            elif me := self.store.get(operation.key):
                state = "Failed" if operation.error else "Succeeded"
                me["properties"]["provisioningState"] = state

    def _pending(self, key: str) -> Operation | None:
        return next(
            (
                operation
                for operation in self._operations.values()
                if operation.key == key and not operation.is_settled
            ),
            None,
        )

    def _begin(self, key: str, verb: str, kind: str) -> str:
        name = guid(f"{key}{verb}{len(self._operations)}")
        short = kind.lower().rsplit("/", 1)[1]
        error = None
        if self.failing[short] > 0 and verb == "PUT":
            self.failing[short] -= 1
            error = "AllocationFailed"
        took_s = SLOW_S.get(short, 0.0)
        self._operations[name] = Operation(
            key=key, verb=verb, over_at=time.monotonic() + took_s, error=error
        )
        return name

    def _operation(self, name: str, *, is_location: bool) -> Answer:
        operation = self._operations.get(name)
        if operation is None:
            raise Refused(404, "OperationNotFound", name)
        if not operation.is_settled:
            status = 202 if is_location else 200
            return Answer(status=status, body={"status": "InProgress"}, headers=_links(name))
        if operation.error:
            error = {"code": operation.error, "message": "the region is short of this size now"}
            return Answer(status=200, body={"status": "Failed", "error": error})
        if is_location and operation.verb == "DELETE":
            return Answer(status=204)
        if is_location and operation.key in self.store:
            return Answer(status=200, body=self._shown(self.store[operation.key]))
        return Answer(status=200, body={"status": "Succeeded"})

    # PUT and PATCH ----------------------------------------------------------------------------

    def _put(self, path: str, version: str, body: Resource, *, patch: bool) -> Answer:
        namespace, types, names = named(path)
        kind, key = kind_of(path), path.lower()
        self._must_be_registered(namespace)
        self._check_body(path, kind, version, body, patch=patch)
        # The resource is a setting without a name.
        if types and len(types) > len(names):
            fresh: Resource = {"id": path, "name": types[-1], "type": kind}
            self.store.setdefault(key, fresh).update(body)
            return Answer(status=200, body=body)
        if self._pending(key):
            raise Refused(429, "RetryableError", f"{path}: another operation is in progress")
        self._parent_must_be(path)
        before = self.store.get(key)
        # The `vmss scale` command of az sends only location and SKU, and a scale set preserves the
        # rest.
        is_scale = before is not None and types[-1].lower() == "virtualmachinescalesets"
        is_scale = is_scale and "virtualMachineProfile" not in (body.get("properties") or {})
        merged = _merged(before, body, patch=patch or is_scale)
        made = self._deploy(path, merged) if types[-1].lower() == "deployments" else None
        refuse(self.store, path, kind, merged)
        self._quota(key, kind, merged)
        if types[-1].lower() == "deployments":
            self._empty_for(path, merged, made or [])
        merged |= {"id": path, "name": names[-1], "type": kind}
        self._take_parts(path, types[-1], kind, merged)
        complete(self.store, merged)
        if made is not None:
            merged["properties"] |= {"outputResources": made, "outputs": {}, "providers": []}
        merged.setdefault("_at", time.monotonic())
        self.store[key] = merged
        short = types[-1].lower()
        if short in SLOW_S or self.failing[short] > 0:
            name = self._begin(key, "PUT", kind)
            merged["properties"]["provisioningState"] = "Updating"
            status = 201 if before is None else 200
            return Answer(status=status, body=self._shown(merged), headers=_links(name))
        is_new = kind.lower().startswith("microsoft.authorization")
        return Answer(status=201 if is_new else 200, body=self._shown(merged))

    def _must_be_registered(self, namespace: str) -> None:
        since = self._registered.get(namespace.lower())
        ready = since is not None and time.monotonic() >= since
        if not ready and namespace.lower() not in ALWAYS:
            raise Refused(
                409, "MissingSubscriptionRegistration",
                f"The subscription is not registered to use namespace '{namespace}'.",
            )  # fmt: skip

    def _check_body(
        self, path: str, kind: str, version: str, body: Resource, *, patch: bool
    ) -> None:
        # A PATCH has its own type with fewer required fields.
        reported = {"location": "as it was", **body} if patch else body
        checked = self.published.check(kind, version, path.rsplit("/", 1)[1], reported)
        # A later PUT returns fields that were read before.
        known = path.lower() in self.store
        self.sent.append(
            Sent(
                kind=kind,
                version=version,
                is_published=checked.is_published,
                faults=tuple(
                    fault
                    for fault in checked.faults
                    if not (known and ": read-only" in fault)
                    and not (patch and fault.endswith("required and missing"))
                ),
            )
        )

    def _parent_must_be(self, path: str) -> None:
        parent = parent_of(path)
        if parent is None or "/microsoft.marketplaceordering/" in path.lower():
            return
        if not exists(self.store, parent):
            is_group = re.fullmatch(r"/subscriptions/[^/]+/resourcegroups/[^/]+", parent.lower())
            code = "ResourceGroupNotFound" if is_group else "ParentResourceNotFound"
            raise Refused(404, code, f"{parent} could not be found")

    def _deploy(self, path: str, body: Resource) -> list[dict[str, str]]:
        """Deploy a template of plain resources without expressions."""
        made = []
        for item in body["properties"]["template"].get("resources") or ():
            kinds, called = item["type"].split("/"), item["name"].split("/")
            within = "/".join(
                f"{kind}/{name}" for kind, name in zip(kinds[1:], called, strict=True)
            )
            child = f"{path.split('/providers/')[0]}/providers/{kinds[0]}/{within}"
            text = ("type", "name", "apiVersion", "dependsOn")
            rest = {key: value for key, value in item.items() if key not in text}
            self._put(child, item["apiVersion"], rest, patch=False)
            made.append({"id": child})
        return made

    def _empty_for(self, path: str, body: Resource, made: list[dict[str, str]]) -> None:
        """Delete the resources that a complete deployment does not name."""
        if body["properties"].get("mode") != "Complete":
            return
        stored = {item["id"].lower() for item in made} | {path.lower()}
        group = f"{(group_of(path) or '')}/providers/"
        for key in [item for item in self.store if item.startswith(group) and item not in stored]:
            if not any(item.startswith(f"{key}/") for item in stored):
                self.store.pop(key, None)

    def _quota(self, key: str, kind: str, body: Resource) -> None:
        if kind.lower() in ("microsoft.compute/virtualmachines", _SCALE_SET):
            is_set = kind.lower() == _SCALE_SET
            size = (
                body["sku"]["name"] if is_set else body["properties"]["hardwareProfile"]["vmSize"]
            )
            if size not in SIZES:
                raise Refused(400, "InvalidParameter", f"the VM size {size} is not available")
        if not kind.lower().endswith("/virtualmachinescalesets"):
            return
        used = sum(
            vcpus_of(item) for other, item in self.store.items()
            if other != key and item["type"].lower().endswith("/virtualmachinescalesets")
        )  # fmt: skip
        if used + vcpus_of(body) > self.vcpus_max:
            raise Refused(
                409, "OperationNotAllowed",
                f"exceeding approved Total Regional Cores quota: limit {self.vcpus_max}, usage "
                f"{used}, additional required {vcpus_of(body)}",
            )  # fmt: skip

    def _take_parts(self, path: str, last: str, kind: str, body: Resource) -> None:
        """Store subnets, rules and routes of a parent as resources."""
        for stem, part in _PARTS:
            if last.lower() == stem:
                for item in (body.get("properties") or {}).pop(part, None) or ():
                    child = f"{path}/{part}/{item['name']}"
                    fresh = {**item, "id": child, "type": f"{kind}/{part}"}
                    self.store.setdefault(child.lower(), fresh)

    # DELETE -----------------------------------------------------------------------------------

    def _delete(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        key, kind = path.lower(), kind_of(path)
        if key not in self.store:
            return Answer(status=204)
        if pending := self._pending(key):
            if pending.verb == "DELETE":
                names = [name for name, item in self._operations.items() if item is pending]
                return Answer(status=202, headers=_links(names[0]))
            raise Refused(429, "RetryableError", f"{path}: another operation is in progress")
        group = kind.lower().endswith("/resourcegroups")
        for item in [item for item in self.store if group and item.startswith(key)]:
            if "/locks/" in item:
                raise Refused(409, "ScopeLocked", f"{path}: {item}")
        refuse_delete(self.store, path, kind)
        if kind.lower().endswith("operationalinsights/workspaces") and "force" not in query:
            self._purged[path.rsplit("/", 1)[1]] = group_of(path) or ""
            self.note(f"soft-deleted, and its name is taken for 14 days: {path}")
        if group or kind.lower().rsplit("/", 1)[1] in SLOW_S:
            name = self._begin(key, "DELETE", kind)
            self.store[key].setdefault("properties", {})["provisioningState"] = "Deleting"
            return Answer(status=202, headers=_links(name))
        self._remove(key)
        return Answer(status=200)

    def _remove(self, key: str) -> None:
        mine = [item for item in self.store if item == key or item.startswith(key + "/")]
        for item in mine:
            del self.store[item]
        disks = [item for item, it in self.store.items() if it.get("managedBy", "").lower() == key]
        # The provider deletes them with the VM.
        for item in disks:
            self.store[item]["managedBy"] = ""

    # POST -------------------------------------------------------------------------------------

    def _post(self, path: str, low: str) -> Answer:
        if match := re.fullmatch(rf"{BASE}/providers/([^/]+)/register", low):
            self._registered.setdefault(match[1], time.monotonic() + self.registration_s)
            return Answer(status=200, body=self._provider(match[1]))
        if low.endswith("/listkeys"):
            if "/storageaccounts/" in low:
                value = base64.b64encode(b"k" * 64).decode()
                keys = [
                    {"keyName": f"key{i}", "permissions": "FULL", "value": value} for i in (1, 2)
                ]
                return Answer(status=200, body={"keys": keys})
            names = ("primaryKey", "secondaryKey", "primaryConnectionString",
                     "secondaryConnectionString", "keyName")  # fmt: skip
            return Answer(status=200, body=dict.fromkeys(names, "x"))
        if low.endswith("/sharedkeys"):
            return Answer(status=200, body={"primarySharedKey": "x", "secondarySharedKey": "y"})
        last = low.rsplit("/", 1)[1]
        if last == "retrievebootdiagnosticsdata":
            return Answer(status=200, body=booted.diagnostics(low.rsplit("/", 1)[0]))
        if last in ("deallocate", "poweroff", "start", "manualupgrade", "delete", "reimage"):
            return Answer(status=200, body={})
        if last == "validate":
            return Answer(status=200, body={"properties": {"provisioningState": "Succeeded"}})
        if last == "exporttemplate":
            template = self.store[low.rsplit("/", 1)[0]]["properties"]["template"]
            return Answer(status=200, body={"template": template})
        self.note(f"unknown action: POST {path}")
        raise Refused(404, "UnknownAction", path)

    # GET --------------------------------------------------------------------------------------

    def _read(self, path: str, low: str, query: Mapping[str, list[str]]) -> Any:
        me = {
            "id": BASE, "subscriptionId": SUBSCRIPTION, "tenantId": TENANT, "state": "Enabled",
            "displayName": "rehearsal",
        }  # fmt: skip
        match low.removeprefix(BASE).split("/"):
            case [""]:
                return me
            case ["", "subscriptions"]:
                return {"value": [me]}
            case ["", "tenants"]:
                return {"value": [{"id": f"/tenants/{TENANT}", "tenantId": TENANT}]}
            case ["", "locations"]:
                return {"value": [region_shown(item) for item in sorted(REGIONS)]}
            case ["", "providers"]:
                return {"value": [self._provider(item.lower()) for item in NAMESPACES]}
            case ["", "providers", namespace]:
                return self._provider(namespace)
            case ["", "providers", namespace, "locations", region, "usages"]:
                return {"value": self._usages(namespace, region)}
            case ["", "providers", "microsoft.compute", "skus"]:
                return {"value": sizes_for_sale(query)}
            case ["", "resourcegroups"]:
                groups = self._listed(rf"{BASE}/resourcegroups/[^/]+")
                return {"value": [item for item in groups if _has_tag(item, query)]}
            case ["", "resources"] | ["", "resourcegroups", _, "resources"]:
                return {"value": self._resources(low.removesuffix("/resources"), query)}
            case ["", "providers", "microsoft.authorization", "roledefinitions", name]:
                return self._role_definition(path, name)
        return self._read_kind(path, low, query)

    def _read_kind(self, path: str, low: str, query: Mapping[str, list[str]]) -> Any:
        parent = low.rsplit("/", 2)[0]
        if low.endswith("/providers/microsoft.authorization/roledefinitions"):
            return {"value": self._role_definitions((query.get("$filter") or [""])[0])}
        if match := re.search(r"/roledefinitions/([0-9a-f-]{36})$", low):
            return self._role_definition(path, match[1])
        if low.endswith("/soa/@") and parent in self.store:
            return start_of_authority(path)
        if low.endswith("/networkrulesets/default") and parent in self.store:
            rules = {"defaultAction": "Allow", "publicNetworkAccess": "Enabled", "ipRules": [],
                     "virtualNetworkRules": [], "trustedServiceAccessEnabled": False}  # fmt: skip
            return {"id": path, "name": "default", "properties": rules}
        if re.search(r"/storageaccounts/[^/]+/(blob|file|queue|table)services/default$", low):
            if parent not in self.store:
                raise Refused(404, "ResourceNotFound", path)
            cors: Resource = {"cors": {"corsRules": []}}
            return {"id": path, "name": "default", "type": kind_of(path), "properties": cors}
        if re.search(r"/virtualmachinescalesets/[^/]+/virtualmachines$", low):
            owner = self.store.get(low.rsplit("/", 1)[0])
            return {"value": booted.instances(owner) if owner else []}
        if low.endswith("/currentbillingfeatures"):
            return {"CurrentBillingFeatures": ["Basic"], "DataVolumeCap": {"Cap": 100}}
        if low.endswith("/instanceview"):
            codes = ("PowerState/running", "ProvisioningState/succeeded")
            return {"statuses": [{"code": code} for code in codes]}
        if "/microsoft.marketplaceordering/" in low:
            return offer_terms(path)
        namespace, types, names = named(path)
        if "/providers/" in low and len(types) > len(names):
            if low.startswith(f"{BASE}/providers/"):
                kind = f"{namespace}/{'/'.join(types)}".lower()
                return {"value": [self._shown(item) for item in self.store.values()
                                  if item["type"].lower() == kind]}  # fmt: skip
            return {"value": self._listed(re.escape(low) + "/[^/]+")}
        is_group = re.fullmatch(rf"{BASE}/resourcegroups/[^/]+", low)
        code = "ResourceGroupNotFound" if is_group else "ResourceNotFound"
        raise Refused(404, code, f"{path} was not found")

    def _listed(self, pattern: str) -> list[Resource]:
        return [self._shown(it) for key, it in self.store.items() if re.fullmatch(pattern, key)]

    def _resources(self, scope: str, query: Mapping[str, list[str]]) -> list[Resource]:
        text = (query.get("$filter") or [""])[0]
        kind = re.search(r"resourcetype eq '([^']+)'", text, re.IGNORECASE)
        return [
            self._shown(item)
            for key, item in self.store.items()
            if key.startswith(scope + "/")
            and "/providers/" in key
            and "/providers/microsoft.authorization/" not in key
            and "/microsoft.resources/deployments" not in key
            and len(named(item["id"])[1]) == 1
            and (kind is None or item["type"].lower() == kind[1].lower())
            and _has_tag(item, query)
        ]

    def _provider(self, namespace: str) -> Resource:
        name = next((item for item in NAMESPACES if item.lower() == namespace), namespace)
        since = self._registered.get(namespace)
        if namespace in ALWAYS or (since is not None and time.monotonic() >= since):
            state = "Registered"
        else:
            state = "NotRegistered" if since is None else "Registering"
        # Azure has API versions of a namespace even if the given types have none.
        used = {item.version for item in self.sent if item.kind.lower().startswith(namespace + "/")}
        versions = self.published.versions(namespace) or sorted(used)
        kinds = {
            "/".join(named(item["id"])[1]) for item in self.store.values()
            if item["type"].lower().startswith(namespace + "/")
        }  # fmt: skip
        types = [{"resourceType": item, "apiVersions": versions[::-1]} for item in sorted(kinds)]
        return {
            "id": f"{BASE}/providers/{name}", "namespace": name, "registrationState": state,
            "resourceTypes": types,
        }  # fmt: skip

    def _usages(self, namespace: str, _region: str) -> list[Resource]:
        if namespace == "microsoft.network":
            taken = sum(
                item["type"].lower().endswith("/publicipaddresses") for item in self.store.values()
            )
            reported = "Public IPv4 Addresses - Standard"
            return [usage_shown("StandardSkuPublicIpAddresses", reported, taken, 20)]
        used = sum(vcpus_of(item) for item in self.store.values())
        return [
            usage_shown("cores", "Total Regional vCPUs", used, self.vcpus_max),
            *(
                usage_shown(name, f"Standard {name[8:-6]} Family vCPUs", used, self.vcpus_max)
                for name in sorted({family for family, _ in SIZES.values()})
            ),
        ]

    def _role_definitions(self, filter_text: str) -> list[Resource]:
        wanted = re.search(r"roleName eq '([^']+)'", filter_text)
        local = [
            self._shown(item) for key, item in self.store.items() if "/roledefinitions/" in key
        ]
        built_in = [built_in_role(name) for name in ROLES]
        return [
            item for item in (*built_in, *local)
            if wanted is None or item["properties"].get("roleName") == wanted[1]
        ]  # fmt: skip

    def _role_definition(self, path: str, name: str) -> Resource:
        for role, value in ROLES.items():
            if value == name:
                return built_in_role(role)
        raise Refused(404, "RoleDefinitionDoesNotExist", path)

    def _shown(self, me: Resource) -> Resource:
        out = {key: value for key, value in copy.deepcopy(me).items() if not key.startswith("_")}
        kind = me["type"].lower()
        for stem, part in _PARTS:
            if kind.endswith("/" + stem):
                pattern = re.escape(me["id"].lower()) + f"/{part.lower()}/[^/]+"
                out["properties"][part] = self._listed(pattern)
        if kind.endswith(("/virtualmachines", "/virtualmachinescalesets")):
            reported = out["properties"]
            for profile in (reported, reported.get("virtualMachineProfile") or {}):
                (profile.get("osProfile") or {}).pop("customData", None)
        return out


def _links(name: str) -> dict[str, str]:
    stem = f"https://management.azure.com{BASE}/providers/Microsoft.Network/rehearsalOperations"
    return {
        "Azure-AsyncOperation": f"{stem}/states/{name}?api-version=2024-05-01",
        "Location": f"{stem}/results/{name}?api-version=2024-05-01",
        # Without this header az polls every 30 s.
        "Retry-After": "1",
    }


def _merged(before: Resource | None, body: Resource, *, patch: bool) -> Resource:
    """Return the resource after a PUT or PATCH."""
    me = copy.deepcopy(body)
    if before is None:
        return me
    if patch:
        merged = copy.deepcopy(before)
        for key, value in me.items():
            old = merged.get(key)
            deep = isinstance(value, dict) and isinstance(old, dict) and key != "tags"
            merged[key] = {**old, **value} if deep and isinstance(old, dict) else value
        return merged
    stored = before.get("properties") or {}
    reported = me.setdefault("properties", {})
    reported |= {key: stored[key] for key in _KEPT if key in stored and key not in reported}
    me |= {key: value for key, value in before.items() if key.startswith("_")}
    return me


def _has_tag(resource: Resource, query: Mapping[str, list[str]]) -> bool:
    """Return whether a resource has the tag of the list filter, True without a filter."""
    text = (query.get("$filter") or [""])[0]
    tag = re.search(r"tagname eq '([^']+)' and tagvalue eq '([^']+)'", text, re.IGNORECASE)
    return tag is None or (resource.get("tags") or {}).get(tag[1]) == tag[2]
