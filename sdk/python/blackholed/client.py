"""A peer, with its four doors."""

from __future__ import annotations

from typing import Callable, Optional

from ._http import Peer
from ._kept import Kept
from .kv import KV
from .locks import Locks
from .offers import Offers
from .services import Services


class Client(Peer):
    """One peer. It is safe for concurrent use. Calls that only read, or that the peer applies once, repeat themselves
    for `patience` seconds while it is unreachable or its answers are broken.

    on_trouble(kept, error) is called when an instance or a session cannot be renewed, and with None when it is renewed
    again; it may run in another thread. Without one, the logger "blackholed" warns. proxy is an URL; the environment's
    proxies are not used."""

    def __init__(
        self, address: str = "http://127.0.0.1:8500", token: Optional[str] = None, timeout: float = 10.0,
        patience: float = 30.0,
        ca: Optional[str] = None, proxy: Optional[str] = None,
        on_trouble: Optional[Callable[[Kept, Optional[BaseException]], None]] = None,
    ) -> None:
        super().__init__(address, token, timeout, patience, ca, proxy)
        self.on_trouble = on_trouble
        self._services = Services(self)

    def offers(self) -> Offers:
        """Services for sale of all peers, and what is granted of them."""
        return Offers(self)

    def services(self) -> Services:
        """Instances of applications."""
        return self._services

    def locks(self) -> Locks:
        """Sessions, locks and elections."""
        return Locks(self)

    def kv(self) -> KV:
        """Keys of the group."""
        return KV(self)
