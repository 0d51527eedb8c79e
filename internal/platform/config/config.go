// Package config loads and validates the daemon's settings. Each layer overrides the one
// before: defaults, a YAML file, environment variables, flags. ${NAME} in a value of the
// file means an environment variable.
//
// The settings of the discovery plane have the names of the U06 Service Discovery
// Protocol, section 5, and the settings of authentication have the names of SAP-044
// Registry, section 8. An unknown key is an error, and every error names its key. Only the
// daemon and the commands see a Config; each component gets its own small part.
package config

import (
	"time"
)

// Config are all settings of one peer. The tag help explains a setting to users.
type Config struct {
	Profile   string        `yaml:"profile" help:"Kind of network: dev (peers of this machine, by bootstrap), lan (found by multicast) or public (by bootstrap)."`
	Data      string        `yaml:"data" help:"Data directory, with identity and databases."`
	Listen    []string      `yaml:"listen" help:"Multiaddrs to listen on. Empty: the profile's default."`
	Bootstrap []string      `yaml:"bootstrap" help:"Multiaddrs of peers to connect to at the start, with /p2p/ID, or TCP addresses such as /dns4/peers.example/tcp/4801, where each peer is asked for its id."`
	Announce  []string      `yaml:"announce" help:"Multiaddrs of a forwarded port or of 1:1 NAT, besides those that this peer finds."`
	Leaf      string        `yaml:"leaf" help:"Dial out only and keep nothing for others: on (needs bootstrap), or auto (keep records while others can connect)."`
	HTTP      string        `yaml:"http" help:"Address of the HTTP API, or off. Addresses beyond loopback need TLS and auth."`
	GRPC      string        `yaml:"grpc" help:"Address of the gRPC API, or off. Addresses beyond loopback need TLS and auth."`
	Unix      string        `yaml:"unix" help:"Path of a unix socket with the HTTP API for this user and root, or off."`
	Hosts     []string      `yaml:"hosts" help:"Host names and addresses that HTTP requests may name, besides loopback."`
	DNS       string        `yaml:"dns" help:"IP:port of the name server, loopback or private, or off."`
	DNSDomain []string      `yaml:"dns_domain" help:"Zones of the name server, without the last dot."`
	DNSTTL    time.Duration `yaml:"dns_ttl" help:"Longest TTL of a DNS answer: 0 to 24h."`

	Etcd         Etcd         `yaml:"etcd"`
	Consul       Consul       `yaml:"consul"`
	ARD          ARD          `yaml:"ard"`
	Network      Network      `yaml:"network"`
	Connections  Connections  `yaml:"connections"`
	Log          Log          `yaml:"log"`
	Auth         Auth         `yaml:"auth"`
	Discovery    Discovery    `yaml:"discovery"`
	Coordination Coordination `yaml:"coordination"`
	Agent        Agent        `yaml:"agent"`
	Trade        Trade        `yaml:"trade"`
}

// Consul are the settings of the front end for clients of Consul, at the address http. It needs the coordination plane.
type Consul struct {
	Enabled bool   `yaml:"enabled" help:"Answer clients of Consul too, at the address http."`
	Prefix  string `yaml:"prefix" help:"Start of the keys of clients of Consul, ending in /: the same on all peers. No lock may have a name under it."`
}

// ARD are the settings of searches by Agentic Resource Discovery, at the address http.
type ARD struct {
	Referrals []string `yaml:"referrals" help:"Searches of other registries, for clients that want referrals: at most 16 https URLs."`
}

// Etcd are the settings of the front end for clients of etcd. It needs the coordination plane.
type Etcd struct {
	Listen string `yaml:"listen" help:"Address for clients of etcd v3, gRPC and JSON, or off. Addresses beyond loopback need TLS and auth."`
	Prefix string `yaml:"prefix" help:"Start of the keys of clients of etcd, ending in /: the same on all peers. No lock may have a name under it."`
}

// Log are the settings of the log on standard error.
type Log struct {
	Level  string `yaml:"level" reload:"hangup" help:"debug, info, warn or error."`
	Format string `yaml:"format" help:"text or json."`
}

// Trade are the commands of a seller.
type Trade struct {
	OnPay     []string      `yaml:"on_pay" help:"Command that agrees to a grant of an own offer, or asks for a payment: [/usr/lib/pay, --strict]. See docs/howto/trade-hooks.md."`
	OnGrant   []string      `yaml:"on_grant" help:"Command before a grant becomes active, whose output its holder gets."`
	OnEnd     []string      `yaml:"on_end" help:"Command after the end of a grant."`
	TimeLimit time.Duration `yaml:"time_limit" help:"Time of one run of these commands: 100ms to 6s."`
}

// Discovery are the settings of the discovery plane.
type Discovery struct {
	RecordTTL       time.Duration `yaml:"record_ttl" help:"Lifetime of a record without renewal: 1h to 48h."`
	RefreshInterval time.Duration `yaml:"refresh_interval" help:"Time between renewals of own records: at least 1m, less than half of record_ttl."`
	Cache           Cache         `yaml:"cache"`
	Health          Health        `yaml:"health"`
	Geo             Geo           `yaml:"geo"`
	Limits          Limits        `yaml:"limits"`
	Query           Query         `yaml:"query"`
}

// Cache are the settings of the answer cache.
type Cache struct {
	Size int           `yaml:"size" help:"Number of cached answers: 100 to 1000000."`
	TTL  time.Duration `yaml:"ttl" help:"Lifetime of a cached answer: 1s to 1h; of other keepers 15s at most."`
}

// Health are the settings of the measurement of providers.
type Health struct {
	CheckInterval time.Duration `yaml:"check_interval" help:"Time between two checks of a provider's peer by this peer while it shows its offers, unless others checked it: 1s to 1h."`
	CheckTimeout  time.Duration `yaml:"check_timeout" help:"Timeout of a check of a peer: 100ms to 1m."`
	ConfirmAfter  time.Duration `yaml:"confirm_after" help:"Time from the first silence of a provider's peer to the one after which answers leave it out: 1s to 10m."`
}

// Geo are the settings of places in own records.
type Geo struct {
	Precision        int `yaml:"precision" help:"Length of the geohash in record keys: 4 to 12."`
	PublishPrecision int `yaml:"publish_precision" help:"Publish the centre of the geohash cell of this length, 1 to 12. 0: the exact place."`
}

// Limits bound this peer. What keepers accept of one provider is a constant of the network.
type Limits struct {
	ServicesPerProvider int `yaml:"services_per_provider" help:"Services that this peer registers: 1 to 10000. Keepers accept no more of one provider."`
	IndexBytes          int `yaml:"index_bytes" help:"Bytes of the records in this peer's index: from 1048576. 0: a quarter of the memory limit, at most 4 GiB; of a leaf 4 MiB."`
}

// Query are the defaults of queries.
type Query struct {
	MaxResults      int     `yaml:"max_results" help:"Results of a query without a limit: 1 to 1000."`
	DefaultRadiusKM float64 `yaml:"default_radius_km" help:"Radius of a query with a place and without a radius. 0: no bound."`
	Claims          string  `yaml:"claims" help:"How much scores believe what providers claim: check (measurements count) or trust (the formula of the specification)."`
}

// Coordination are the settings of the coordination plane. Without founders, the
// first peer of a network founds its group, and the others join it.
type Coordination struct {
	Enabled  string        `yaml:"enabled" help:"Take part in coordination: true, false, or auto: in profiles dev and lan, with founders, or with the key of the network."`
	Members  string        `yaml:"members" help:"Peers that may be members of the group: auto (peers that prove the key of the network; in profile dev without authentication all), listed (founders and allow) or none (this peer is a client only). Empty: auto in profiles dev and lan, otherwise listed."`
	Founders []string      `yaml:"founders" help:"Peer ids of the first voters of the group, 1 to 9, the same on all peers. A majority of them elects. Later changes act on the group's members. Empty: the first peer of the network founds alone, and peers that join found none."`
	Expect   int           `yaml:"expect" help:"Peers with the key of the network that begin it together, 0 to 9, the same on all peers: the lowest of so many that see each other founds the group, and the others join. Name more than half of the peers that you start. 0: the first peer founds alone."`
	Voters   int           `yaml:"voters" help:"Voters of the group: 1, 3 or 5."`
	Clients  string        `yaml:"clients" help:"Peers that may use the group besides founders and allow: network (all), key (peers that prove the key of the network), listed (none), or auto: key, but network in profile dev."`
	Allow    []string      `yaml:"allow" help:"Peer ids of clients besides the founders; with members listed they may be members."`
	Replace  time.Duration `yaml:"replace" help:"Silence until the group replaces a voter: 5s to 72h."`
	Limits   GroupLimits   `yaml:"limits"`
}

// GroupLimits bound the state of a group. All possible leaders must have the same limits,
// because the leader applies its own. Zero keeps the limit of the group.
type GroupLimits struct {
	Leases                int `yaml:"leases" help:"Leases of the group. For all limits, 0 keeps the group's limit; initial 100000."`
	Clients               int `yaml:"clients" help:"Identities of clients; initial 100000."`
	Keys                  int `yaml:"keys" help:"Keys of the group, with the keys of locks; initial 1048576."`
	Bytes                 int `yaml:"bytes" help:"Bytes of keys and values; initial 1 GiB."`
	Queue                 int `yaml:"queue" help:"Claims on one lock; initial 4096."`
	LeasesPerOwner        int `yaml:"leases_per_owner" help:"Leases of one peer or client; initial 10000."`
	ClaimsPerOwner        int `yaml:"claims_per_owner" help:"Claims on locks, held or waiting, of one peer or client; initial 20000."`
	BytesPerOwner         int `yaml:"bytes_per_owner" help:"Bytes of keys and values under the leases of one peer or client; initial 64 MiB."`
	UnleasedKeysPerOwner  int `yaml:"unleased_keys_per_owner" help:"Keys without a lease that one peer or client put last; initial 262144."`
	ClientsPerOwner       int `yaml:"clients_per_owner" help:"Identities of clients of one peer or client; initial 20000."`
	UnleasedBytesPerOwner int `yaml:"unleased_bytes_per_owner" help:"Bytes of these keys and their values; initial 256 MiB."`
	ReservedPercent       int `yaml:"reserved_percent" help:"Percent of leases, identities, keys and bytes for the peers themselves, half of it for locks too, at most 90; initial 25."`
	HistoryEvents         int `yaml:"history_events" help:"Events of the past for reads and watches; initial 65536."`
	HistoryBytes          int `yaml:"history_bytes" help:"Bytes of these events in the memory of each member; initial 64 MiB."`
}

// Default returns the default settings.
func Default() Config {
	return Config{
		Profile:     "dev",
		Data:        "blackhole-data",
		Leaf:        auto,
		HTTP:        "127.0.0.1:8500",
		GRPC:        "127.0.0.1:8502",
		Unix:        Off,
		Etcd:        Etcd{Listen: Off, Prefix: "etcd/"},
		Consul:      Consul{Prefix: "consul/"},
		Auth:        Auth{Enabled: auto, Method: "token", Anonymous: auto},
		Log:         Log{Level: "info", Format: "text"},
		Connections: Connections{Reach: auto, Relay: Relay{Enabled: true}},
		Discovery: Discovery{
			RecordTTL:       24 * time.Hour,
			RefreshInterval: 6 * time.Hour,
			Cache:           Cache{Size: 1000, TTL: 5 * time.Minute},
			Health:          Health{CheckInterval: time.Minute, CheckTimeout: 10 * time.Second, ConfirmAfter: 2 * time.Minute},
			Geo:             Geo{Precision: 6},
			Limits:          Limits{ServicesPerProvider: 100},
			Query:           Query{MaxResults: 100, Claims: "check"},
		},
		Coordination: Coordination{
			Enabled: "auto", Voters: 3, Clients: "auto", Replace: 10 * time.Minute,
		},
		Agent: Agent{
			Enabled: true, Limits: AgentLimits{Instances: 16_000}, RegistrationsPerMinute: 100,
			Checks: Checks{Workers: 64, AllowLoopback: auto},
		},
		Trade:     Trade{TimeLimit: 5 * time.Second},
		DNS:       "127.0.0.1:8600",
		DNSDomain: []string{"blackhole", "consul"},
		DNSTTL:    30 * time.Second,
	}
}
