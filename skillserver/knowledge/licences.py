"""Which licence a folder is under, as its own licence file says: an SPDX identifier, found by the words of the text.

Knows the dozen licences that handbooks and code come with; a text it does not know is named by its file. Says what
was found, not what follows from it.

>>> of(Path("~/handbooks/ml-engineering"))
'CC-BY-SA-4.0'
"""

from __future__ import annotations

import re
from pathlib import Path

NAMES = re.compile(r"^(licen[cs]es?|copying|unlicense)\b.*", re.I)
DECLARED = re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]+?)\s*(?:-->|\*/|$)", re.M)
READ_AT_MOST = 40_000
KNOWN = [  # (identifier, words of its text); the first that fits wins
    ("CC-BY-NC-SA-4.0", r"Attribution-NonCommercial-ShareAlike 4\.0 International"),
    ("CC-BY-NC-ND-4.0", r"Attribution-NonCommercial-NoDerivatives 4\.0 International"),
    ("CC-BY-NC-4.0", r"Attribution-NonCommercial 4\.0 International"),
    ("CC-BY-SA-4.0", r"Attribution-ShareAlike 4\.0 International|CC[- ]BY[- ]SA[- ]4\.0"),
    ("CC-BY-4.0", r"Attribution 4\.0 International|CC[- ]BY[- ]4\.0"),
    ("CC0-1.0", r"CC0 1\.0 Universal"),
    ("Apache-2.0", r"Apache License,?\s+Version 2\.0"),
    ("AGPL-3.0", r"GNU AFFERO GENERAL PUBLIC LICENSE\s+Version 3"),
    ("LGPL-3.0", r"GNU LESSER GENERAL PUBLIC LICENSE\s+Version 3"),
    ("GPL-3.0", r"GNU GENERAL PUBLIC LICENSE\s+Version 3"),
    ("GPL-2.0", r"GNU GENERAL PUBLIC LICENSE\s+Version 2"),
    ("MPL-2.0", r"Mozilla Public License,?\s+Version 2\.0"),
    ("BSD-3-Clause", r"Redistribution and use in source and binary forms.*Neither the name"),
    ("BSD-2-Clause", r"Redistribution and use in source and binary forms"),
    ("MIT", r"Permission is hereby granted, free of charge, to any person obtaining a copy.*The above copyright notice"),
    ("Unlicense", r"This is free and unencumbered software released into the public domain"),
]
PATTERNS = [(name, re.compile(pattern.replace(" ", r"\s+"), re.I | re.S)) for name, pattern in KNOWN]


def of(root: Path) -> str:
    """Identifiers of the licence files in `root`, else in the nearest folder above it within its checkout; "" without one."""
    for place in (root, *root.parents):
        files = sorted(path for path in _listed(place) if NAMES.match(path.name) and path.is_file())
        if files:
            return ", ".join(dict.fromkeys(_named(path) for path in files))
        if (place / ".git").exists() or not any((above / ".git").exists() for above in place.parents):
            return ""
    return ""


def _listed(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _named(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:READ_AT_MOST]
    except OSError:
        return f"see {path.name}"
    if declared := DECLARED.search(text):
        return declared[1]
    return next((name for name, pattern in PATTERNS if pattern.search(text)), f"see {path.name}")
