"""What a server has loaded after it listed its tools: nothing heavy, and nothing on stdout but the protocol."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "whoosh", "pynvml", "markdown_it", "yaml", "typer")  # the SDK itself loads rich when it is installed

LISTED = f"""
import asyncio, sys
from mcp.client.client import Client
from skillserver import registry, server
async def main():
    async with Client(server.build(registry.select(toolsets=["all"]))) as client:
        print(len((await client.list_tools()).tools))
asyncio.run(main())
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_nothing_heavy_is_loaded_after_tools_list() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", LISTED], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_importing_the_package_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import skillserver.registry, skillserver.server, skillserver.cli"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
