"""A small server: starts one guarded run, prints its id once it is under way, then how it ended.

host_script.py SCRIPT NPROC SETTINGS
"""

import asyncio
import json
import sys

from skillserver.jobs import manager
from skillserver.procedures.guarded_run import run_guarded


async def main(script, nproc, settings):
    async with manager.keeping():
        record = await run_guarded(tool="run_test", arguments={}, script=script, settings=settings, shape=dict, nproc=nproc, device="cpu",
                                   wait_s=0, python=sys.executable, needs_torch=nproc > 0)  # fmt: skip
        while record.state == "running" and not record.progress:
            record = await manager.wait(record.job_id, 0.05)
        print(json.dumps({"job_id": record.job_id, "state": record.state, "error": record.error}), flush=True)
        while record.state == "running":
            record = await manager.wait(record.job_id, 45)
        print(record.model_dump_json(), flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
