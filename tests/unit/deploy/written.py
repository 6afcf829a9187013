"""What a rendered cloud-config writes."""

import yaml


def files_of(cloud_config: str) -> dict[str, str]:
    """The files that it writes, by path."""
    return {item["path"]: item["content"] for item in yaml.safe_load(cloud_config)["write_files"]}
