"""Validation of request bodies with Microsoft's published API types.

Azure/bicep-types-az has one ``<namespace>/<version>/types.json`` per provider and API version,
generated from Azure's REST specifications. The user provides them in a folder. :data:`SPECIFIED`
defines types of bodies that are not resources, and of our resources with a type or version that the
folder may lack.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

REQUIRED: Final = 1
READ_ONLY: Final = 2
# These fields are in the URL.
_ENVELOPE: Final = frozenset({"id", "type", "apiVersion"})

Types = Sequence[Mapping[str, Any]]


def _object(extra: int | None = None, /, **members: tuple[int, int]) -> Mapping[str, Any]:
    """Return an object type with type index and flags by member. ``extra`` is for other names."""
    fields = {
        name: {"type": {"$ref": f"#/{index}"}, "flags": flags}
        for name, (index, flags) in members.items()
    }
    more = {} if extra is None else {"additionalProperties": {"$ref": f"#/{extra}"}}
    return {"$type": "ObjectType", "properties": fields, **more}


def _members(names: str, index: int, flags: int = 0) -> Mapping[str, tuple[int, int]]:
    """Return members of one type from a list separated by spaces."""
    return dict.fromkeys(names.split(), (index, flags))


def _list(of: int) -> Mapping[str, Any]:
    return {"$type": "ArrayType", "itemType": {"$ref": f"#/{of}"}}


_PLAIN: Final[Types] = tuple(
    {"$type": f"{kind}Type"} for kind in ("String", "Integer", "Boolean", "Any")
)
_TEXT, _NUMBER, _FLAG, _ANY = range(4)
# The last type is the type of the body.
SPECIFIED: Final[Mapping[str, Types]] = {
    # specification/applicationinsights/resource-manager/Microsoft.Insights/stable/2015-05-01/
    # componentFeaturesAndPricing_API.json of Azure/azure-rest-api-specs at 4bf082ef.
    "microsoft.insights/components/currentbillingfeatures@2015-05-01": (
        *_PLAIN,
        _list(_TEXT),
        _object(
            **_members("Cap WarningThreshold", _NUMBER),
            **_members("ResetTime MaxHistoryCap", _NUMBER, READ_ONLY),
            StopSendNotificationWhenHitThreshold=(_FLAG, 0),
            StopSendNotificationWhenHitCap=(_FLAG, 0),
        ),
        _object(CurrentBillingFeatures=(4, 0), DataVolumeCap=(5, 0), name=(_TEXT, 0)),
    ),
    # From generated/logic/microsoft.logic/2019-05-01 of Azure/bicep-types-az at 1f896de2, for users
    # without all types. Only the parts that our workflow uses are included.
    "microsoft.logic/workflows@2019-05-01": (
        *_PLAIN,
        _object(_TEXT),
        _object(**_members("principalId clientId", _TEXT, READ_ONLY)),
        _object(5),
        _object(
            type=(_TEXT, REQUIRED),
            **_members("tenantId principalId", _TEXT, READ_ONLY),
            userAssignedIdentities=(6, 0),
        ),
        _object(
            **_members(
                "provisioningState createdTime changedTime version accessEndpoint", _TEXT, READ_ONLY
            ),
            state=(_TEXT, 0),
            **_members("definition parameters", _ANY),
        ),
        _object(
            **_members("name location", _TEXT), tags=(4, 0), identity=(7, 0), properties=(8, 0)
        ),
    ),
    # The next three: generated/<provider>/<namespace>/<version>/types.md of Azure/bicep-types-az.
    "microsoft.authorization/roledefinitions@2022-05-01-preview": (
        *_PLAIN,
        _list(_TEXT),
        _object(
            **_members("actions notActions dataActions notDataActions", 4),
            **_members("condition conditionVersion", _TEXT, READ_ONLY),
        ),
        _list(5),
        _object(
            **_members("roleName description type", _TEXT),
            permissions=(6, 0),
            assignableScopes=(4, 0),
            **_members("createdBy createdOn updatedBy updatedOn", _TEXT, READ_ONLY),
        ),
        _object(name=(_TEXT, REQUIRED), properties=(7, 0)),
    ),
    ("microsoft.marketplaceordering/offertypes/publishers/offers/plans/agreements@2021-01-01"): (
        *_PLAIN,
        _object(
            accepted=(_FLAG, 0),
            **_members("licenseTextLink marketplaceTermsLink privacyPolicyLink signature", _TEXT),
            **_members("plan product publisher retrieveDatetime", _TEXT),
        ),
        _object(name=(_TEXT, REQUIRED), properties=(4, 0), systemData=(_ANY, READ_ONLY)),
    ),
    "microsoft.network/virtualnetworks/virtualnetworkpeerings@2023-11-01": (
        *_PLAIN,
        _list(_TEXT),
        _object(addressPrefixes=(4, 0)),
        _object(id=(_TEXT, 0)),
        _object(
            **_members(
                "allowForwardedTraffic allowGatewayTransit allowVirtualNetworkAccess", _FLAG
            ),
            **_members("doNotVerifyRemoteGateways enableOnlyIPv6Peering", _FLAG),
            **_members("peerCompleteVnets useRemoteGateways", _FLAG),
            **_members("localAddressSpace localVirtualNetworkAddressSpace", 5),
            **_members("remoteAddressSpace remoteVirtualNetworkAddressSpace", 5),
            **_members("localSubnetNames remoteSubnetNames", 4),
            **_members("peeringState peeringSyncLevel", _TEXT),
            **_members("provisioningState resourceGuid", _TEXT, READ_ONLY),
            remoteBgpCommunities=(_ANY, 0),
            remoteVirtualNetwork=(6, 0),
            remoteVirtualNetworkEncryption=(_ANY, READ_ONLY),
        ),
        _object(name=(_TEXT, 0), etag=(_TEXT, READ_ONLY), properties=(7, 0)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of a validation.

    Attributes:
        is_published: The types include this kind and version.
    """

    is_published: bool
    faults: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Published:
    """Types in a folder. A file is read when its kind is first sent."""

    folder: Path
    _read: dict[Path, Types] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[tuple[str, str], list[Path]]:
        """Files by namespace and version in lower case."""
        by_name: dict[tuple[str, str], list[Path]] = {}
        for path in self.folder.rglob("types.json"):
            key = (path.parts[-3].lower(), path.parts[-2].lower())
            by_name.setdefault(key, []).append(path)
        return by_name

    def versions(self, namespace: str) -> list[str]:
        return sorted({version for name, version in self.files if name == namespace.lower()})

    def check(self, kind: str, version: str, name: str, body: Any) -> Checked:
        """Validate the body of a PUT or PATCH."""
        result = self._resource(kind, version)
        if result is None:
            return Checked(is_published=False)
        types, top = result
        complete = {**body, "name": name} if isinstance(body, dict) else body
        faults = tuple(
            fault
            for fault in _faults(types, top, complete, kind)
            if fault.removeprefix(f"{kind}.").partition(":")[0] not in _ENVELOPE
        )
        return Checked(is_published=True, faults=faults)

    def _resource(self, kind: str, version: str) -> tuple[Types, Mapping[str, Any]] | None:
        namespace = kind.split("/")[0].lower()
        wanted = f"{kind}@{version}".lower()
        for path in self.files.get((namespace, version.lower()), ()):
            if path not in self._read:
                self._read[path] = json.loads(path.read_text("utf-8"))
            types = self._read[path]
            for item in types:
                if item["$type"] == "ResourceType" and item["name"].lower() == wanted:
                    return types, _follow(types, item["body"])
        specified = SPECIFIED.get(wanted)
        return None if specified is None else (specified, specified[-1])


def _follow(types: Types, reference: Mapping[str, str]) -> Mapping[str, Any]:
    return types[int(reference["$ref"].rsplit("/", 1)[-1])]


def _faults(types: Types, kind: Mapping[str, Any], value: Any, position: str) -> Iterator[str]:
    """Yield the faults of a value for a type. The service accepts null everywhere."""
    if value is None:
        return
    match kind["$type"]:
        case "StringType":
            yield from _string_faults(kind, value, position)
        case "StringLiteralType":
            if not (isinstance(value, str) and value.lower() == kind["value"].lower()):
                yield f"{position}: {value!r} is not {kind['value']!r}"
        case "IntegerType":
            if isinstance(value, bool) or not isinstance(value, int | float):
                yield f"{position}: a number is wanted, not {value!r}"
            elif not kind.get("minValue", value) <= value <= kind.get("maxValue", value):
                bounds = f"{kind.get('minValue')}..{kind.get('maxValue')}"
                yield f"{position}: {value} is not in {bounds}"
        case "BooleanType":
            if not isinstance(value, bool):
                yield f"{position}: true or false is wanted, not {value!r}"
        case "UnionType":
            options = [_follow(types, item) for item in kind["elements"]]
            if all(any(_faults(types, item, value, position)) for item in options):
                reported = [item.get("value", item["$type"]) for item in options]
                yield f"{position}: {json.dumps(value)[:60]} is none of {reported[:12]}"
        case "ArrayType":
            yield from _array_faults(types, kind, value, position)
        case "ObjectType" if isinstance(value, dict):
            extra = kind.get("additionalProperties")
            yield from _member_faults(types, kind["properties"], extra, value, position)
        case "DiscriminatedObjectType" if isinstance(value, dict):
            yield from _variant_faults(types, kind, value, position)
        case "ObjectType" | "DiscriminatedObjectType":
            yield f"{position}: an object is wanted, not {json.dumps(value)[:60]}"


def _string_faults(kind: Mapping[str, Any], value: Any, position: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{position}: a string is wanted, not {json.dumps(value)[:60]}"
        return
    least, most = kind.get("minLength", 0), kind.get("maxLength", len(value))
    if not least <= len(value) <= most:
        yield f"{position}: {value[:60]!r} is not of length {least}..{most}"
    try:
        fits = "pattern" not in kind or re.search(kind["pattern"], value)
    # The pattern has another dialect of regular expressions.
    except re.error:
        fits = True
    if not fits:
        yield f"{position}: {value[:60]!r} does not match {kind['pattern']}"


def _array_faults(
    types: Types, kind: Mapping[str, Any], value: Any, position: str
) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{position}: a list is wanted"
        return
    least, most = kind.get("minLength", 0), kind.get("maxLength", len(value))
    if not least <= len(value) <= most:
        yield f"{position}: {len(value)} entries, not {least}..{most}"
    item = _follow(types, kind["itemType"])
    for index, entry in enumerate(value):
        yield from _faults(types, item, entry, f"{position}[{index}]")


def _variant_faults(
    types: Types, kind: Mapping[str, Any], value: dict[str, Any], position: str
) -> Iterator[str]:
    answer = value.get(kind["discriminator"])
    variants = {key.lower(): variant for key, variant in kind["elements"].items()}
    properties = dict(kind["baseProperties"])
    if variant := variants.get(str(answer).lower()):
        properties |= _follow(types, variant).get("properties", {})
    else:
        yield f"{position}.{kind['discriminator']}: {answer!r} is none of {list(kind['elements'])}"
    yield from _member_faults(types, properties, None, value, position)


def _member_faults(
    types: Types,
    properties: Mapping[str, Any],
    extra: Mapping[str, str] | None,
    value: dict[str, Any],
    position: str,
) -> Iterator[str]:
    known = {name.lower(): (name, reported) for name, reported in properties.items()}
    given = {name.lower() for name, inner in value.items() if inner is not None}
    for lower, (name, reported) in known.items():
        if (
            reported["flags"] & REQUIRED
            and not reported["flags"] & READ_ONLY
            and lower not in given
        ):
            yield f"{position}.{name}: required and missing"
    for text, inner in value.items():
        if text.lower() in known:
            name, reported = known[text.lower()]
            if reported["flags"] & READ_ONLY and inner not in (None, "", [], {}):
                yield f"{position}.{name}: read-only, and sent: {json.dumps(inner)[:60]}"
            else:
                yield from _faults(
                    types, _follow(types, reported["type"]), inner, f"{position}.{name}"
                )
        elif extra is not None:
            yield from _faults(types, _follow(types, extra), inner, f"{position}.{text}")
        else:
            yield f"{position}.{text}: no such property"
