"""Say so before a disk is full: bytes and inodes, because a file system with room can be out of inodes.

    python watch_disk.py /scratch /home --percent 90        # ends with 1 when one of them is above

`statvfs` knows the file system, not your quota: on shared storage ask the quota tool too (`quota -s`, `lfs quota -h -u $USER PATH`).
"""

import argparse
import os


def used_percent(path: str) -> tuple[float, float | None]:
    """(bytes, inodes) in use as df counts them, in percent; inodes are None where the file system has no fixed number."""
    told = os.statvfs(path)
    filled = told.f_blocks - told.f_bfree
    files = 100 * (told.f_files - told.f_ffree) / told.f_files if told.f_files else None
    return 100 * filled / max(1, filled + told.f_bavail), files


def alarms(paths: list[str], percent: float) -> list[str]:
    """One line for each limit that is passed, or path that cannot be asked."""
    lines = []
    for path in paths:
        try:
            space, files = used_percent(path)
        except OSError as problem:
            lines.append(f"{path}: {problem.strerror}")
            continue
        lines += [f"{path}: {space:.0f}% of the space is used"] if space >= percent else []
        lines += [f"{path}: {files:.0f}% of the inodes are used"] if files is not None and files >= percent else []
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--percent", type=float, default=90)
    told = parser.parse_args()
    found = alarms(told.paths, told.percent)
    print("\n".join(found) or "ok")
    raise SystemExit(bool(found))
