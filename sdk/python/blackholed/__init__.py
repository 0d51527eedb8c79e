"""Client of a blackholed peer on the same host: offers, services, locks with fencing tokens, keys. The standard
library is enough.

    from blackholed import Client

    peer = Client()                                              # http://127.0.0.1:8500
    with peer.services().register("mail", "10.0.0.9", 25):       # renewed while the block runs
        for i in peer.services().discover("db"): ...
        with peer.locks().session(ttl=15) as s, s.lock("jobs", wait=30) as held:
            work(token=held.token)                               # the resource refuses smaller tokens
            held.check()                                         # raises Lost after the lease ended
        found = peer.offers().query(type="compute", near="berlin", limit=1)["results"][0]
        grant = peer.offers().reserve(found["record"]["key"], ttl=3600)    # then: blackholed connect TOKEN
        peer.offers().release(grant)

A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the
lock. What is kept survives every error, and says so: see Client. No proxy is used but the one that is given: it would
get the token. Waits and watches end early by stop, a threading.Event; an iterator of a watch has close() too, which
another thread may call. Everything else of the API: Client.call, with the paths of /openapi.json.
"""

from ._http import Broken, Canceled, Error
from .client import Client
from .kv import Batch, Compacted, KeyEvent, KeyValue
from .locks import Held, Leader, Leadership, Locks, Lost, NotAcquired, Session
from .kv import KV
from .offers import Offers
from .services import Instances, Registered, Services
from .types import Answer, Grant, Grants, Instance, LockState, Offer, OfferEvent, Quote, Receipt, Record, Result, Stock

__all__ = [
    "Answer", "Batch", "Broken", "Canceled", "Client", "Compacted", "Error", "Grant", "Grants", "Held", "Instance",
    "Instances", "KV", "KeyEvent", "KeyValue",
    "Leader", "Leadership", "LockState", "Locks", "Lost", "NotAcquired", "Offer", "OfferEvent", "Offers", "Quote",
    "Receipt", "Record", "Registered", "Result",
    "Services", "Session", "Stock",
]
