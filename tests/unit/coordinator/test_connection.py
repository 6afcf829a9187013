"""How a command presents itself to a coordinator."""

import pwd

import pytest

from broadside.coordinator.cli.session import user_name


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given a bare user id."""

    def no_such_user(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    monkeypatch.setattr("os.getuid", lambda: 10_001)
    assert user_name() == "uid 10001"
    monkeypatch.setenv("LOGNAME", "gunner")
    assert user_name() == "gunner"
