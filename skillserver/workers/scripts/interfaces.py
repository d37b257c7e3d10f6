"""What this host calls itself, which interfaces it has, and which of them gloo and NCCL would take. Standard library only.

gloo takes the interface named by GLOO_SOCKET_IFNAME, else the address that the host's own name resolves to, else
loopback (torch's GlooDeviceFactory). NCCL takes what matches NCCL_SOCKET_IFNAME (prefixes; `=` exact, `^` all but), else the
first ib*, else the first that is neither docker*, lo* nor virbr*, else docker*, else lo (NCCL's socket.cc). Linux tells
addresses by ioctl and /proc; elsewhere only names are known. Tests nothing over the network.

>>> describe(5.0)["gloo"]["interface"]
'eth0'
"""

import os
import socket
import struct
import sys
import threading

SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFMTU = 0x8913, 0x8915, 0x8921  # linux/sockios.h
IFF_UP = 0x1
GLOBAL_SCOPE = "00"
NCCL_ORDER = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")


def describe(limit_s):
    """Name, addresses of the name, interfaces, and the choice of either library, as one dictionary."""
    name, here = socket.gethostname(), interfaces()
    own = resolve(name, limit_s)
    return {"host": name, "name_addresses": own["addresses"], "name_error": own["error"], "interfaces": here, "gloo": gloo(here, own),
            "nccl": nccl(here)}  # fmt: skip


def resolve(name, limit_s):
    """{"addresses", "error"}: what the resolver says within the limit; a resolver that hangs is left behind in its thread."""
    told = {}

    def ask():
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            told["addresses"] = list(dict.fromkeys(one[4][0] for one in found))
        except (OSError, UnicodeError) as problem:
            told["error"] = str(getattr(problem, "strerror", "") or problem)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return {"addresses": [], "error": "no answer of the resolver in {0:g} s".format(limit_s)}
    return {"addresses": told.get("addresses", []), "error": told.get("error")}


def interfaces():
    """[{"name", "up", "addresses", "mtu"}] in the order of the kernel."""
    sixes = _ipv6()
    return [dict(_asked(name), name=name, addresses=_ipv4(name) + sixes.get(name, [])) for _, name in socket.if_nameindex()]


def owner(address, here):
    """Name of the interface that has an address; every 127.x belongs to loopback; "" for none."""
    found = next((one["name"] for one in here if address in one["addresses"]), "")
    return found or ("lo" if address.startswith("127.") else "")


def is_loopback(address):
    """Whether no other host can reach this address."""
    return address.startswith("127.") or address == "::1"


def gloo(here, own):
    """What torch's gloo would listen on."""
    asked = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if asked:
        return dict(_named(asked.split(",")[0].strip(), here), variable=asked)
    for address in own["addresses"]:
        interface = owner(address, here)
        if interface:
            return {"variable": "", "interface": interface, "address": address, "error": None, "why": "what the host name resolves to"}
    return {"variable": "", "interface": "lo", "address": "127.0.0.1", "error": None, "why": "the host name resolves to none of its addresses, "
            "and gloo then falls back to loopback"}  # fmt: skip


def nccl(here):
    """What NCCL would use for its sockets (bootstrap, and data without RDMA)."""
    asked = os.environ.get("NCCL_SOCKET_IFNAME", "")
    usable = [one for one in here if one["addresses"] and one["up"]]
    for pattern in (asked,) if asked else NCCL_ORDER:
        found = [one for one in usable if _matches(pattern, one["name"])]
        if found:
            return {
                "variable": asked,
                "interface": found[0]["name"],
                "address": found[0]["addresses"][0],
                "error": None,
                "why": "the first that fits",
            }
    if asked.startswith(("^", "=")) or "," in asked or not asked:
        return {"variable": asked, "interface": "", "address": "", "error": "missing", "why": "no interface fits"}
    return dict(_named(next((one["name"] for one in here if _matches(asked, one["name"])), asked), here), variable=asked)


def _named(name, here):
    """The interface of that name, or why it cannot be used."""
    one = next((one for one in here if one["name"] == name), None)
    error = "missing" if one is None else "down" if not one["up"] else None if one["addresses"] else "no_address"
    return {"interface": name, "address": "" if error else one["addresses"][0], "error": error, "why": "named by the variable"}


def _matches(pattern, name):
    """NCCL's way to match: prefixes, after = whole names, after ^ all but those."""
    negated, exact = pattern.startswith("^"), pattern.lstrip("^").startswith("=")
    words = [word for word in pattern.lstrip("^=").split(",") if word]
    found = any(name == word if exact else name.startswith(word) for word in words)
    return found != negated


def _asked(name):
    flags, mtu = _ioctl(SIOCGIFFLAGS, name), _ioctl(SIOCGIFMTU, name)
    return {"up": True if flags is None else bool(struct.unpack_from("H", flags, 16)[0] & IFF_UP), "mtu": mtu and struct.unpack_from("i", mtu, 16)[0]}


def _ipv4(name):
    answer = _ioctl(SIOCGIFADDR, name)
    return [socket.inet_ntoa(answer[20:24])] if answer else []


def _ioctl(number, name):
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            return fcntl.ioctl(one, number, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None


def _ipv6():
    """{interface: [global addresses and loopback]} from /proc."""
    told = {}
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:  # noqa: PTH123
            rows = [line.split() for line in file]
    except OSError:
        return told
    for digits, _, _, scope, _, name in rows:
        if scope == GLOBAL_SCOPE or name == "lo":
            told.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return told
