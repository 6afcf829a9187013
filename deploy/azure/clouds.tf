# Differences between the Azure clouds, and names that are already used in an empty subscription or
# in a Debian image. There are no resources in this file, so it can be tested without a provider.

locals {
  clouds = {
    public       = { storage = "core.windows.net", servicebus = "servicebus.windows.net", metrics = "https://management.azure.com", management = "https://management.azure.com", audience = "https://management.core.windows.net/", logs = "https://api.loganalytics.azure.com" }
    usgovernment = { storage = "core.usgovcloudapi.net", servicebus = "servicebus.usgovcloudapi.net", metrics = "https://management.usgovcloudapi.net", management = "https://management.usgovcloudapi.net", audience = "https://management.core.usgovcloudapi.net/", logs = "https://api.loganalytics.us" }
    china        = { storage = "core.chinacloudapi.cn", servicebus = "servicebus.chinacloudapi.cn", metrics = "https://management.chinacloudapi.cn", management = "https://management.chinacloudapi.cn", audience = "https://management.core.chinacloudapi.cn/", logs = "https://api.loganalytics.azure.cn" }
  }
  cloud = local.clouds[var.cloud]

  resource_providers = [
    "Microsoft.Compute",
    "Microsoft.Consumption",
    "Microsoft.DevTestLab",
    "Microsoft.Insights",
    "Microsoft.Logic",
    "Microsoft.ManagedIdentity",
    "Microsoft.MarketplaceOrdering",
    "Microsoft.Network",
    "Microsoft.OperationalInsights",
    "Microsoft.ServiceBus",
    "Microsoft.Storage",
  ]

  # Users and groups in Debian's base-passwd and in the packages installed on a VM, and names that
  # Azure does not allow for an administrator.
  taken_names = [
    "_apt", "_chrony", "_ssh", "a", "actuser", "adm", "admin", "admin1", "admin2", "administrator",
    "aspnet", "audio", "backup", "bin", "broadside", "cdrom", "clock", "console", "crontab", "daemon",
    "david", "dialout", "dip", "disk", "fax", "floppy", "ftp", "games", "guest", "input", "irc", "john",
    "kmem", "kvm", "list", "lp", "mail", "man", "messagebus", "netdev", "news", "nobody", "nogroup",
    "operator", "owner", "plugdev", "polkitd", "proxy", "render", "root", "sasl", "server", "sgx",
    "shadow", "sql", "src", "staff", "sudo", "support", "sync", "sys", "systemd-journal",
    "systemd-network", "systemd-resolve", "systemd-timesync", "tape", "test", "test1", "test2", "test3",
    "tty", "user", "user1", "user2", "user3", "user4", "user5", "users", "utmp", "uucp", "uuidd",
    "video", "voice", "www-data",
  ]
}
