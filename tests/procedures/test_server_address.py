"""Which servers a benchmark may call, and which address it then uses."""

import socket
from collections.abc import Iterator

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.permissions import TEXT_ONLY, Permissions
from skillserver.procedures import server_address


@pytest.fixture(autouse=True)
def own_permissions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The defaults, no key, and names that resolve without a network."""
    before = permissions.current()
    permissions.grant(Permissions())
    monkeypatch.delenv(server_address.KEY, raising=False)
    yield
    permissions.grant(before)


def names(monkeypatch: pytest.MonkeyPatch, **known: list[str]) -> None:
    """Replace the resolver for names with a dot."""
    real = socket.getaddrinfo

    def find(host: str, port: int, **more: object) -> object:
        if host.replace(".", "_") not in known:
            return real(host, port, **more)  # type: ignore[arg-type]
        return [(0, 0, 0, "", (address, port)) for address in known[host.replace(".", "_")]]

    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.mark.parametrize(("url", "place"), [
    ("http://127.0.0.1:8000/v1", ("http", "127.0.0.1", "127.0.0.1", 8000, "/v1")),
    ("http://10.1.2.3:8000", ("http", "10.1.2.3", "10.1.2.3", 8000, "/v1")),
    ("https://192.168.0.9/serving/v1/", ("https", "192.168.0.9", "192.168.0.9", 443, "/serving/v1")),
    ("http://[::1]:9", ("http", "::1", "::1", 9, "/v1")),
    ("http://[::ffff:10.0.0.1]/v1", ("http", "::ffff:10.0.0.1", "10.0.0.1", 80, "/v1")),
])  # fmt: skip
def test_loopback_and_private_networks_may_be_called(url: str, place: tuple[str, str, str, int, str]) -> None:
    assert tuple(server_address.permitted(url).place.values()) == place


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/v1", "127.0.0.1:8000", "http://", "http://127.0.0.1:99999/v1", "http://user:pass@127.0.0.1/v1",
                                 "http://127.0.0.1/v1?x=1", "http://127.0.0.1/v1/chat/completions", "http://0.0.0.0:8000/v1",
                                 "http://127.0.0.1/v1\r\nX: y"])  # fmt: skip
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="bad_url"):
        server_address.permitted(url)


@pytest.mark.parametrize("address", ["8.8.8.8", "100.64.0.1", "224.0.0.1", "2001:4860:4860::8888"])
def test_other_hosts_are_refused_with_the_flag_that_names_them(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    names(monkeypatch, models_example=[address])
    with pytest.raises(NotHere, match=r"host_not_permitted: 'models.example' may not be called.*--allow-host models.example"):
        server_address.permitted("http://models.example/v1")
    permissions.grant(Permissions(hosts=("Models.Example",)))
    assert server_address.permitted("http://models.example/v1").place["address"] == address


def test_one_public_address_among_private_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, models_example=["10.0.0.1", "8.8.8.8"])
    with pytest.raises(NotHere, match=r"it is 8\.8\.8\.8"):
        server_address.permitted("http://models.example/v1")


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "fe80::1", "::ffff:169.254.169.254"])
def test_metadata_services_are_refused_even_under_a_name_that_is_allowed(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    names(monkeypatch, models_example=[address])
    permissions.grant(Permissions(hosts=("models.example",)))
    with pytest.raises(NotHere, match="metadata and credentials"):
        server_address.permitted("http://models.example/v1")


def test_over_http_only_named_hosts_may_be_called_loopback_included() -> None:
    permissions.grant(TEXT_ONLY)
    with pytest.raises(NotHere, match="may call no host that was not named"):
        server_address.permitted("http://127.0.0.1:8000/v1")
    permissions.grant(Permissions(private_hosts=False, hosts=("127.0.0.1:8000",)))
    assert server_address.permitted("http://127.0.0.1:8000/v1").is_loopback
    with pytest.raises(NotHere, match="host_not_permitted"):
        server_address.permitted("http://127.0.0.1:22/v1")


def test_the_key_goes_to_loopback_and_named_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server_address.KEY, "sk-secret")
    assert server_address.permitted("http://127.0.0.1/v1").environment == {server_address.KEY: "sk-secret"}
    assert server_address.permitted("http://10.0.0.1/v1").environment == {}
    permissions.grant(Permissions(hosts=("10.0.0.1",)))
    assert server_address.permitted("http://10.0.0.1/v1").environment == {server_address.KEY: "sk-secret"}


def test_a_name_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(NotHere, match="unknown_host: 'nosuch' is not found: Name or service not known"):
        server_address.permitted("http://nosuch:8000/v1")
