"""The least an MCPServer can be: one tool over stdio. What start-up is compared with."""

from mcp.server import MCPServer

server = MCPServer("bare")


@server.tool()
async def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


if __name__ == "__main__":
    server.run("stdio")
