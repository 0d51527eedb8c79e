"""What a thread renews."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Optional, TypeVar

from ._http import BUSY, Error

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("blackholed")
K = TypeVar("K", bound="Kept")


class Kept:
    """Something that a thread renews until close(). Subclasses have renew(), which returns the seconds until the next
    time. cause is the error of the last renewal, None after a good one."""

    interval = 10.0

    def __init__(self, client: Optional[Client] = None) -> None:
        self._told = client
        self.ended = threading.Event()
        self.cause: Optional[BaseException] = None
        self.keeper = threading.Thread(target=self._keep, daemon=True)

    def renew(self) -> float:
        raise NotImplementedError

    def close(self) -> None:
        self.stop()

    def _keep(self) -> None:
        pause = self.interval
        while not self.ended.wait(pause):
            try:
                pause = self.renew()
                self.tell(None)
            except Exception as e:  # whatever it is, the lease must not end for it
                pause = self.interval if isinstance(e, Error) and e.status not in BUSY else min(1.0, self.interval)
                self.tell(e)

    def tell(self, error: Optional[BaseException]) -> None:
        """Tells when the renewals begin to fail, and when they succeed again."""
        news, self.cause = (error is None) != (self.cause is None), error
        if not news:
            return
        try:
            if self._told is not None and self._told.on_trouble is not None:
                self._told.on_trouble(self, error)
            elif error is None:
                log.warning("%s is renewed again", self)
            else:
                log.warning("%s is not renewed: %r", self, error)
        except Exception:
            log.exception("on_trouble failed")

    def stop(self) -> bool:
        """Ends the renewals, and waits for the one under way: it could undo what close() does. Returns False after the
        end."""
        first = not self.ended.is_set()
        self.ended.set()
        self.keeper.join()
        return first

    def __enter__(self: K) -> K:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
