"""What the peer answers. A test compares these types with the OpenAPI document of the peer."""

from __future__ import annotations

from typing import Any, Dict, List, TypedDict


class _Instance(TypedDict):
    id: str
    health: str  # UP, DOWN, UNHEALTHY, STARTING, OUT_OF_SERVICE or UNKNOWN
    metadata: Dict[str, Any]  # texts; weight is a number


class Instance(_Instance, total=False):
    host: str
    port: int
    interfaces: Dict[str, str]
    tags: List[str]
    dependencies: List[str]
    environment: str
    region: str
    owner: str
    description: str


class _Stock(TypedDict):
    unit: str
    total: int


class OfferStock(_Stock, total=False):
    max_ttl: int
    max_per_consumer: int


class _Metadata(TypedDict):
    type: str


class Metadata(_Metadata, total=False):
    subtype: str
    name: str
    description: str
    version: str
    endpoints: List[str]
    protocols: List[str]
    attributes: Dict[str, str]
    domain: str
    access: str
    stock: OfferStock


class Location(TypedDict, total=False):
    latitude: float
    longitude: float
    country: str
    region: str
    city: str
    isp: str
    precision: int


class Pricing(TypedDict, total=False):
    currency: str
    base_price: float
    price_unit: str
    tier_pricing: Dict[str, float]
    minimum_commitment: float


class ClaimedHealth(TypedDict, total=False):
    status: str
    uptime_percent: float
    response_time_ms: int
    error_rate: int
    last_check: str


class _Offer(TypedDict):
    metadata: Metadata


class Offer(_Offer, total=False):
    """A service for sale."""

    id: str
    capabilities: Dict[str, Dict[str, Any]]  # by type: storage, compute, cdn, bandwidth
    location: Location
    pricing: Pricing
    health: ClaimedHealth


class _Record(Offer):
    provider_id: str
    sequence: int


class Record(_Record, total=False):
    """A signed and announced offer."""

    created_at: str
    updated_at: str
    expires_at: str
    withdrawn: bool
    critical: List[str]
    paused: Dict[str, Any]
    signature: str
    key: str
    content_id: str


class _Receipt(TypedDict):
    id: str
    key: str
    sequence: int
    expires_at: str
    stored: Dict[str, Any]


class Receipt(_Receipt, total=False):
    warnings: List[str]


class Outcome(TypedDict, total=False):
    """A receipt of a batch, or an error."""

    id: str
    key: str
    sequence: int
    expires_at: str
    stored: Dict[str, Any]
    warnings: List[str]
    error: Dict[str, Any]


class _Result(TypedDict):
    record: Record
    score: float


class Result(_Result, total=False):
    distance_km: float
    peer: Dict[str, Any]
    endpoint: Dict[str, Any]
    domain: Dict[str, Any]
    doubts: List[str]
    explain: List[str]


class _Answer(TypedDict):
    results: List[Result]
    total: int
    source: str
    complete: bool
    age_ms: float
    took_ms: float


class Answer(_Answer, total=False):
    total_at_least: bool
    next: str
    incomplete_reason: str
    notes: List[str]
    beyond: Dict[str, Any]
    excluded: List[Dict[str, Any]]
    excluded_total: int
    cells: Dict[str, Any]
    price_groups: List[Dict[str, Any]]


class OfferEvent(TypedDict, total=False):
    """A change of the matches of a query. kind: added, updated, withdrawn, expired, removed, reset or progress."""

    kind: str
    cursor: str
    record: Record
    complete: bool
    reason: str
    beyond: Dict[str, Any]


class _Grant(TypedDict):
    token: int  # rises over all grants of the provider
    key: str
    provider_id: str
    consumer_id: str
    units: int
    sequence: int
    ttl_ms: int
    issued_ms: int
    state: str  # held, active, expired, released or revoked
    request_id: str
    currency: str
    price_unit: str
    reason: str  # of a revocation
    sent_bytes: int  # by the holder
    received_bytes: int
    handover: str


class Grant(_Grant, total=False):
    """Units of what another peer sells."""

    left_ms: int
    price: float
    signed: str  # the grant as its provider signed it, in base64, for others who want a proof


class Stock(TypedDict):
    """What is free of an own offer."""

    id: str
    unit: str
    free: int
    total: int
    serve: str


class Grants(TypedDict):
    held: List[Grant]
    given: List[Grant]
    stocks: List[Stock]


class _Quote(TypedDict):
    key: str
    sequence: int
    free: int
    total: int
    most: int
    currency: str
    price_unit: str


class Quote(_Quote, total=False):
    """What a provider says of its offer now. It promises nothing: a grant does."""

    price: float
    refusal: Dict[str, Any]


class LockClaim(TypedDict):
    key: str
    holder_id: str
    lease_id: str
    fencing_token: str
    mod_revision: str
    version: str
    metadata: str
    mode: str
    permits: int
    count: int
    age_ms: str
    application: str


class LockState(TypedDict):
    name: str
    holding: List[LockClaim]
    waiting: List[LockClaim]
    left_out: int
