"""Get the files from a cloud-config."""

import yaml


def files_of(cloud_config: str) -> dict[str, str]:
    """Return the content for each path."""
    return {item["path"]: item["content"] for item in yaml.safe_load(cloud_config)["write_files"]}
