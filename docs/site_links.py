"""A hook of mkdocs: links that lead out of docs/, as to a source file or to a figure in results/, in the site.

On GitHub the link opens the file. The site has only what lies in docs/, so figures and results are copied into it, and
a link to anything else becomes its text. A link to a file that does not exist is a warning, which fails a strict build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#\s]+)\)")
COPIED = {".svg", ".png", ".json"}
log = logging.getLogger("mkdocs.plugins.site_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    root = Path(config.docs_dir).parent

    def inside(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = (Path(config.docs_dir) / page.file.src_uri).parent / target
        if not path.exists():
            log.warning("'%s' links to '%s', which does not exist.", page.file.src_uri, target)
            return link[0]
        if path.suffix not in COPIED:
            return text
        name = path.resolve().relative_to(root.resolve()).as_posix()
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(path.resolve())))
        return f"{image}[{text}]({name})"

    return LINK.sub(inside, markdown)
