"""Run context at rest: encrypted when `RUNWARD_SECRET_KEY` is set (R17c)."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken

from runward.core.errors import RunwardError

_PLAIN, _SEALED = "p:", "f:"


class Unsealable(RunwardError):
    """Stored context cannot be read with the secret key this process has."""

    default_code = "internal"


class Seal:
    """Seals and opens texts. Without a key it stores them as they are; what was sealed with a key needs that key."""

    def __init__(self, secret_key: str | None) -> None:
        digest = None if secret_key is None else hashlib.sha256(b"runward context\0" + secret_key.encode()).digest()
        self._fernet = None if digest is None else Fernet(base64.urlsafe_b64encode(digest))

    def seal(self, text: str) -> str:
        if self._fernet is None:
            return _PLAIN + text
        return _SEALED + self._fernet.encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str:
        """The text again. Raises Unsealable when it was sealed with a key this process does not have."""
        if sealed.startswith(_PLAIN):
            return sealed[len(_PLAIN) :]
        if self._fernet is None:
            raise Unsealable("The run's context is encrypted and RUNWARD_SECRET_KEY is not set.")
        try:
            return self._fernet.decrypt(sealed[len(_SEALED) :]).decode()
        except InvalidToken:
            raise Unsealable("The run's context was encrypted with another RUNWARD_SECRET_KEY.") from None
