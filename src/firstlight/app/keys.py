"""Keys that firstlight makes: a file that only its owner can read, and nowhere else."""

import os
import secrets
from pathlib import Path

from firstlight.app.places import config_folder
from firstlight.core.errors import FirstlightError
from firstlight.core.ids import slug


def key_path(name: str) -> Path:
    return config_folder() / "keys" / f"{slug(name)}.key"


def generated_key(name: str) -> str:
    """The path of this name's key; made once (256 bits), 0600 from its first byte on, kept from then on. Raises FirstlightError."""
    path = key_path(name)
    try:
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return str(path)
    except OSError as e:
        raise FirstlightError("key-not-written", "the key file cannot be written", evidence=(f"{path}: {e.strerror}",)) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    return str(path)
