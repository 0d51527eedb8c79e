"""Services for sale of all peers, and what is granted of them."""

from __future__ import annotations

import json
import secrets
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, cast

from ._http import BUSY, JSON, Broken, Error, Pauses, Stop, Stream, Whole, milliseconds, quote
from .types import Answer, Grant, Grants, Offer, OfferEvent, Outcome, Quote, Receipt, Record

if TYPE_CHECKING:
    from .client import Client

NUMBERS = ("token", "sequence", "ttl_ms", "issued_ms", "left_ms", "sent_bytes", "received_bytes")


class Offers:
    """A query has the fields of Query in /openapi.json; near is a city, (latitude, longitude), or a dictionary."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def register(self, offer: Offer) -> Receipt:
        """Offers a service in the whole network, until withdraw."""
        return self._client.call("POST", "/v1/discovery/records", cast(JSON, offer))

    def register_batch(self, offers: Sequence[Offer]) -> List[Outcome]:
        """The outcome of each, in order."""
        return self._client.call("POST", "/v1/discovery/records:batch", {"records": list(offers)})["results"]

    def update(self, offer: Offer) -> Receipt:
        """Replaces the content of an offer of the peer."""
        return self._client.call("PUT", "/v1/discovery/record", cast(JSON, offer), repeat=True, id=offer.get("id"))

    def withdraw(self, id: str) -> Receipt:
        return self._client.call("DELETE", "/v1/discovery/record", id=id)

    def pause(self, id: str, seconds: Optional[float] = None) -> Receipt:
        """Leaves an offer out of all answers, for a time or until resume."""
        return self._client.call(
            "POST", f"/v1/discovery/records/{quote(id)}/pause", {} if seconds is None else {"for_seconds": seconds},
        )

    def resume(self, id: str) -> Receipt:
        return self._client.call("POST", f"/v1/discovery/records/{quote(id)}/resume")

    def get(self, id: str) -> Record:
        """An offer of the peer."""
        return self._client.call("GET", "/v1/discovery/record", id=id)

    def list(self) -> List[Record]:
        """The offers of the peer."""
        return self._client.call("GET", "/v1/discovery/records")["records"]

    def resolve(self, key: str) -> Record:
        """The offer with a key, from the network."""
        return self._client.call("GET", "/v1/discovery/resolve", key=key)

    def query(self, near: Any = None, radius_km: Optional[float] = None, **query: Any) -> Answer:
        """Finds offers: query(type="compute", near="berlin", radius_km=100, max_price=2, require_gpu=True, ...)."""
        return self._client.call("POST", "/v1/discovery/query", asked(near, radius_km, query), repeat=True)

    def watch(
        self, near: Any = None, radius_km: Optional[float] = None, after: str = "",
        stop: Optional[threading.Event] = None, **query: Any,
    ) -> Stream[OfferEvent]:
        """The matches of a query, and then each change, across lost connections. after is the cursor of the last event
        seen; where is a list of texts here."""
        place = asked(near, radius_km, {}).get("near", {})
        ask = {**query, **{f"near.{name}": value for name, value in place.items() if name != "city"}}
        if "city" in place:
            ask = {
                **{k: v for k, v in ask.items() if k != "near.radius_km"}, "near": place["city"],
                "radius_km": radius_km,
            }
        return Stream(lambda ends: self._watch(ask, after, ends), stop)

    def _watch(self, ask: Mapping[str, Any], last: str, stop: Stop) -> Iterator[OfferEvent]:
        pauses = Pauses()
        while True:
            try:
                for kind, at, data in self._client.events("/v1/discovery/watch", stop, last, **ask):
                    last, pauses = at or last, Pauses()
                    yield cast(OfferEvent, {"kind": kind, "cursor": at, **json.loads(data)})
            except (Error, OSError, ValueError) as e:
                if isinstance(e, Error) and e.status not in BUSY:
                    raise
            pauses.rest(stop)

    def quote(self, *keys: str) -> List[Quote]:
        """Asks providers what is free of their offers, and at which price, for two seconds at most. refusal says why
        there is no quote."""
        quotes = self._client.call("POST", "/v1/trade/quotes", {"keys": list(keys)}, repeat=True)["quotes"]
        return [cast(Quote, {**q, "sequence": int(q["sequence"])}) for q in quotes]

    def reserve(
        self, key: str, units: int = 1, ttl: Optional[float] = None, max_price: Optional[float] = None,
        sequence: Optional[int] = None,
        hold: bool = False, request_id: Optional[str] = None, proof: Optional[str] = None,
    ) -> Grant:
        """Takes units of the offer with a key, for ttl seconds (None: as long as it allows), or raises Error: its
        message has what is free, your share, the price. hold: for a minute, until extend or a connection confirms it.
        One request_id has one effect."""
        body = {
            "key": key, "units": units, "max_price": max_price, "sequence": sequence, "hold": hold,
            "ttl_ms": milliseconds(ttl), "proof": proof,
        }
        body = {k: v for k, v in body.items() if v is not None}
        return granted(self._trade("POST", "", {**body, "request_id": request_id or secrets.token_hex(16)}))

    def extend(self, grant: Grant, ttl: Optional[float] = None) -> Grant:
        """Gives a grant its time anew, or ttl seconds from now on. Raises Error with status 410 after its end."""
        body: JSON = {
            "provider_id": grant["provider_id"], "ttl_ms": milliseconds(ttl) or 0, "request_id": secrets.token_hex(16),
        }
        return granted(self._trade("PUT", f"/{grant['token']}/extend", body))

    def release(self, grant: Grant) -> Grant:
        """Gives the units of a grant back."""
        return granted(self._trade("DELETE", f"/{grant['token']}", provider_id=grant["provider_id"]))

    def revoke(self, token: int, reason: str = "") -> Grant:
        """Takes a grant that this peer gave from its holder. Its connections end at once."""
        return granted(self._client.call("POST", f"/v1/trade/given/{token}/revoke", {"reason": reason}))

    def grants(self) -> Grants:
        """held and given grants, and the stocks of own offers."""
        said = self._client.call("GET", "/v1/trade/grants")
        return {
            "held": [granted({"grant": g}) for g in said["held"]],
            "given": [granted({"grant": g}) for g in said["given"]], "stocks": said["stocks"],
        }

    def serve(self, id: str, address: str) -> None:
        """Names the local TCP address that holders of grants of an own offer reach through the peer; empty: none any
        more."""
        self._client.call("PUT", f"/v1/trade/served/{quote(id)}", {"address": address}, repeat=True)

    def _trade(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None, **query: Any) -> JSON:
        return self._client.call(
            method, "/v1/trade/grants" + path, body, max(self._client.timeout, 30.0), "cut", **query,
        )  # the peer asks for 20 s


def asked(near: Any, radius_km: Optional[float], query: Mapping[str, Any]) -> Dict[str, Any]:
    """A query in JSON."""
    if near is None:
        return dict(query)
    place: Dict[str, Any]
    if isinstance(near, str):
        place = {"city": near}
    elif isinstance(near, Mapping):
        place = dict(cast(Mapping[str, Any], near))
    else:
        place = {"latitude": near[0], "longitude": near[1]}
    return {**query, "near": place if radius_km is None else {**place, "radius_km": radius_km}}


def granted(answer: Mapping[str, Any]) -> Grant:
    """A grant with numbers in place of their digits."""
    grant = Whole(answer["grant"])
    try:
        grant.update(
            {n: int(grant[n]) for n in NUMBERS if n in grant}, state=grant["state"].replace("STATE_", "", 1).lower(),
        )
    except (TypeError, ValueError, AttributeError) as e:
        raise Broken(f"the answer of the peer is broken: {e!r}") from e
    return cast(Grant, {**grant, "signed": answer["signed"]} if answer.get("signed") else dict(grant))
