package doctor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const provider = "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"

// fakeMachine refuses the addresses and directories that it names.
type fakeMachine map[string]error

func (m fakeMachine) writable(dir string) (bool, error) { return false, m[dir] }

func (m fakeMachine) open(_, address string) error { return m[address] }

func (m fakeMachine) resolves(address string) error { return m[address] }

func (m fakeMachine) answers(address string) error { return m[address] }

func (m fakeMachine) free(dir string) (uint64, error) {
	if m[dir] != nil {
		return disk.Low - 1, nil
	}
	return 5 << 30, nil
}

// sound is a peer without problems.
func sound() *facts {
	return &facts{
		settings: config.Default(), machine: fakeMachine{}, running: map[string]string{"dns": "0.0.0.0:8600", "data": "/var/lib/peer"},
		peers: []discovery.PeerInfo{{ID: provider, Agent: "blackholed/v1"}},
		group: &coord.GroupState{Phase: "member", Leader: provider, Voters: slices.Repeat([]coord.Member{{Active: true}}, 3)},
		status: discovery.Status{
			PeerID: provider, Network: "main", Profile: "public", Version: "v1", UptimeSeconds: 3600, Peers: 5, RoutingTable: 4, Ready: true,
			Reach: discovery.Reach{State: "relayed", Text: "behind NAT, relayed by …7cVYtUo", Direct: 4, Relayed: 1},
		},
	}
}

// stopped is a machine without a running peer.
func stopped() *facts {
	return &facts{settings: config.Default(), machine: fakeMachine{}, down: fault.New("", fault.Unavailable, "no peer answers")}
}

func TestDoctorFindsNoProblem(t *testing.T) {
	for name, f := range map[string]*facts{"running": sound()} {
		for _, found := range diagnose(f) {
			require.Equal(t, fine, found.State, "%s: %s", name, found.Text)
			require.NotEmpty(t, found.Text)
		}
	}
	for _, found := range diagnose(stopped()) {
		require.Equal(t, found.Area == "peer", found.State == broken, found.Text)
	}
}

// TestDoctor breaks one thing at a time.
func TestDoctor(t *testing.T) {
	because := func(name string) func(*facts) {
		return func(f *facts) {
			f.status.Conditions = []discovery.Condition{{Name: name, Problem: fault.Problem{What: "because of " + name, Effect: "so", Remedy: "mend it", Since: time.Unix(0, 0)}}}
		}
	}
	sells := func(f *facts) {
		f.here = true
		f.sold.Stocks = []client.Stock{{ID: "mine", Unit: "gpu", Free: 1, Total: 4, Serve: "127.0.0.1:11434"}, {ID: "other", Unit: "slot", Total: 1}}
	}
	for name, c := range map[string]struct {
		change func(*facts)
		area   string
		state  string
		text   string
	}{
		"isolated":          {because("isolated"), "network", broken, "because of isolated"},
		"address limit":     {because("address_limit"), "network", broken, "because of address_limit"},
		"private addresses": {because("private_addresses"), "network", broken, "because of private_addresses"},
		"no bootstrap peer": {func(f *facts) { f.status.Ready = false }, "network", broken, "no bootstrap peer"},
		"alone":             {func(f *facts) { f.status.Peers, f.status.RoutingTable = 0, 0 }, "network", fine, "of its own"},
		"unreachable": {func(f *facts) {
			f.status.Reach = discovery.Reach{State: "unreachable", Text: "not reachable: no relay"}
		}, "nat", broken, "no relay"},
		"wrong announcement": {because("not_reachable"), "nat", broken, "because of not_reachable"},
		"checking":           {func(f *facts) { f.status.Reach = discovery.Reach{State: "checking", Text: "checking"} }, "nat", waiting, "checking"},
		"no server":          {func(f *facts) { f.status.RoutingTable = 0 }, "dht", broken, "none serves the DHT"},
		"keeper":             {func(f *facts) { f.status.Mode = "server" }, "dht", fine, "keeps records for others"},
		"clock":              {because("clock_offset"), "clock", broken, "because of clock_offset"},
		"identity":           {because("identity_in_use"), "identity", broken, "because of identity_in_use"},
		"joining":            {because("joining"), "records", broken, "because of joining"},
		"just started": {func(f *facts) {
			because("joining")(f)
			f.status.UptimeSeconds = 5
		}, "records", waiting, "because of joining"},
		"no name server": {func(f *facts) {
			f.machine = fakeMachine{"127.0.0.1:8600": errors.New("refused")}
		}, "dns", broken, "no answer at 127.0.0.1:8600: refused"},
		"name server off": {func(f *facts) { f.running["dns"] = "off" }, "dns", fine, "off"},
		"full disk":       {func(f *facts) { f.machine = fakeMachine{"/var/lib/peer": errors.New("")} }, "disk", broken, "0.2 GB free"},
		"another version": {func(f *facts) {
			f.peers = append(f.peers, discovery.PeerInfo{Agent: "blackholed/v2"}, discovery.PeerInfo{Agent: "blackholed/v2"}, discovery.PeerInfo{Agent: "other"})
		}, "versions", fine, "v1 here, of 4 peers connected: v2 at 2"},
		"no quorum":            {func(f *facts) { f.group.Missing = "no quorum" }, "group", broken, "no quorum"},
		"no leader":            {func(f *facts) { f.group.Leader = "" }, "group", broken, "no leader"},
		"no coordination":      {func(f *facts) { f.group = nil }, "group", fine, "off"},
		"group unknown":        {func(f *facts) { f.groupBy = errors.New("denied") }, "group", broken, "denied"},
		"silent voter":         {func(f *facts) { f.group.Tolerance = "2 of 3 voters: no failure" }, "group", warned, "survives 2 of 3 voters: no failure"},
		"another silent voter": {func(f *facts) { f.group.Voters[1] = coord.Member{Peer: provider, Name: "attic"} }, "group", warned, "silent: attic"},
		"not stored":           {func(f *facts) { f.status.RecordsUnstored = []string{"gpu"} }, "records", warned, "no other peer holds gpu"},
		"announcing":           {func(f *facts) { f.status.RecordsAnnouncing = 2 }, "records", warned, "2 changes not taken yet"},
		"failing instance": {func(f *facts) {
			f.failing = []*instance.Instance{{Key: instance.Key{Service: "sell-gpu", ID: "mine"}, Spec: instance.Spec{Offer: []byte("{}")}}}
		}, "instances", warned, "1 instance of this peer not up, among them sell-gpu mine; nobody finds their offers until the check passes"},
		"sells":          {sells, "grants", fine, "1 of 4 gpu of mine free"},
		"grants nothing": {because("no_grants"), "grants", broken, "because of no_grants: so"},
		"serves":         {sells, "served", fine, "1 service that this peer serves to buyers answered"},
		"served by nobody": {func(f *facts) {
			sells(f)
			f.machine = fakeMachine{"127.0.0.1:11434": errors.New("connection refused")}
		}, "served", broken, "the service of mine gives no answer at 127.0.0.1:11434: connection refused: who takes it reaches nothing"},
		"no address": {func(f *facts) { f.bare = []string{"mine"} }, "served", broken, "1 offer with access through this peer and without an address, such as mine"},
		"buyers":     {sells, "buyers", fine, "buyers come through a hole in both routers where"},
		"buyers by a relay": {func(f *facts) {
			sells(f)
			f.status.Reach.Unpunched = 4
		}, "buyers", warned, "none of 4 tries made a direct way"},
		"no buyers": {func(f *facts) {
			sells(f)
			f.status.Reach.State = "unreachable"
		}, "buyers", broken, "no buyer from outside reaches this peer"},
		"direct buyers": {func(f *facts) {
			sells(f)
			f.status.Reach.State = "local"
		}, "buyers", fine, "buyers connect directly"},
		"suspended": {func(f *facts) {
			f.past = []discovery.Note{{Kind: "peer", Subject: "suspended", Text: "this process did not run for 20s", At: time.Unix(0, 0)}, {Kind: "peer", Subject: "id"}}
		}, "past", warned, "at 1970-01-01T00:00:00Z this process did not run for 20s"},
		"new condition": {because("disk_full"), "other", broken, "because of disk_full"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sound()
			c.change(f)
			for _, found := range diagnose(f) {
				if found.Area == c.area {
					require.Equal(t, c.state, found.State)
					require.Contains(t, found.Text, c.text)
					return
				}
			}
			require.Fail(t, "no finding for "+c.area)
		})
	}
}

// TestDoctorWithoutPeer examines the data directory and the ports.
func TestDoctorWithoutPeer(t *testing.T) {
	f := stopped()
	f.machine = fakeMachine{"127.0.0.1:8500": errors.New("address in use"), f.settings.Data: os.ErrPermission}
	states := map[string]finding{}
	for _, found := range diagnose(f) {
		states[found.Area] = found
	}
	require.Len(t, states, 4)
	require.Contains(t, states["ports"].Text, "http (tcp): address in use")
	require.Equal(t, broken, states["ports"].State)
	require.Equal(t, broken, states["data"].State)
	require.Equal(t, broken, states["disk"].State)
	require.NotEmpty(t, states["peer"].Do)
}

// TestDoctorTellsOnce: each condition is one row with its remedy, beside no row of its area that says the same.
func TestDoctorTellsOnce(t *testing.T) {
	for _, name := range condition.Names() {
		f := sound()
		f.status.Conditions = []discovery.Condition{{Name: name, Problem: fault.Problem{What: "because of " + name, Remedy: "mend " + name}}}
		f.machine = fakeMachine{"/var/lib/peer": errors.New("full")}
		if name != "disk" {
			f.machine = fakeMachine{}
		}
		broke := 0
		for _, found := range diagnose(f) {
			if found.State != fine {
				broke++
				require.Equal(t, "because of "+name, found.Text)
				require.Equal(t, "mend "+name, found.Do)
			}
			require.NotEqual(t, "other", found.Area, "%s has no area", name)
		}
		require.Equal(t, 1, broke, name)
	}
}

// TestDoctorFirstCause: a peer that no way leads into its network is told nothing that follows from that.
func TestDoctorFirstCause(t *testing.T) {
	f := sound()
	f.status.Peers, f.status.RoutingTable, f.status.Ready = 0, 0, false
	f.status.Reach = discovery.Reach{State: "unreachable", Text: "not reachable: no relay"}
	f.status.Conditions = []discovery.Condition{
		{Name: "joining", Problem: fault.Problem{What: "no comparison"}}, {Name: "not_reachable", Problem: fault.Problem{What: "no relay"}},
		{Name: "no_way_in", Problem: fault.Problem{What: "no bootstrap peer was reached: /ip4/10.0.0.1/tcp/1: no answer", Remedy: "correct it"}},
	}
	var wrong []string
	for _, found := range diagnose(f) {
		if found.State != fine {
			wrong = append(wrong, found.Area+": "+found.Text)
		}
	}
	require.Equal(t, []string{"network: no bootstrap peer was reached: /ip4/10.0.0.1/tcp/1: no answer"}, wrong)
}

// TestDoctorTellsAProcess: a peer whose process has its directory is neither started nor asked to leave its ports, and what a start
// would find is told as it is.
func TestDoctorTellsAProcess(t *testing.T) {
	f := stopped()
	f.machine = fakeMachine{"127.0.0.1:8500": errors.New("address in use"), "127.0.0.1:8502": errors.New("address in use")}
	f.runs = &fault.Problem{What: "process 7 is frozen", Remedy: "`kill -CONT 7`"}
	areas := map[string]finding{}
	for _, found := range diagnose(f) {
		areas[found.Area] = found
	}
	require.Equal(t, "process 7 is frozen", areas["peer"].Text)
	require.Equal(t, "`kill -CONT 7`", areas["peer"].Do)
	require.NotContains(t, areas, "ports")
	require.NotContains(t, areas, "data")

	f = stopped()
	f.found = []fault.Problem{{What: "a is damaged", Remedy: "move a"}, {What: "b is damaged", Remedy: "move b"}}
	var data []finding
	for _, found := range diagnose(f) {
		switch found.Area {
		case "data":
			data = append(data, found)
		case "peer":
			require.NotContains(t, found.Do, "or name its address")
		}
	}
	require.Len(t, data, 2)
	require.Equal(t, finding{Area: "data", State: broken, Text: "b is damaged", Do: "move b"}, data[1])
}

// TestDoctorWithoutRight tells a peer that refuses the caller from one that does not run: nobody should stop a healthy program.
func TestDoctorWithoutRight(t *testing.T) {
	f := stopped()
	f.machine = fakeMachine{"127.0.0.1:8500": errors.New("address in use")}
	f.down = fault.Wrap("client.Status", fault.New("access", fault.Forbidden, "the token is wrong"))
	for _, found := range diagnose(f) {
		require.NotEqual(t, "ports", found.Area)
		if found.Area == "peer" {
			require.Contains(t, found.Text, "the peer runs and refuses this caller: the token is wrong")
		}
	}
}

// TestDoctorSilentPeer tells a peer that hangs from one that does not run, and from a peer elsewhere.
func TestDoctorSilentPeer(t *testing.T) {
	const here, elsewhere = "no peer answers at 127.0.0.1:8502: timeout", "no peer answers at 10.0.0.1:8502: timeout"
	taken := fakeMachine{"127.0.0.1:8502": errors.New("address in use")}
	for _, c := range []struct {
		down    string
		machine machine
		text    string
	}{
		{here, taken, "listens at 127.0.0.1:8502 and does not answer"},
		{here, fakeMachine{}, here},
		{elsewhere, taken, elsewhere},
	} {
		f := stopped()
		f.down, f.machine = fault.New("", fault.Unavailable, "%s", c.down), c.machine
		found := checkPeer(f)
		require.Equal(t, broken, found.State)
		require.Contains(t, found.Text, c.text)
		require.NotEmpty(t, found.Do)
	}
}

func TestDoctorPorts(t *testing.T) {
	c := config.Default()
	c.DNS, c.Listen = config.Off, []string{"/ip4/0.0.0.0/udp/9000/quic-v1", "/ip6/::/tcp/9001"}
	require.Equal(t, []port{
		{"http", "tcp", "127.0.0.1:8500"}, {"grpc", "tcp", "127.0.0.1:8502"},
		{"listen", "udp", "0.0.0.0:9000"}, {"listen", "tcp", "[::]:9001"},
	}, ports(c))
	for profile, quic := range map[string]bool{"lan": false, "public": true} {
		c.Listen, c.Profile = nil, profile
		require.Contains(t, ports(c), port{"listen", "tcp", "0.0.0.0:4801"})
		require.Equal(t, quic, slices.Contains(ports(c), port{"listen", "udp", "0.0.0.0:4801"}))
	}
}

func TestThisMachine(t *testing.T) {
	m, dir := thisMachine{}, t.TempDir()
	missing, err := m.writable(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	require.True(t, missing)
	missing, err = m.writable(dir)
	require.NoError(t, err)
	require.False(t, missing)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	_, err = m.writable(filepath.Join(dir, "file"))
	require.Error(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "leaves nothing behind")

	free, err := m.free(filepath.Join(dir, "a", "b"))
	require.True(t, err != nil || free > 0, "unknown on some systems")

	require.Error(t, m.resolves("127.0.0.1:1"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	require.Error(t, m.open("tcp", l.Addr().String()))
	require.NoError(t, m.answers(l.Addr().String()))
	require.Error(t, m.answers("127.0.0.1:1"))
	require.NoError(t, m.open("udp", "127.0.0.1:0"))
	require.NoError(t, m.open("tcp", "127.0.0.1:0"))
}

func TestOnThisMachine(t *testing.T) {
	for address, here := range map[string]bool{
		"": true, "127.0.0.1:8502": true, "[::1]:8502": true, "localhost:1": true, "unix:///run/peer": true, "10.0.0.1:8502": false, "peer.example.org:8502": false,
	} {
		require.Equal(t, here, onThisMachine(address), address)
	}
}

// TestDoctorNamesThePeer: a recommended command goes to the peer that was examined.
func TestDoctorNamesThePeer(t *testing.T) {
	f := sound()
	f.given = " --grpc 127.0.0.1:8512"
	f.group.Leader = ""
	require.Contains(t, checkGroup(f).Do, "`blackholed group members --grpc 127.0.0.1:8512`")
	f.status.Peers, f.status.Profile = 0, "lan"
	f.status.RecordsOwn = 1
	require.Contains(t, checkNetwork(f).Do, "`blackholed invite --grpc 127.0.0.1:8512`;")
}
