"""How fast every pair of ranks exchanges data, in rounds where all pairs talk at the same time.

    torchrun --nproc-per-node 4 torch_pairs.py --settings '{"backend": "gloo", "sizes": [4194304]}'

Settings: those of torch_collective.py (the largest of `sizes` counts), passes (3). A round is begun together; in it the
two of a pair send each other the size at once, several times. The time of a pair is the median over calls, the larger of
its two ranks'; its rate = size / time, one way, 1 GB = 10^9 bytes. The whole tournament is run `passes` times, every
other time backwards, and the median over passes stands: what disturbs one moment disturbs one pass. When ranks sit on
several hosts with equally many each, hosts are the players: all ranks of a host exchange with those of the other, and
the rates add up. Collectives hide which link is slow, since all ranks end together; this does not. Judges nothing.
"""

import json
import socket
import sys
import time
from pathlib import Path

import conditions
import devices
import protocol
import samples
import torch
import torch.distributed as dist
import torch_collective
import tournament
from collective_timing import LEAST, started
from collectives import Buffers, contribution, exchange

SIZES = {"cpu": 2**22, "other": 2**28}
PASSES, MOST_CALLS = 3, 50
NEVER = float("nan")


def main(argv=None):
    """Meet, play every round of every pass that time allows, send one result from rank 0."""
    settings = protocol.start(argv)
    job = torch_collective.Job(dict(settings, collective="send_recv"))
    torch_collective.meet(job)
    size = max(settings.get("sizes") or [SIZES.get(job.device.kind, SIZES["other"])])
    hosts = [None] * job.world
    dist.all_gather_object(hosts, socket.gethostname())
    watch = conditions.Watch(job.device.backend if job.rank == 0 else "other", job.device.uuid)
    table = Table(tournament.teams(hosts), size, max(1, int(settings.get("passes") or PASSES)))
    why = too_large(job, size)
    if not why:
        table.play(job, exchange_buffers(job, size))
    cpu_s = sum(row[0] for row in job.gathered([watch.own_cpu_s()]))
    if job.rank == 0:
        seen = torch_collective.circumstances(job, watch.close(cpu_s if len(set(hosts)) == 1 else None), hosts)
        if settings.get("raw_file"):
            part = Path(settings["raw_file"] + ".part")
            part.write_text(json.dumps(table.raw))
            part.replace(settings["raw_file"])
        protocol.result(dict(table.document(job), conditions=seen, skipped=[why] if why else table.left_out()))
    dist.barrier()
    dist.destroy_process_group()


def too_large(job, size):
    """Why the buffers do not fit; the ranks agree on it."""
    free = devices.free_bytes(job.device)
    local = torch_collective.local_ranks(job)
    bad = free is not None and 2 * size * local > torch_collective.MEMORY_SHARE * free
    return "{0} bytes: the tensors do not fit in free memory".format(size) if any(row[0] for row in job.gathered([float(bad)])) else ""


def exchange_buffers(job, size):
    """One tensor to send, one to receive into."""
    count = max(1, size // torch.empty((), dtype=job.dtype).element_size())
    return Buffers(*(torch.zeros(count, dtype=job.dtype, device=job.device.place) for _ in range(2)))


class Table:
    """The tournament: who plays, what every pass said of every pair."""

    def __init__(self, teams, size, passes):
        self.names, self.ranks = [name for name, _ in teams], [ranks for _, ranks in teams]
        self.size, self.passes, self.done = size, passes, 0
        self.rates = {}  # (a, b) -> GB/s of every pass
        self.raw, self.correct = [], True

    def play(self, job, buffers):
        """Every round of every pass; ranks agree on the number of calls and on when to stop."""
        plan = tournament.rounds(len(self.names))
        calls, share = LEAST, 0.8 * job.budget_s / max(1, self.passes * len(plan))
        for number in range(self.passes):
            for pairs in plan if number % 2 == 0 else plan[::-1]:
                if self.ended(job, number):
                    return
                times, correct = self.one_round(job, buffers, pairs, calls, check=number == 0)
                slowest = max([time for time in times if time == time], default=1.0)
                calls = int(min(MOST_CALLS, max(LEAST, share / (slowest + 1e-4))))
                self.correct = self.correct and correct
                self.keep(pairs, times)
            self.done = number + 1
            words = "pass {0} of {1} over all pairs".format(self.done, self.passes)
            protocol.progress(self.done, self.passes, words, partial=dict(self.document(job), partial=True))

    def ended(self, job, number):
        """Stop when told to, or when the time is used up and every pair was seen once."""
        late = number > 0 and time.monotonic() > job.deadline
        return max(row[0] for row in job.gathered([float(protocol.stopping() or late)])) > 0

    def one_round(self, job, buffers, pairs, calls, check):
        """([median seconds of each rank, nan for one that sat out], whether all received what was sent)."""
        other = self.partner(job.rank, pairs)
        job.together()
        mine, correct = NEVER, True
        if other is not None:
            if check:
                correct = received(buffers, job.rank, other)
            exchange(buffers, other, other)
            mine = samples.median([one_exchange(job, buffers, other) for _ in range(calls)])
        rows = job.gathered([mine, float(correct)])
        return [row[0] for row in rows], min(row[1] for row in rows) == 1.0

    def partner(self, rank, pairs):
        """The rank in the other team that stands where this one stands in its own."""
        team, place = next((team, ranks.index(rank)) for team, ranks in enumerate(self.ranks) if rank in ranks)
        other = tournament.partner(pairs, team)
        return None if other is None else self.ranks[other][place]

    def keep(self, pairs, times):
        """A pair's rate: the sum over its rails of size / the slower side's time."""
        for a, b in pairs:
            took = [max(times[one], times[two]) for one, two in zip(self.ranks[a], self.ranks[b])]  # noqa: B905
            self.rates.setdefault((a, b), []).append(sum(self.size / seconds / 1e9 for seconds in took))
            self.raw.append({"pair": [self.names[a], self.names[b]], "seconds": took})

    def document(self, job):
        """Medians over passes as a matrix, in the order of `players`; null on the diagonal and where nothing was measured."""
        count = len(self.names)
        matrix = [[None] * count for _ in range(count)]
        for (a, b), rates in self.rates.items():
            matrix[a][b] = matrix[b][a] = samples.median(rates)
        spreads = [(max(rates) - min(rates)) / samples.median(rates) for rates in self.rates.values() if len(rates) > 1]
        return {**torch_collective.identity(job), "players": self.names, "player": "rank" if self.names[0] == "0" else "host", "bytes": self.size,
                "matrix": matrix, "passes": self.done, "between_passes": samples.median(spreads) if spreads else None, "correct": self.correct,
                "partial": bool(protocol.stopping()), "ranks_a_player": len(self.ranks[0]),
                "method": "both of a pair send at once; time = the slower side's median over calls; median over passes; one way"}  # fmt: skip

    def left_out(self):
        """What the time did not allow."""
        told = "{0} of {1} passes: the time was used up".format(self.done, self.passes)
        return [told] if self.done < self.passes else []


def received(buffers, rank, other):
    """Whether what came is what the partner sent; leaves zeros."""
    buffers.given.fill_(contribution(rank))
    exchange(buffers, other, other)
    right = bool((buffers.taken.double() == contribution(other)).all())
    buffers.given.zero_()
    return right


def one_exchange(job, buffers, other):
    """Seconds of one exchange on this rank."""
    clock = started(job)
    exchange(buffers, other, other)
    return clock()


if __name__ == "__main__":
    sys.exit(main())
