"""Adapters and inlays on the Hugging Face hub: downloading and uploading folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intarsia.errors import ExchangeError, check_extra

PATTERNS = ("*.json", "*.safetensors", "*.bin", "README.md")  # of the files that are downloaded


def download(repo: str, revision: str | None = None) -> tuple[Path, str]:
    """Return the folder of a repository's files in the hub's cache, and the commit that was read."""
    check_name(repo)
    check_extra("hub", "huggingface_hub")
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=list(PATTERNS)))
    except Exception as error:
        raise _explained(error, repo, "read") from error
    return folder, folder.name


def upload(folder: Path, repo: str, *, private: bool = True, message: str) -> str:
    """Upload a folder's files as one commit, create the repository if needed, and return its address."""
    check_name(repo)
    check_extra("hub", "huggingface_hub")
    import huggingface_hub

    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repo, private=private, exist_ok=True)
        done: Any = hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except Exception as error:
        raise _explained(error, repo, "written") from error
    return str(getattr(done, "commit_url", "") or f"{hub.endpoint}/{repo}")


def check_name(repo: str) -> None:
    """Raise unless this has the form of a repository's name."""
    parts = repo.split("/")
    if len(parts) != 2 or not all(part and part[0] not in ".-" and " " not in part for part in parts):
        raise ExchangeError(f"{repo!r} is not the name of a repository on the hub; expected owner/name.")


def _explained(error: Exception, repo: str, doing: str) -> ExchangeError:
    """Return an error that says what to do: the hub's library raises many types."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = f"the repository {repo!r} cannot be {doing}"
    if (
        kinds & {"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"}
        and "LocalEntryNotFoundError" not in kinds
    ):
        return ExchangeError(
            f"{text}: the hub has no such repository or revision, or this user may not see it. Check the name, and log "
            f"in with `hf auth login` if it is private. ({first})"
        )
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "TimeoutError", "ConnectError",
                "NetworkError", "TransportError", "OSError"}:  # fmt: skip
        return ExchangeError(
            f"{text}: the hub cannot be reached (HF_HUB_OFFLINE set, or no connection). Download the folder on a "
            f"machine with a connection, and give its path instead. ({first})"
        )
    if "HfHubHTTPError" in kinds:
        return ExchangeError(f"{text}: the hub refused it. Log in with `hf auth login`, and check the name. ({first})")
    return ExchangeError(f"{text}: {first}")
