// Package config loads and validates the daemon's settings: defaults, then a YAML file,
// then environment variables, then flags, each over the one before. In the values of the file
// ${NAME} stands for an environment variable.
//
// The settings of the discovery plane have the names of the U06 Service Discovery
// Protocol, section 5, and those of authentication the names of SAP-044 Registry, section 8.
// An unknown key is an error, and every error names the key. Only the daemon and the commands
// see a Config; each component gets its own small part.
package config

import (
	"time"
)

// Config are all settings of one peer.
type Config struct {
	Profile   string    `koanf:"profile"`   // dev, lan or public
	Data      string    `koanf:"data"`      // directory of identity and databases
	Listen    []string  `koanf:"listen"`    // multiaddrs; empty: the profile's default
	Bootstrap []string  `koanf:"bootstrap"` // multiaddrs with /p2p/ID
	HTTP      string    `koanf:"http"`      // host:port; "off" serves none; beyond loopback only with TLS and auth
	GRPC      string    `koanf:"grpc"`      // as http
	Unix      string    `koanf:"unix"`      // path of a socket with the HTTP API; "off" serves none
	Hosts     []string  `koanf:"hosts"`     // names and addresses besides loopback's that requests may be for
	Auth      Auth      `koanf:"auth"`
	Log       Log       `koanf:"log"`
	Discovery Discovery `koanf:"discovery"`

	Coordination Coordination `koanf:"coordination"`

	Agent     Agent         `koanf:"agent"`
	DNS       string        `koanf:"dns"`        // IP:port, loopback or private; "off" serves none
	DNSDomain []string      `koanf:"dns_domain"` // zones answered for, without the last dot
	DNSTTL    time.Duration `koanf:"dns_ttl"`    // of an answer, at most; 0 to 24h
}

// Log are the settings of the log on standard error.
type Log struct {
	Level  string `koanf:"level"`  // debug, info, warn or error
	Format string `koanf:"format"` // text or json
}

// Discovery are the settings of the discovery plane.
type Discovery struct {
	RecordTTL       time.Duration `koanf:"record_ttl"`       // 1h to 48h
	RefreshInterval time.Duration `koanf:"refresh_interval"` // below record_ttl / 2
	Cache           Cache         `koanf:"cache"`
	Health          Health        `koanf:"health"`
	Geo             Geo           `koanf:"geo"`
	Limits          Limits        `koanf:"limits"`
	Query           Query         `koanf:"query"`
}

// Cache are the settings of the answer cache.
type Cache struct {
	Size int           `koanf:"size"` // answers, 100 to 1000000
	TTL  time.Duration `koanf:"ttl"`  // of an answer with results, 1s to 1h
}

// Health are the settings of the measurement of providers.
type Health struct {
	CheckInterval time.Duration `koanf:"check_interval"` // between checks of one provider, 1s to 1h
	CheckTimeout  time.Duration `koanf:"check_timeout"`  // of one check, 100ms to 1m
}

// Geo are the settings of places in own records.
type Geo struct {
	Precision        int `koanf:"precision"`         // geohash length in record keys, 4 to 12
	PublishPrecision int `koanf:"publish_precision"` // publish only the centre of the geohash cell of this length, 1 to 12; 0: the exact place
}

// Limits are the bounds that this peer enforces on itself and, as a keeper, on others.
type Limits struct {
	ServicesPerProvider int `koanf:"services_per_provider"` // 1 to 10000
	IndexRecords        int `koanf:"index_records"`         // records this peer keeps, 1000 to 10000000
}

// Coordination are the settings of the coordination plane. Mode, founders, expect, network and
// voters must be the same on all peers of a network: they name who may found its group, and
// peers that disagree about them never form one together.
type Coordination struct {
	Enabled  string        `koanf:"enabled"`  // auto, true or false; auto: in profile dev, and elsewhere if founders or expect are set
	Mode     string        `koanf:"mode"`     // listed: the founders listed may found; home: any peer of the network, up to expect
	Founders []string      `koanf:"founders"` // peer ids; empty with expect 1: this peer alone
	Expect   int           `koanf:"expect"`   // peers that may found, 1 to 9; 0: as many as are listed, or 1
	Network  string        `koanf:"network"`  // name that keeps the groups of two networks apart
	Voters   int           `koanf:"voters"`   // members that vote, 1, 3 or 5; no more than may found
	Clients  string        `koanf:"clients"`  // network: any peer may ask; listed: founders and allow only; auto: network in profile dev
	Allow    []string      `koanf:"allow"`    // peer ids of clients, besides the founders
	Replace  time.Duration `koanf:"replace"`  // silence after which a voter is replaced, 5s to 72h
	Limits   GroupLimits   `koanf:"limits"`   // the same on all peers that may lead
}

// GroupLimits bound what a group keeps. Whoever leads makes them the group's; 0 leaves one as the
// group has it.
type GroupLimits struct {
	Leases         int `koanf:"leases"`           // at once, up to 10000000
	Keys           int `koanf:"keys"`             // at once, locks' included, up to 10000000
	Bytes          int `koanf:"bytes"`            // of keys and values, up to 2^40
	Queue          int `koanf:"queue"`            // claims on one lock, up to 1000000
	LeasesPerOwner int `koanf:"leases_per_owner"` // of one peer or client, up to 10000000
	ClaimsPerOwner int `koanf:"claims_per_owner"` // the same: claims on locks, holding or waiting, up to 10000000
	BytesPerOwner  int `koanf:"bytes_per_owner"`  // the same: of what its leases keep, up to 2^40
}

// Query are the defaults of queries.
type Query struct {
	MaxResults      int     `koanf:"max_results"`       // of a query without a limit, 1 to 1000
	DefaultRadiusKM float64 `koanf:"default_radius_km"` // of a place without a radius; 0: without bound
}

// Default gives the settings of a peer that nobody configured.
func Default() Config {
	return Config{
		Profile: "dev",
		Data:    "blackhole-data",
		HTTP:    "127.0.0.1:8500",
		GRPC:    "127.0.0.1:8502",
		Unix:    Off,
		Auth:    Auth{Enabled: auto, Method: "token", Anonymous: auto},
		Log:     Log{Level: "info", Format: "text"},
		Discovery: Discovery{
			RecordTTL:       24 * time.Hour,
			RefreshInterval: 6 * time.Hour,
			Cache:           Cache{Size: 1000, TTL: 5 * time.Minute},
			Health:          Health{CheckInterval: time.Minute, CheckTimeout: 10 * time.Second},
			Geo:             Geo{Precision: 6},
			Limits:          Limits{ServicesPerProvider: 100, IndexRecords: 1 << 20},
			Query:           Query{MaxResults: 100},
		},
		Coordination: Coordination{
			Enabled: "auto", Mode: "listed", Network: "blackhole", Voters: 3, Clients: "auto", Replace: 10 * time.Minute,
		},
		Agent: Agent{
			Enabled: true, Limits: AgentLimits{Instances: 10_000}, RegistrationsPerMinute: 100,
			Checks: Checks{Workers: 64, AllowLoopback: auto},
		},
		DNS:       "127.0.0.1:8600",
		DNSDomain: []string{"blackhole", "consul"},
		DNSTTL:    30 * time.Second,
	}
}
