package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// specified is the example of the U06 Service Discovery Protocol, section 5.
const specified = `
discovery:
  record_ttl: 12h
  refresh_interval: 3h
  cache: {size: 500, ttl: 2m}
  health: {check_interval: 30s, check_timeout: 5s}
  geo: {precision: 5}
  limits: {services_per_provider: 50}
  query: {max_results: 20, default_radius_km: 50}
`

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	c, origin, err := config.Load(config.Source{})
	require.NoError(t, err)
	require.Equal(t, config.Default(), c)
	require.Equal(t, "default", origin["discovery.cache.size"])
}

func TestSpecifiedFile(t *testing.T) {
	c, _, err := config.Load(config.Source{File: write(t, specified)})
	require.NoError(t, err)
	require.Equal(t, config.Discovery{
		RecordTTL: 12 * time.Hour, RefreshInterval: 3 * time.Hour,
		Cache:  config.Cache{Size: 500, TTL: 2 * time.Minute},
		Health: config.Health{CheckInterval: 30 * time.Second, CheckTimeout: 5 * time.Second, ConfirmAfter: 2 * time.Minute},
		Geo:    config.Geo{Precision: 5},
		Limits: config.Limits{ServicesPerProvider: 50},
		Query:  config.Query{MaxResults: 20, DefaultRadiusKM: 50, Claims: "check"},
	}, c.Discovery)
}

func TestSpecifiedEnvironment(t *testing.T) {
	c, origin, err := config.Load(config.Source{File: write(t, specified), Environ: []string{
		"BLACKHOLE_DISCOVERY_RECORD_TTL=20h", "BLACKHOLE_DISCOVERY_REFRESH_INTERVAL=4h",
		"BLACKHOLE_DISCOVERY_CACHE_SIZE=700", "BLACKHOLE_DISCOVERY_CACHE_TTL=1m",
		"BLACKHOLE_DISCOVERY_GEO_PRECISION=7", "BLACKHOLE_DISCOVERY_MAX_SERVICES=9",
		"BLACKHOLE_BOOTSTRAP=/ip4/127.0.0.1/tcp/1,/ip4/127.0.0.1/tcp/2", "UNRELATED=1",
	}})
	require.NoError(t, err)
	require.Equal(t, 20*time.Hour, c.Discovery.RecordTTL)
	require.Equal(t, 4*time.Hour, c.Discovery.RefreshInterval)
	require.Equal(t, config.Cache{Size: 700, TTL: time.Minute}, c.Discovery.Cache)
	require.Equal(t, 7, c.Discovery.Geo.Precision)
	require.Equal(t, 9, c.Discovery.Limits.ServicesPerProvider)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"}, c.Bootstrap)
	require.Contains(t, origin["discovery.geo.precision"], "BLACKHOLE_DISCOVERY_GEO_PRECISION")
	require.Contains(t, origin["discovery.query.max_results"], "file ")
}

// TestFormsOfValues: an alias, a merge, text in place of a number, a list without brackets, and no value.
func TestFormsOfValues(t *testing.T) {
	c, origin, err := config.Load(config.Source{File: write(t, `
http: &address 127.0.0.1:1
grpc: *address
discovery:
  cache: &cache {size: "0x200", ttl: 2m}
  query:
  limits: {index_bytes: 1_048_576}
agent: {strict: "TRUE", limits: }
coordination: {enabled: True}
listen: /ip4/127.0.0.1/tcp/1,/ip4/127.0.0.1/tcp/2
network: {<<: {closed: true}, name: office}
data:
`)})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", c.GRPC)
	require.Equal(t, config.Cache{Size: 512, TTL: 2 * time.Minute}, c.Discovery.Cache)
	require.Equal(t, config.Default().Discovery.Query, c.Discovery.Query)
	require.Equal(t, 1<<20, c.Discovery.Limits.IndexBytes)
	require.True(t, c.Agent.Strict)
	require.Equal(t, "true", c.Coordination.Enabled)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"}, c.Listen)
	require.Equal(t, config.Network{Closed: true, Name: "office"}, c.Network)
	require.Equal(t, config.Default().Data, c.Data)
	require.Contains(t, origin["data"], "file ")
	_, _, err = config.Load(config.Source{File: write(t, "http: off\nhttp: off")})
	require.ErrorContains(t, err, `"http" already defined at line 1`)
	_, _, err = config.Load(config.Source{File: write(t, "agent: {limits: {instances: many}}")})
	require.ErrorContains(t, err, "agent.limits.instances: must be a whole number")
	_, _, err = config.Load(config.Source{Environ: []string{"BLACKHOLE_DNS_TTL=soon"}})
	require.ErrorContains(t, err, "dns_ttl: must be a duration (24h, 5m, 10s) (set by environment variable BLACKHOLE_DNS_TTL)")
}

func TestFlagsWin(t *testing.T) {
	c, origin, err := config.Load(config.Source{
		Environ: []string{"BLACKHOLE_HTTP=127.0.0.1:1"},
		Flags:   map[string]any{"http": "127.0.0.1:2", "listen": []string{"/ip4/127.0.0.1/tcp/0"}},
	})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:2", c.HTTP)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/0"}, c.Listen)
	require.Equal(t, "flag --http", origin["http"])
}

// TestErrorsNameTheKey has a case for every rule.
func TestErrorsNameTheKey(t *testing.T) {
	cases := []struct{ yaml, key string }{
		{"discovery: {record_tll: 1h}", "discovery.record_tll"},
		{"discovery: {record_ttl: soon}", "discovery.record_ttl"},
		{"discovery: {record_ttl: 59m}", "discovery.record_ttl"},
		{"discovery: {record_ttl: 49h}", "discovery.record_ttl"},
		{"discovery: {refresh_interval: 12h}", "discovery.refresh_interval"},
		{"discovery: {refresh_interval: 59s}", "discovery.refresh_interval"},
		{"discovery: {cache: {size: 99}}", "discovery.cache.size"},
		{"discovery: {cache: {size: many}}", "discovery.cache.size"},
		{"discovery: {cache: {ttl: 2h}}", "discovery.cache.ttl"},
		{"discovery: {health: {check_interval: 0s}}", "discovery.health.check_interval"},
		{"discovery: {health: {check_timeout: 2m}}", "discovery.health.check_timeout"},
		{"discovery: {health: {confirm_after: 11m}}", "discovery.health.confirm_after"},
		{"discovery: {geo: {precision: 3}}", "discovery.geo.precision"},
		{"discovery: {geo: {publish_precision: 13}}", "discovery.geo.publish_precision"},
		{"discovery: {limits: {services_per_provider: 0}}", "discovery.limits.services_per_provider"},
		{"discovery: {limits: {services_per_provider: 10001}}", "discovery.limits.services_per_provider"},
		{"discovery: {limits: {index_records: 1}}", "discovery.limits.index_records"},
		{"discovery: {query: {max_results: 1001}}", "discovery.query.max_results"},
		{"discovery: {query: {default_radius_km: .nan}}", "discovery.query.default_radius_km"},
		{"connections: {most: 23}", "connections.most"},
		{"connections: {per_address: 3}", "connections.per_address"},
		{"connections: {reach: maybe}", "connections.reach"},
		{"connections: {relay: {reservations: -1}}", "connections.relay.reservations"},
		{"connections: {relay: {reservations_per_address: 100001}}", "connections.relay.reservations_per_address"},
		{"connections: {relay: {circuits: -1}}", "connections.relay.circuits"},
		{"connections: {relay: {circuits_per_peer: -1}}", "connections.relay.circuits_per_peer"},
		{"connections: {relay: {circuit_bytes: 1000}}", "connections.relay.circuit_bytes"},
		{"connections: {relay: {circuit_time: 1m}}", "connections.relay.circuit_time"},
		{"profile: moon", "profile"},
		{"data: ''", "data"},
		{"http: 0.0.0.0:8500", "http"},
		{"grpc: nowhere", "grpc"},
		{"log: {level: loud}", "log.level"},
		{"log: {format: xml}", "log.format"},
		{"profile: [", "config"},
	}
	for _, c := range cases {
		t.Run(c.yaml, func(t *testing.T) {
			_, _, err := config.Load(config.Source{File: write(t, c.yaml)})
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, c.key, fault.FieldOf(err), "%v", err)
		})
	}
	_, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_DISCOVERY_CASH_SIZE=1"}})
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "BLACKHOLE_DISCOVERY_CASH_SIZE")
}

// TestInvisibleCharacters: a file of Windows brings what no terminal shows. A level has any letter case.
func TestInvisibleCharacters(t *testing.T) {
	for variable, key := range map[string]string{"BLACKHOLE_LOG_LEVEL=info\r": "log.level", "BLACKHOLE_PROFILE=lan ": "profile"} {
		_, _, err := config.Load(config.Source{Environ: []string{variable}})
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, key, fault.FieldOf(err))
		_, value, _ := strings.Cut(variable, "=")
		require.ErrorContains(t, err, strconv.Quote(value))
	}
	_, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_LOG_LEVEL=INFO"}})
	require.NoError(t, err)
}

// TestForeignVariables: those of services in Kubernetes and of the program itself are no settings. A misspelt setting is still
// named, also one that looks like a variable of a command.
func TestForeignVariables(t *testing.T) {
	for _, c := range []struct {
		environ []string
		unknown string
	}{
		{[]string{"BLACKHOLE_PORT=tcp://10.0.0.1:80"}, ""},
		{[]string{"BLACKHOLE_GRPC_PORT=udp://10.0.0.1:80"}, ""},
		{[]string{"BLACKHOLE_SERVICE_HOST=10.0.0.1"}, ""},
		{[]string{"BLACKHOLE_SERVICE_PORT=80", "BLACKHOLE_SERVICE_PORT_HTTP=80"}, ""},
		{[]string{"BLACKHOLE_GRPC_SERVICE_HOST=10.0.0.1", "BLACKHOLE_GRPC_SERVICE_PORT=80"}, ""},
		{[]string{"BLACKHOLE_PORT_80_TCP=tcp://10.0.0.1:80", "BLACKHOLE_PORT_80_TCP_PROTO=tcp", "BLACKHOLE_PORT_80_TCP_PORT=80", "BLACKHOLE_PORT_80_TCP_ADDR=10.0.0.1"}, ""},
		{[]string{"BLACKHOLE_DNS_PORT_53_UDP_ADDR=10.0.0.1"}, ""},
		{[]string{"BLACKHOLE_CONTEXT=prod", "BLACKHOLE_JOIN=bh1_x"}, ""},
		{environ.Lock("a", "1", "2", "3"), ""},
		{environ.Instance("web", "web-1", "lease-1"), ""},
		{environ.Check("default", "web", "web-1", "10.0.0.1", "80"), ""},
		{[]string{"BLACKHOLE_HOST=10.0.0.1"}, "BLACKHOLE_HOST"},
		{[]string{"BLACKHOLE_PORT=8500"}, "BLACKHOLE_PORT"},
		{[]string{"BLACKHOLE_LOCK_NAME=a"}, "BLACKHOLE_LOCK_NAME"},
		{[]string{"BLACKHOLE_PORT_HTTP=80"}, "BLACKHOLE_PORT_HTTP"},
		{[]string{"BLACKHOLE_CONTEXTS=prod"}, "BLACKHOLE_CONTEXTS"},
		{[]string{"BLACKHOLE_LOG_LEVLE=debug"}, "BLACKHOLE_LOG_LEVLE"},
	} {
		loaded, _, err := config.Load(config.Source{Environ: c.environ})
		if c.unknown == "" {
			require.NoError(t, err, c.environ)
			require.Equal(t, config.Default(), loaded)
			continue
		}
		require.ErrorContains(t, err, "unknown key (set by environment variable "+c.unknown+")", c.environ)
	}
}

// TestFormsOfScalars: each form of a value for each kind of setting, in the file and as a variable, is taken as it is written or
// refused with the key. "" is a refusal.
func TestFormsOfScalars(t *testing.T) {
	forms := []string{"30", "1.5", "0123", "1e3", "true", "[1, 2]", "30s", "0", "-5", "1_000"}
	for key, want := range map[string][]string{
		"dns_ttl":                           {"", "", "", "", "", "", "30s", "0s", "", ""},
		"discovery.cache.size":              {"30", "", "", "", "", "", "", "0", "-5", "1000"},
		"discovery.query.default_radius_km": {"30", "1.5", "123", "1000", "", "", "", "0", "-5", "1000"},
		"agent.strict":                      {"", "", "", "", "true", "", "", "false", "", ""},
		"connections.name":                  {"30", "1.5", "0123", "1e3", "true", "", "30s", "0", "-5", "1_000"},
		"coordination.allow":                {"[30]", "[1.5]", "[0123]", "[1e3]", "[true]", "[1, 2]", "[30s]", "[0]", "[-5]", "[1_000]"},
	} {
		for i, form := range forms {
			nested := form
			for _, part := range slices.Backward(strings.Split(key, ".")) {
				nested = "{" + part + ": " + nested + "}"
			}
			variable := "BLACKHOLE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_")) + "=" + strings.Trim(form, "[]")
			for from, src := range map[string]config.Source{"file": {File: write(t, nested)}, "environment variable": {Environ: []string{variable}}} {
				c, _, err := config.Load(src)
				switch what := key + ": " + form + " of " + from; {
				case err != nil: // also a number beyond the bounds of its setting
					require.Contains(t, err.Error(), key, what)
					require.ErrorContains(t, err, "(set by "+from, what)
					if want[i] != "" {
						require.NotContains(t, err.Error(), "must be a ", what)
					}
				case form == "[1, 2]" && from != "file" && key == "connections.name": // a variable is a text
				default:
					require.Equal(t, want[i], c.Value(key), what)
				}
			}
		}
	}
	_, _, err := config.Load(config.Source{File: write(t, "dns_ttl: 30")})
	require.ErrorContains(t, err, "dns_ttl: needs a unit: 30s?")
}

// TestOneDocument: nothing of a settings file is left out in silence.
func TestOneDocument(t *testing.T) {
	for text, refused := range map[string]bool{
		"dns: off\n---\nhttp: off": true, "dns: off\n---\n[": true, "---\n---\ndns: off": true,
		"": false, "# comment\n": false, "# comment\n---\ndns: off\n": false, "%YAML 1.1\n---\ndns: off\n...\n": false,
	} {
		_, _, err := config.Load(config.Source{File: write(t, text)})
		if refused {
			require.ErrorContains(t, err, "has more than one document", text)
		} else {
			require.NoError(t, err, text)
		}
	}
}

// TestHomeInPaths: ~/ is the home in each path. Another ~ would make a folder of that name.
func TestHomeInPaths(t *testing.T) {
	text := "data: ~/bh\nunix: ~/s\nauth: {server_cert: ~/c, server_key: ~/k, "
	home := []string{"HOME=/home/u"}
	byToken, _, err := config.Load(config.Source{File: write(t, text+"token_file: ~/t, tokens: [{token_file: ~/o, role: admin, name: o}]}"), Environ: home})
	require.NoError(t, err)
	byKey, _, err := config.Load(config.Source{File: write(t, text+"method: jwt, jwt: {algorithms: [ES256], key_file: ~/j}}"), Environ: home})
	require.NoError(t, err)
	byCertificate, _, err := config.Load(config.Source{File: write(t, text+"method: mtls, ca_cert: ~/a}"), Environ: home})
	require.NoError(t, err)
	a := byToken.Auth
	require.Equal(t, []string{"/home/u/bh", "/home/u/s", "/home/u/c", "/home/u/k", "/home/u/t", "/home/u/o", "/home/u/j", "/home/u/a"},
		[]string{byToken.Data, byToken.Unix, a.ServerCert, a.ServerKey, a.TokenFile, a.Tokens[0].TokenFile, byKey.Auth.JWT.KeyFile, byCertificate.Auth.CACert})
	for key, environ := range map[string][]string{
		"data": {"BLACKHOLE_DATA=~/bh"}, "unix": {"BLACKHOLE_UNIX=~user/bh", "HOME=/home/u"},
	} {
		_, _, err := config.Load(config.Source{Environ: environ})
		require.Equal(t, key, fault.FieldOf(err), "%v", err)
	}
}

// TestAnnounceFromEnvironment sets the addresses of a cloud host without a file.
func TestAnnounceFromEnvironment(t *testing.T) {
	c, origin, err := config.Load(config.Source{Environ: []string{
		"BLACKHOLE_ANNOUNCE=/ip4/62.10.1.1/udp/4801/quic-v1,/ip4/62.10.1.1/tcp/4801",
		"BLACKHOLE_CONNECTIONS_REACH=public", "BLACKHOLE_CONNECTIONS_RELAY_ENABLED=false",
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"/ip4/62.10.1.1/udp/4801/quic-v1", "/ip4/62.10.1.1/tcp/4801"}, c.Announce)
	require.Equal(t, "public", c.Connections.Reach)
	require.False(t, c.Connections.Relay.Enabled)
	require.Equal(t, "environment variable BLACKHOLE_ANNOUNCE", origin["announce"])
}

// TestLeaf: a leaf needs somebody to dial, and can neither listen nor be a group of its own.
func TestLeaf(t *testing.T) {
	const entry = "bootstrap: [/ip4/192.0.2.1/tcp/1/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp]\nleaf: on\n"
	c, _, err := config.Load(config.Source{File: write(t, entry)})
	require.NoError(t, err)
	require.True(t, c.IsLeaf())
	for text, field := range map[string]string{
		"leaf: on":                                 "bootstrap",
		"leaf: maybe":                              "leaf",
		entry + "listen: [/ip4/127.0.0.1/tcp/1]":   "listen",
		entry + "announce: [/ip4/192.0.2.1/tcp/1]": "announce",
		entry + "connections: {most: 100}":         "connections.most",
	} {
		_, _, err := config.Load(config.Source{File: write(t, text)})
		require.Equal(t, field, fault.FieldOf(err), text)
	}
}

func TestNetworkName(t *testing.T) {
	for profile, want := range map[string]network.Name{"dev": "dev", "lan": "lan", "public": "main"} {
		c, _, err := config.Load(config.Source{Flags: map[string]any{"profile": profile}})
		require.NoError(t, err)
		require.Equal(t, want, c.NetworkName())
	}
	for origin, src := range map[string]config.Source{
		"file ":                                  {File: write(t, "network: {name: office-2}")},
		"environment variable BLACKHOLE_NETWORK": {Environ: []string{"BLACKHOLE_NETWORK=office-2"}},
		"environment variable BLACKHOLE_NETWORK_NAME": {Environ: []string{"BLACKHOLE_NETWORK=no", "BLACKHOLE_NETWORK_NAME=office-2"}},
		"flag --network": {Environ: []string{"BLACKHOLE_NETWORK=no"}, Flags: map[string]any{"network": "office-2"}},
	} {
		c, set, err := config.Load(src)
		require.NoError(t, err, origin)
		require.Equal(t, network.Name("office-2"), c.NetworkName(), origin)
		require.Contains(t, set["network.name"], origin)
	}
	_, _, err := config.Load(config.Source{Flags: map[string]any{"network": "Office"}})
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "network.name", fault.FieldOf(err))
	require.ErrorContains(t, err, "(set by flag --network)")
	_, _, err = config.Load(config.Source{File: write(t, "network: office-2")})
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "network: is a section and takes no value")
}

// TestPrefixes refuses prefixes of other clients that are no folders of keys, or the same ones.
func TestPrefixes(t *testing.T) {
	for prefix, ok := range map[string]bool{"own/": true, "a/b/": true, "": false, "/": false, "etcd": false, "etcd//": false, strings.Repeat("a", 128) + "/": false} {
		for key, set := range map[string]func(*config.Config){
			"etcd.prefix": func(c *config.Config) { c.Etcd.Prefix = prefix }, "consul.prefix": func(c *config.Config) { c.Consul.Prefix = prefix },
		} {
			c := config.Default()
			if set(&c); ok {
				require.NoError(t, c.Validate())
			} else {
				require.ErrorContains(t, c.Validate(), key, "%q", prefix)
			}
		}
	}
	c := config.Default()
	c.Consul.Prefix = "etcd/sub/"
	require.ErrorContains(t, c.Validate(), "must not overlap etcd.prefix")
	c = config.Default()
	c.Etcd.Listen = "0.0.0.0:2379"
	require.ErrorContains(t, c.Validate(), "etcd.listen")
}

// TestReferrals: each is the https URL of a search, without credentials, and the list has a bound.
func TestReferrals(t *testing.T) {
	many := make([]string, 17)
	for n := range many {
		many[n] = fmt.Sprintf("https://registry%d.example.com/search", n)
	}
	long := many[0] + "?" + strings.Repeat("a", 511-len(many[0]))
	for _, list := range [][]string{nil, many[:16], {"https://192.0.2.1:8443/"}, {"https://[2001:db8::1]/search"}, {long}} {
		c := config.Default()
		c.ARD.Referrals = list
		require.NoError(t, c.Validate())
	}
	for _, list := range [][]string{
		many, {""}, {"registry.example.com"}, {"http://registry.example.com/search"}, {"https:///search"}, {"https://me:secret@registry.example.com/"},
		{"https://registry.example.com/#a"}, {"https://a_b/search"}, {long + "a"}, {many[0], many[0]}, {"https://registry.example.com:port/"},
	} {
		c := config.Default()
		c.ARD.Referrals = list
		require.Equal(t, "ard.referrals", fault.FieldOf(c.Validate()), list)
	}
}
