"""A hook of mkdocs: links between the site and the rest of the repository.

On GitHub a link from a page to a source file, or to a figure in results/, opens the file. The site has only what lies
in docs/, so figures and results are copied into it, and a link to anything else becomes its text. README.md and
CHANGELOG.md are no pages of the site; their links are checked too. A broken link is a warning, which fails a strict
build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#\s]+)\)")
ANY_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COPIED = {".svg", ".png", ".json"}
OUTSIDE = ("README.md", "CHANGELOG.md")
log = logging.getLogger("mkdocs.plugins.site_links")


def on_pre_build(*, config: Any) -> None:
    """Check the links of the pages beside the site."""
    for name in OUTSIDE:
        page = Path(config.docs_dir).parent / name
        for target, anchor in ANY_LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in _anchors(path)):
                log.warning("'%s' links to '%s', which does not exist.", name, f"{target}#{anchor}".rstrip("#"))


def _anchors(page: Path) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Make the links of a page that lead out of docs/ work in the site."""
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
