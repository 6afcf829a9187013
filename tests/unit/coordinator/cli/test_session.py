"""Tests for the user name sent to a coordinator."""

import pwd

import pytest

from broadside.coordinator.cli.session import user_name


def test_user_without_a_name_is_identified_by_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    """This can happen when a container is started with a user id."""

    def no_such_user(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    monkeypatch.setattr("os.getuid", lambda: 10_001)
    assert user_name() == "uid 10001"
    monkeypatch.setenv("LOGNAME", "gunner")
    assert user_name() == "gunner"
