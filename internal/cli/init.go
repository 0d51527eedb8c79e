package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func initCommand(con *console, identity func(dataDir string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: "init", Short: "Create a peer's data directory with settings file and identity", Args: noArgs,
		Long: "Create a peer's data directory with an identity and a settings file, which lists every\n" +
			"setting as a comment with its default. Existing files stay unchanged. Prints the peer id.",
	}
	cmd.Flags().String("data", "", "directory to create (default "+config.Default().Data+")")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := con.dataDir(cmd)
		if dir == "" {
			return fault.Invalidf("--data", dir, "must not be empty")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fault.As("cli.init", fault.Internal, err)
		}
		path := filepath.Join(dir, configFile)
		created, err := createFile(path, settingsFile())
		if err != nil {
			return fault.As("cli.init", fault.Internal, err)
		}
		if created {
			con.say("wrote %s", path)
		} else {
			con.say("kept %s", path)
		}
		return con.printID(identity, dir, formatTable)
	}
	return cmd
}

func idCommand(con *console, identity func(dataDir string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "id", Short: "Print the peer id of a data directory", Args: noArgs}
	cmd.Flags().String("data", "", "data directory (default "+config.Default().Data+")")
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := con.dataDir(cmd)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // identity would create the directory
			return fault.New("", fault.NotFound, "no data directory %s; %s init creates one", dir, name)
		}
		return con.printID(identity, dir, f)
	}
	return cmd
}

func (c *console) printID(identity func(dataDir string) (string, error), dir string, f format) error {
	id, err := identity(dir)
	if err != nil {
		return err
	}
	return f.print(c.stdout, document{value: map[string]string{"peer_id": id}, table: id + "\n"})
}

// createFile writes a new file and leaves an existing file unchanged.
func createFile(path, text string) (created bool, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(text)
	return true, errors.Join(err, f.Close())
}

// settingsFile is a settings file that changes nothing. "#" without a space begins a
// setting, "# " an explanation.
func settingsFile() string {
	var b strings.Builder
	b.WriteString("# Settings of this peer. A line with # and no space is a setting with its default. To change\n" +
		"# a setting, remove its # and the # of the sections above it.\n" +
		"# `" + name + " config show --origin` shows the effective settings and their sources.\n\n")
	defaults := config.Default()
	var open []string // sections of the last line
	for _, d := range described() {
		path := strings.Split(d.key, ".")
		sections, last := path[:len(path)-1], path[len(path)-1]
		shared := 0
		for shared < min(len(open), len(sections)) && open[shared] == sections[shared] {
			shared++
		}
		for i := shared; i < len(sections); i++ {
			b.WriteString("\n#" + strings.Repeat("  ", i) + sections[i] + ":\n")
		}
		open = sections
		indent := strings.Repeat("  ", len(sections))
		b.WriteString("# " + indent + d.text + "\n")
		b.WriteString("#" + indent + last + ": " + literal(defaults.Value(d.key)) + "\n")
	}
	return b.String()
}

// literal is the short form of a default: 24h for 24h0m0s.
func literal(value string) string {
	if short, ok := strings.CutSuffix(value, "m0s"); ok { // a duration
		value = short + "m"
	}
	if short, ok := strings.CutSuffix(value, "h0m"); ok {
		value = short + "h"
	}
	return value
}

// setting is the explanation of a key.
type setting struct{ key, text string }

// described returns every setting in the order of the file.
func described() []setting {
	return []setting{
		{"profile", "dev, lan or public: where to look for peers."},
		{"data", "Directory of identity and databases."},
		{"listen", "Multiaddrs to listen on; none: the profile's."},
		{"bootstrap", "Multiaddrs with /p2p/ID of peers to join by."},
		{"http", "Address of the HTTP API; beyond loopback only with TLS and auth; off serves none."},
		{"grpc", "Address of the gRPC API; the same."},
		{"unix", "Path of a socket with the HTTP API, for this user and root; off serves none."},
		{"hosts", "Names and addresses besides loopback's that requests may be for."},
		{"dns", "IP:port of the name server, loopback or private; off serves none."},
		{"dns_domain", "Zones that it answers for."},
		{"dns_ttl", "Longest time to keep an answer: 0 to 24h."},
		{"log.level", "debug, info, warn or error."},
		{"log.format", "text or json."},
		{"auth.enabled", "Ask callers who they are: true, false, or auto: if a token, a key or a CA is set."},
		{"auth.method", "token, jwt or mtls."},
		{"auth.token", "Bearer token of an admin, as \"${NAME}\" of an environment variable."},
		{"auth.token_file", "The same in a file that only its owner can read."},
		{"auth.tokens", "More: [{token or token_file, name, role: read-only, service or admin, services: [web, api-*]}]."},
		{"auth.certificates", "Roles of client certificates: [{name, role, services}]; others may change the service of their name."},
		{"auth.ca_cert", "PEM file: of whom client certificates must be. For method mtls."},
		{"auth.server_cert", "PEM file: serve TLS. With server_key."},
		{"auth.server_key", "PEM file that only its owner can read."},
		{"auth.anonymous", "Who proves nothing may: none, read-only, or auto: read-only, and with mtls none."},
		{"auth.jwt.algorithms", "Such as [ES256], for one kind of key. For method jwt, as those below."},
		{"auth.jwt.key", "Shared secret of HS*, public keys of the others in PEM."},
		{"auth.jwt.key_file", "The same in a file."},
		{"auth.jwt.audience", "What a token must be for."},
		{"auth.jwt.issuer", "Whom it must be from; none: anybody with the key."},
		{"discovery.record_ttl", "How long a record lives without renewal: 1h to 48h."},
		{"discovery.refresh_interval", "How often own records are renewed: less than half of record_ttl."},
		{"discovery.cache.size", "Answers kept: 100 to 1000000."},
		{"discovery.cache.ttl", "How long an answer is kept: 1s to 1h."},
		{"discovery.health.check_interval", "Between two measurements of a provider: 1s to 1h."},
		{"discovery.health.check_timeout", "Longest wait of a measurement: 100ms to 1m."},
		{"discovery.geo.precision", "Length of the geohash in record keys: 4 to 12."},
		{"discovery.geo.publish_precision", "Publish only the geohash cell of this length, 1 to 12; 0: the exact place."},
		{"discovery.limits.services_per_provider", "Services that one provider may have: 1 to 10000."},
		{"discovery.limits.index_records", "Records this peer keeps: 1000 to 10000000."},
		{"discovery.query.max_results", "Results of a query without a limit: 1 to 1000."},
		{"discovery.query.default_radius_km", "Radius of a query with a place and without a radius; 0: no bound."},
		{"coordination.enabled", "Leases and locks: true, false, or auto: in profile dev, and where founders or expect are set."},
		{"coordination.mode", "Who may found the group. listed: the founders; home: any peers, as many as expect."},
		{"coordination.founders", "Peer ids that may found and join the group, the same on all peers; none: this peer alone."},
		{"coordination.expect", "Peers that may found, 1 to 9; 0: as many as are listed."},
		{"coordination.network", "Name that keeps the groups of different networks apart."},
		{"coordination.voters", "Members that vote: 1, 3 or 5."},
		{"coordination.clients", "Who may ask: network (any peer), listed (founders and allow), or auto: network in profile dev."},
		{"coordination.allow", "Peer ids of clients besides the founders."},
		{"coordination.replace", "Silence after which a voter is replaced: 5s to 72h."},
		{"coordination.limits.leases", "Leases that the group keeps at once; for this and all limits 0: as the group has it, at first 100000."},
		{"coordination.limits.keys", "Keys that it keeps, those of locks included; at first 1048576."},
		{"coordination.limits.bytes", "Bytes of keys and values; at first 1 GiB."},
		{"coordination.limits.queue", "Claims on one lock; at first 4096."},
		{"coordination.limits.leases_per_owner", "Leases of one peer; at first 10000."},
		{"coordination.limits.claims_per_owner", "Claims on locks of one peer, holding or waiting; at first 20000."},
		{"coordination.limits.bytes_per_owner", "Bytes of keys and values bound to the leases of one peer; at first 64 MiB."},
		{"agent.enabled", "Take the services of applications: true or false."},
		{"agent.registrations_per_minute", "Of one client; 0: any number."},
		{"agent.dependency_validation", "Refuse instances whose dependencies are not registered."},
		{"agent.strict", "Refuse to register an id again."},
		{"agent.limits.instances", "Instances that this peer takes: 1 to 100000."},
		{"agent.checks.workers", "Health checks at a time: 1 to 1024."},
		{"agent.checks.allow_loopback", "Check addresses of this host: true, false, or auto: of instances registered from it."},
		{"agent.checks.scripts", "Commands that checks may name: {disk: [/usr/lib/check_disk, -w, \"90\"]}."},
	}
}
