"""Whether every rank reaches every other: names, interfaces, sockets pair by pair, and last a group of torch.

    python connectivity.py --settings '{"ranks": 2}'                          ranks of this host, started by this script
    srun python connectivity.py --settings '{"folder": "/shared/run"}'        one rank a task, meeting in a shared folder
    python connectivity.py --settings '{"hosts": ["n1", "n2:29500"]}'         names and ports seen from this host

Settings: ranks (2), hosts, folder, or nodes (one rank a task of SLURM, meeting in the folder that RUN names); limit_s (5, of
one attempt), meet_s (60, for all ranks to appear), port (22, for hosts without one), group (true), backend (auto), raw_file
(every attempt as JSON). The ranks meet through files, so that a broken network still leaves an
answer: each writes what it is, tests every other (by name, at the address gloo would use, at that of NCCL) and writes
what it found; the first that is there joins all and decides whether torch is tried. Every rank sends the same result.
Standard library; torch only in `torch_group.py`, a child. Judges nothing.
"""

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interfaces
import protocol
import reach
import tournament

LIMIT_S, MEET_S, PORT = 5.0, 60.0, 22
AT_ONCE = 8
IMPORT_S = 120.0  # torch from a slow disk
LOOK_S = 0.05
NUMBERS = (("CONNECT_RANK", "SLURM_PROCID", 0), ("CONNECT_RANKS", "SLURM_NTASKS", 1))


def main(argv=None):
    """One of the three ways; one result."""
    settings = protocol.start(argv)
    limit_s = float(settings.get("limit_s") or LIMIT_S)
    if settings.get("hosts"):
        protocol.result(seen_from_here(settings["hosts"], int(settings.get("port") or PORT), limit_s))
        return
    number, world = (int(os.environ.get(mine) or os.environ.get(slurm) or default) for mine, slurm, default in NUMBERS)
    folder = settings.get("folder") or (os.environ.get("RUN") if settings.get("nodes") else "")
    if folder and world > 1:
        meeting = Path(folder) / "connect.{0}.{1}".format(os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("START", "0"))
        kept(Rank(number, world, meeting, settings).play(), settings)
        return
    ranks = int(settings.get("ranks") or 2)
    if ranks < 2:
        protocol.failure("one_rank", "{0} ranks have nobody to reach".format(ranks), next="pass ranks=2 or more, or hosts", kind="bad_request")
    kept(together(ranks, settings), settings)


def kept(payload, settings):
    """The result, and every attempt in a file of its own."""
    if settings.get("raw_file"):
        Path(settings["raw_file"]).write_text(json.dumps(payload["links"]))
    protocol.result(payload)


def seen_from_here(hosts, port, limit_s):
    """Each host as {"host", "port", "addresses", "error", "attempts"}; the names and ports of a list, all at once."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda host: one_host(host, port, limit_s), hosts))
    return {"mode": "hosts", "limit_s": limit_s, "here": interfaces.describe(limit_s), "hosts": found}


def one_host(host, port, limit_s):
    """A name resolved, and its port tried at every address."""
    name, own, named = host.strip("[]"), port, port != PORT
    if host.count(":") == 1 or "]:" in host:
        name, _, text = host.rpartition(":")
        name, own, named = name.strip("[]"), int(text), True
    told = interfaces.resolve(name, limit_s)
    here = interfaces.interfaces()
    attempts = [with_interface(reach.attempt(address, own, limit_s, None), address, here) for address in told["addresses"]]
    return {"host": name, "port": own, "port_named": named, "addresses": told["addresses"], "error": told["error"], "attempts": attempts}


def with_interface(found, address, here):
    """The attempt with the interface that it started from."""
    return dict(found, address=address, interface=interfaces.owner(found["source"], here))


def together(ranks, settings):
    """Start the ranks as children that meet in a folder of their own, which is removed; the result of the first."""
    with tempfile.TemporaryDirectory(prefix="ranks-", dir=os.getcwd()) as folder:  # noqa: PTH109
        command = [sys.executable, __file__, "--settings", json.dumps(dict(settings, folder=folder, raw_file=""))]
        children = [
            subprocess.Popen(command, stdout=subprocess.PIPE if number == 0 else subprocess.DEVNULL, env=child_environment(number, ranks),
                             preexec_fn=protocol.die_with_parent)
            for number in range(ranks)
        ]  # fmt: skip
        said, _ = children[0].communicate()
        for child in children:
            child.wait()
    lines = [json.loads(line) for line in said.splitlines() if line.strip()]
    result = next((line for line in lines if line["type"] == "result"), None)
    if result is None:
        why = next((line["message"] for line in lines if line["type"] == "failure"), "status {0}".format(children[0].returncode))
        protocol.failure("rank_failed", "rank 0 ended without a result: {0}".format(why))
    return result["payload"]


def child_environment(number, ranks):
    """A rank of this host; SLURM's own numbers would be taken for another job's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return dict(plain, CONNECT_RANK=str(number), CONNECT_RANKS=str(ranks), SKILLSERVER_PARENT=str(os.getpid()))


class Rank:
    """One rank's part."""

    def __init__(self, number, world, folder, settings):
        self.number, self.world, self.folder, self.settings = number, world, folder, settings
        self.limit_s, self.meet_s = float(settings.get("limit_s") or LIMIT_S), float(settings.get("meet_s") or MEET_S)
        self.token = os.environ.get("SKILLSERVER_JOB") or folder.parent.name
        folder.mkdir(parents=True, exist_ok=True)

    def play(self):
        """Appear, test, tell, join."""
        facts = interfaces.describe(self.limit_s)
        with reach.Listener(self.named(self.number)) as there:
            self.write("rank", dict(facts, rank=self.number, port=there.port))
            known = self.read_all("rank", range(self.world), self.meet_s)
            protocol.progress(1, 3, "{0} of {1} ranks appeared".format(len(known), self.world))
            self.write("found", self.tested(facts, known))
            longest = self.limit_s * 3 * (3 * self.world // AT_ONCE + 2)
            found = self.read_all("found", known, longest)
            protocol.progress(2, 3, "every pair was tried")
            told = {"mode": "ranks", "limit_s": self.limit_s, "world": self.world, "ranks": [known[number] for number in sorted(known)],
                    "absent": [number for number in range(self.world) if number not in known],
                    "unfinished": [number for number in known if number not in found],
                    "links": [link for number in sorted(found) for link in found[number]]}  # fmt: skip
            return self.joined(told, known)

    def joined(self, told, known):
        """The first rank that is there decides on the group and joins; the others wait for its word."""
        first = min(known)
        if self.number == first:
            why = self.no_group(told, known)
            self.write("next", {"why": why, "address": master(known), "port": free_port()}, 0)
        step = self.read_all("next", [0], 60.0 + self.meet_s).get(0) or {"why": "rank {0} went away".format(first)}
        if step["why"]:
            return dict(told, group={"skipped": step["why"]})
        self.write("group", self.group(step, sorted(known)))
        answers = self.read_all("group", known, self.limit_s + IMPORT_S + 30.0)
        return dict(told, group={"address": step["address"], "answers": [answers[number] for number in sorted(answers)]})

    def no_group(self, told, known):
        """Why torch is not tried; "" when it is."""
        if self.settings.get("group") is False:
            return "not asked for"
        if told["absent"] or len(known) < 2 or told["unfinished"]:
            return "not all ranks were there"
        if any(link["outcome"] != "ok" for link in told["links"] if set(link["kinds"]) & {"name", "gloo"}):
            return "a pair failed already"
        if any(one["gloo"]["error"] for one in told["ranks"]):
            return "GLOO_SOCKET_IFNAME cannot be used"
        return "" if has_torch() else "no torch in this environment"

    def tested(self, facts, known):
        """[{"from", "to", "kinds", "address", "outcome", "ms", "interface", "detail"}] to every other rank, in the order of a tournament."""
        order = [tournament.partner(pairs, self.number) for pairs in tournament.rounds(self.world)]
        others = [known[number] for number in order if number is not None and number in known]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return [link for links in pool.map(lambda other: self.links_to(other, facts), others) for link in links]

    def links_to(self, other, facts):
        """Every address of another rank that somebody would use, each tried once."""
        wanted, told = {}, []
        asked = interfaces.resolve(other["host"], self.limit_s)
        if not asked["addresses"]:
            told.append({"kinds": ["name"], "address": other["host"], "outcome": "unresolved", "ms": None, "interface": "", "source": "",
                         "detail": asked["error"]})  # fmt: skip
        for kind, address in [("name", one) for one in asked["addresses"][:1]] + [(kind, other[kind]["address"]) for kind in ("gloo", "nccl")]:
            if address:
                wanted.setdefault(address, []).append(kind)
        for address, kinds in wanted.items():
            found = reach.attempt(address, other["port"], self.limit_s, self.named(other["rank"]))
            for another in asked["addresses"][1:] if kinds == ["name"] else []:  # whoever connects by name tries them in turn
                if found["outcome"] == "ok":
                    break
                second = reach.attempt(another, other["port"], self.limit_s, self.named(other["rank"]))
                found, address = (second, another) if second["outcome"] == "ok" else (found, address)
            told.append(dict(with_interface(found, address, facts["interfaces"]), kinds=kinds))
        return [dict(link, **{"from": self.number, "to": other["rank"]}) for link in told]

    def group(self, step, ranks):
        """{"rank", "step", "words"}: how far torch came on this rank."""
        env = dict(os.environ, RANK=str(ranks.index(self.number)), WORLD_SIZE=str(len(ranks)), MASTER_ADDR=step["address"],
                   MASTER_PORT=str(step["port"]), SKILLSERVER_PARENT=str(os.getpid()), OMP_NUM_THREADS="1")  # fmt: skip
        command = [sys.executable, str(Path(__file__).with_name("torch_group.py")), self.settings.get("backend") or "auto", str(2 * self.limit_s)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, universal_newlines=True,
                                 preexec_fn=protocol.die_with_parent)  # fmt: skip
        try:
            out, err = child.communicate(timeout=IMPORT_S + 3 * self.limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        steps = [json.loads(line) for line in out.splitlines() if line.startswith("{")] or [{"step": "start"}]
        words = [line.strip() for line in err.splitlines() if line.strip()]
        found = {name: value for line in steps for name, value in line.items() if name in ("backend", "torch")}
        return dict(found, rank=self.number, step=steps[-1]["step"], words="" if steps[-1]["step"] == "done" else (words or ["no words"])[-1][:300])

    def named(self, number):
        """What a rank answers to a greeting; another run's rank of the same number answers otherwise."""
        return "rank {0} {1}".format(number, self.token)[:64].strip()

    def write(self, kind, what, number=None):
        """One file, aside and renamed: readers see all of it or nothing."""
        file = self.folder / "{0}.{1}.json".format(kind, self.number if number is None else number)
        part = file.with_suffix(".part{0}".format(self.number))
        part.write_text(json.dumps(what))
        part.replace(file)

    def read_all(self, kind, numbers, within_s):
        """{number: what it wrote} of those that wrote in time; a folder on NFS shows new files late, so it is listed each time."""
        ends, told, wanted = time.monotonic() + within_s, {}, set(numbers)
        while wanted - set(told) and time.monotonic() < ends and not protocol.stopping():
            there = {path.name for path in self.folder.iterdir()}
            for number in sorted(wanted - set(told)):
                name = "{0}.{1}.json".format(kind, number)
                if name in there:
                    told[number] = json.loads((self.folder / name).read_text())
            time.sleep(LOOK_S)
        return told


def master(known):
    """What the ranks are told to meet at: the first rank's name, loopback when all are on one host, as torchrun does."""
    hosts = {one["host"] for one in known.values()}
    return known[min(known)]["host"] if len(hosts) > 1 else "127.0.0.1"


def free_port():
    """A port that nobody holds now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def has_torch():
    """Whether torch is installed, without importing it."""
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    sys.exit(main())
