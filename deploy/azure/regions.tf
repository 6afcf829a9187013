# Facts about regions. If one is wrong, set firewall_zones, storage_replication or
# auto_shutdown_timezone. There are no resources in this file.

locals {
  # See learn.microsoft.com/azure/reliability/availability-zones-region-support (2026-11, from
  # memory). If this is wrong, set firewall_zones and storage_replication.
  zoned = contains([
    "australiaeast", "austriaeast", "brazilsouth", "canadacentral", "centralindia", "centralus",
    "chilecentral", "chinanorth3", "eastasia", "eastus", "eastus2", "francecentral",
    "germanywestcentral", "indonesiacentral", "israelcentral", "italynorth", "japaneast", "japanwest",
    "koreacentral", "malaysiawest", "mexicocentral", "newzealandnorth", "northeurope", "norwayeast",
    "polandcentral", "qatarcentral", "southafricanorth", "southcentralus", "southeastasia",
    "spaincentral", "swedencentral", "switzerlandnorth", "uaenorth", "uksouth", "usgovvirginia",
    "westeurope", "westus2", "westus3",
  ], var.location)

  # Physical zones in which no new Azure Firewall can be created, and the numbers that we use for
  # them here. The numbers differ between subscriptions: `broadside up --check` compares them. See
  # learn.microsoft.com/azure/firewall/firewall-known-issues (2026-11).
  firewall_zones_closed = lookup({
    northeurope    = ["2"]
    southeastasia  = ["3"]
    southcentralus = ["3"]
  }, var.location, [])
  firewall_zones_open = setsubtract(local.zoned ? ["1", "2", "3"] : [], local.firewall_zones_closed)

  # Regions by their time zone: the name in Windows, which Azure's schedules use, and the name in the
  # IANA database, which the coordinator uses. Regions with the same clock share an entry.
  time_zones = {
    "AUS Eastern Standard Time"      = { iana = "Australia/Sydney", regions = ["australiaeast", "australiasoutheast", "australiacentral", "australiacentral2"] }
    "Arab Standard Time"             = { iana = "Asia/Riyadh", regions = ["qatarcentral"] }
    "Arabian Standard Time"          = { iana = "Asia/Dubai", regions = ["uaenorth", "uaecentral"] }
    "Central Standard Time"          = { iana = "America/Chicago", regions = ["centralus", "northcentralus", "southcentralus", "usdodcentral", "usgovtexas"] }
    "Central Standard Time (Mexico)" = { iana = "America/Mexico_City", regions = ["mexicocentral"] }
    "China Standard Time"            = { iana = "Asia/Shanghai", regions = ["eastasia", "chinaeast", "chinaeast2", "chinaeast3", "chinanorth", "chinanorth2", "chinanorth3"] }
    "E. South America Standard Time" = { iana = "America/Sao_Paulo", regions = ["brazilsouth", "brazilsoutheast"] }
    "Eastern Standard Time"          = { iana = "America/New_York", regions = ["canadacentral", "canadaeast", "eastus", "eastus2", "eastus3", "usdodeast", "usgovvirginia"] }
    "GMT Standard Time"              = { iana = "Europe/London", regions = ["northeurope", "uksouth", "ukwest"] }
    "India Standard Time"            = { iana = "Asia/Kolkata", regions = ["centralindia", "jioindiacentral", "jioindiawest", "southindia", "westindia"] }
    "Israel Standard Time"           = { iana = "Asia/Jerusalem", regions = ["israelcentral"] }
    "Korea Standard Time"            = { iana = "Asia/Seoul", regions = ["koreacentral", "koreasouth"] }
    "Mountain Standard Time"         = { iana = "America/Denver", regions = ["westcentralus"] }
    "New Zealand Standard Time"      = { iana = "Pacific/Auckland", regions = ["newzealandnorth"] }
    "Pacific SA Standard Time"       = { iana = "America/Santiago", regions = ["chilecentral"] }
    "Pacific Standard Time"          = { iana = "America/Los_Angeles", regions = ["westus", "westus2"] }
    "SE Asia Standard Time"          = { iana = "Asia/Jakarta", regions = ["indonesiacentral"] }
    "Singapore Standard Time"        = { iana = "Asia/Singapore", regions = ["malaysiawest", "southeastasia"] }
    "South Africa Standard Time"     = { iana = "Africa/Johannesburg", regions = ["southafricanorth", "southafricawest"] }
    "Tokyo Standard Time"            = { iana = "Asia/Tokyo", regions = ["japaneast", "japanwest"] }
    "US Mountain Standard Time"      = { iana = "America/Phoenix", regions = ["usgovarizona", "westus3"] }
    "UTC"                            = { iana = "UTC", regions = [] }
    "W. Europe Standard Time"        = { iana = "Europe/Berlin", regions = ["austriaeast", "belgiumcentral", "denmarkeast", "francecentral", "francesouth", "germanynorth", "germanywestcentral", "italynorth", "norwayeast", "norwaywest", "polandcentral", "spaincentral", "swedencentral", "swedensouth", "switzerlandnorth", "switzerlandwest", "westeurope"] }
  }

  shutdown_timezone = coalesce(var.auto_shutdown_timezone, one([for name, zone in local.time_zones : name if contains(zone.regions, var.location)]), "UTC")
  # Without a known IANA name, the coordinator does not show the stop.
  iana_timezone = try(local.time_zones[local.shutdown_timezone].iana, null)
  nightly_stop  = local.shutdown_time == null || local.iana_timezone == null ? null : "${substr(local.shutdown_time, 0, 2)}:${substr(local.shutdown_time, 2, 2)} ${local.iana_timezone}"
}
