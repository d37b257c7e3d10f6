"""The main job through a real MCP client: start `skillserver serve` over stdio and ask it what an engineer would ask.

Run it with `make demo`. Each result is printed for people; what could not be done on this machine is said with its reason.
"""

import asyncio
import sys
import time
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from skillserver import terminal

WATCHDOG = """\
[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21937, OpType=ALLREDUCE, \
NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600084 milliseconds before timing out.
[rank3]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 21937, \
last enqueued NCCL work: 21940, last completed NCCL work: 21936.
"""
SICK_NODE = """\
[1209600.110012] NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.
[1209601.550301] NVRM: Xid (PCI:0000:3b:00): 48, pid=51234, name=python, Double Bit ECC Error
[1209601.550377] NVRM: Xid (PCI:0000:3b:00): 45, pid=51234, name=python, Ch 00000008
"""
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("a search in English", "search_knowledge", {"query": "What is MAMF and how does it differ from MFU?", "max_tokens": 600}),
    ("a search in Chinese", "search_knowledge", {"query": "训练时显存不足怎么办", "max_tokens": 600}),
    ("a pasted NCCL timeout", "explain_error", {"text": WATCHDOG}),
    ("the GPUs of this machine", "check_gpu_health", {}),
    ("a kernel log from a suspected node", "check_gpu_health", {"captures": [{"name": "dmesg.txt", "text": SICK_NODE}]}),
    ("GPU-hours of a 7B", "estimate_gpu_hours", {"params_total": "7B", "tokens": "2T", "accelerator": "H100-80GB-SXM", "n_accelerators": 256,
                                                 "price_per_gpu_hour_usd": 2.5}),
    ("a short MAMF on this machine", "run_mamf", {"budget_s": 8, "wait_s": 40}),
    ("an all-reduce between two processes", "run_all_reduce_bench", {"nproc": 2, "sizes": ["64KiB", "1MiB", "16MiB"], "wait_s": 40}),
]  # fmt: skip


async def ask(client: Client, name: str, arguments: dict[str, Any]) -> str:
    """Call one tool, follow its job to the end, print the result; return what to say in the summary."""
    result = await client.call_tool(name, arguments)
    document = result.structured_content
    while not result.is_error and document and document.get("state") == "running":
        result = await client.call_tool("wait_job", {"job_id": document["job_id"], "wait_s": 45})
        document = result.structured_content
    if result.is_error:
        print(text_of(result))
        return f"refused: {text_of(result)}"
    terminal.show(document) if document else print(text_of(result))
    return "; ".join(map(terminal.plain, document["skipped"])) if document and document.get("skipped") else ""


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


async def main() -> int:
    """Ask everything; 1 when a tool failed where it should have answered."""
    started, skipped, refused = time.perf_counter(), [], 0
    server = StdioServerParameters(command=sys.executable, args=["-m", "skillserver", "serve"])
    async with Client(stdio_client(server)) as client:
        print(
            f"connected: {client.server_info and client.server_info.name} {client.protocol_version}, {len((await client.list_tools()).tools)} tools"
        )
        for title, name, arguments in ASKED:
            print(f"\n=== {title}: {name}\n")
            said = await ask(client, name, arguments)
            refused += said.startswith("refused")
            skipped += [f"{title}: {said}"] if said else []
    print("\n=== skipped or not judged on this machine")
    for line in skipped or ["nothing"]:
        print(f"- {line}")
    print(f"\n{len(ASKED) - refused} of {len(ASKED)} answered in {time.perf_counter() - started:.0f} s")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
