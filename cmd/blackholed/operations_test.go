package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

// TestOperations plays docs/operations.md on five peers, with a person who knows the printed text alone: each trouble is caused, doctor
// names it, the command that it prints is run as it stands, and then the row is gone. A condition of the document that is not played
// stands in unplayedRows with the reason.
func TestOperations(t *testing.T) {
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	if runtime.GOOS != "linux" {
		t.Skip("stops processes by signals, and reads who holds a lock")
	}
	played := map[string]string{
		"no_reserve": "lost voter", "no_quorum": "lost quorum", "member_stopped": "damaged log", "space_low": "full keys",
		"no_way_in": "wrong seed", "other_network": "wrong network", "certificate": "expired certificate", "disk": "small disk",
	}
	documented := regexp.MustCompile("`([a-z_]+)`")
	text, err := os.ReadFile(root + "/docs/operations.md")
	require.NoError(t, err)
	table, _, _ := strings.Cut(string(text), "\n## ")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, name := range documented.FindAllStringSubmatch(cells[1], -1) {
			rows[name[1]] = true
			require.True(t, (played[name[1]] != "") != (unplayedRows()[name[1]] != ""), "%s is either played, or has a reason", name[1])
		}
	}
	for _, name := range condition.Names() {
		require.True(t, rows[name], "%s is not in docs/operations.md", name)
	}

	s := &stage{tools: []string{"blackholed"}, known: map[string]string{}, machines: map[string]*machine{}}
	s.network = "play-" + strings.ToLower(rand.Text()[:16])
	n := &night{stage: s, t: t}
	for i := range 5 {
		n.start(t, i)
	}
	n.settled(t)
	for _, row := range []struct {
		name string
		play func(*testing.T)
	}{
		{"frozen process", n.frozen}, {"stuck lock", n.stuckLock}, {"lost voter", n.lostVoter}, {"damaged log", n.damagedLog},
		{"full keys", n.fullKeys}, {"lost quorum", n.lostQuorum}, {"damaged files", n.damagedFiles}, {"expired certificate", n.expired},
		{"wrong seed", n.wrongSeed}, {"wrong network", n.wrongNetwork}, {"small disk", n.smallDisk},
	} {
		if !t.Run(row.name, row.play) {
			return // the next row needs whole peers
		}
	}
}

// unplayedRows are the conditions that this test does not cause, with what does.
func unplayedRows() map[string]string {
	return map[string]string{
		"joining":           "ends by itself within a minute of the start; played by internal/discovery/keeper",
		"isolated":          "needs cut networks: testnet, script roaming",
		"clock_offset":      "needs machines with other clocks: testnet, script skew",
		"identity_in_use":   "needs two machines of one key over a renewal: internal/discovery",
		"not_reachable":     "needs NAT: testnet, script homes",
		"address_limit":     "needs many peers of one address: internal/platform/p2p",
		"private_addresses": "needs a network without the Internet: testnet, script vpn",
		"not_stored":        "passes by itself: internal/discovery",
		"no_group":          "needs the key of a network whose members are all gone: internal/coordination",
		"directory_refused": "needs a group without room for instances: internal/agent/directory",
		"set_aside":         "needs a value of a faulty version on disk: internal/agent/registry",
		"front_failed":      "needs a fault of this program: internal/frontend/consulapi",
		"other_group":       "needs two networks that meet: docs/group.md, internal/coordination",
		"older_keepers":     "needs two versions of the program: testnet, upgrade",
		"feature_level":     "needs two versions of the program: testnet, upgrade",
		"states_differ":     "needs a fault of memory: internal/coordination",
		"index_full":        "needs more offers than memory: internal/discovery",
		"cell_full":         "needs more offers than a cell takes: internal/discovery/keeper",
		"no_grants":         "needs a ledger that went back in time: internal/trade",
		"pool_exhausted":    "needs thousands of callers: greedy_test.go",
	}
}

// night is five peers, and what the operator sees of them.
type night struct {
	*stage
	t    *testing.T // outlives the rows, as the peers do
	seed string     // address of peer 0
	last string     // what doctor printed last
}

// advice is a row of doctor.
type advice struct{ Area, State, Text, Do string }

func (n *night) at(_ *testing.T, i int) *machine { return n.machine(n.t, fmt.Sprint(i+1)) }

// start runs peer i on its directory, again on its ports.
func (n *night) start(t *testing.T, i int) {
	t.Helper()
	seed := ""
	if i > 0 {
		seed = " --bootstrap " + n.seed
	}
	// A silent voter stays one until the operator has acted.
	n.at(t, i).run(n.t, "BLACKHOLE_COORDINATION_REPLACE=1h BLACKHOLE_COORDINATION_LIMITS_KEYS=100 blackholed run --data peer --network "+n.network+seed)
	if i == 0 {
		var status struct {
			PeerID string   `json:"peer_id"`
			Listen []string `json:"listen"`
		}
		n.json(t, 0, "blackholed status -o json", &status)
		n.seed = status.Listen[0] + "/p2p/" + status.PeerID
	}
}

// stop ends peer i by a signal.
func (n *night) stop(t *testing.T, i int, by os.Signal) {
	t.Helper()
	m := n.at(t, i)
	require.NoError(t, m.peers[0].cmd.Process.Signal(by))
	_ = m.peers[0].cmd.Wait()
	m.peers = nil
}

// sh runs a line at peer i and returns what it printed, as it is.
func (n *night) sh(t *testing.T, i int, line string) (string, error) {
	t.Helper()
	j := n.at(t, i).job(t, line)
	err := j.cmd.Run()
	return j.out.String(), err
}

// must runs the line of an operator.
func (n *night) must(t *testing.T, i int, line string) {
	t.Helper()
	out, err := n.sh(t, i, line)
	require.NoError(t, err, "%s: %s", line, out)
}

func (n *night) json(t *testing.T, i int, line string, into any) {
	t.Helper()
	await(t, "answer to "+line, func() bool {
		j := n.at(t, i).job(t, line)
		var out bytes.Buffer
		j.cmd.Stdout, j.cmd.Stderr = &out, nil
		return j.cmd.Run() == nil && json.Unmarshal(out.Bytes(), into) == nil
	})
}

// doctor returns the rows that are not fine.
func (n *night) doctor(t *testing.T, i int, flags string) (wrong []advice) {
	t.Helper()
	j := n.at(t, i).job(t, "blackholed doctor --data peer -o json "+flags)
	var out bytes.Buffer
	j.cmd.Stdout, j.cmd.Stderr = &out, nil
	_ = j.cmd.Run()
	var all struct{ Findings []advice }
	require.NoError(t, json.Unmarshal(out.Bytes(), &all), out.String())
	n.last = out.String()
	return slices.DeleteFunc(all.Findings, func(a advice) bool { return a.State == "ok" || a.State == "wait" })
}

// sees waits for the row with these words. It is told once.
func (n *night) sees(t *testing.T, i int, area, words string, flags ...string) (found advice) {
	t.Helper()
	defer func() { t.Logf("peer %d: %+v", i+1, found) }()
	defer func() {
		if found == (advice{}) {
			t.Log("doctor said: " + n.last)
		}
	}()
	await(t, area+" with "+words, func() bool {
		list := n.doctor(t, i, strings.Join(flags, " "))
		at := slices.IndexFunc(list, func(a advice) bool { return a.Area == area && strings.Contains(a.Text, words) })
		if at < 0 {
			return false
		}
		found = list[at]
		for k, other := range list {
			require.True(t, k == at || other.Text != found.Text, "told twice: %s", n.last)
		}
		return true
	})
	require.NotEmpty(t, found.Do)
	require.NotRegexp(t, `12D3KooW\w{44}`, found.Text+found.Do, "sentences have names")
	return found
}

// gone waits until doctor at peer i says nothing with these words.
func (n *night) gone(t *testing.T, i int, words string, flags ...string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log("doctor said: " + n.last)
		}
	}()
	await(t, "end of "+words, func() bool {
		return !slices.ContainsFunc(n.doctor(t, i, strings.Join(flags, " ")), func(a advice) bool { return strings.Contains(a.Text, words) })
	})
}

// printed is the command of a remedy that begins with these words.
func printed(t *testing.T, a advice, begins string) string {
	t.Helper()
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(a.Do, -1) {
		if strings.HasPrefix(m[1], begins) {
			return m[1]
		}
	}
	require.Fail(t, "no command", "%s in %q", begins, a.Do)
	return ""
}

// members returns the peers that are voters, by index, the leader first, and the others.
func (n *night) members(t *testing.T, asked int) (voters, others []int) {
	t.Helper()
	var g struct {
		Leader string `json:"leader"`
		Voters []struct {
			Peer   string `json:"peer_id"`
			Name   string `json:"name"`
			Active bool   `json:"active"`
		} `json:"voters"`
	}
	n.json(t, asked, "blackholed group members -o json", &g)
	for i := range 5 {
		is := -1
		for k, v := range g.Voters {
			if v.Name == fmt.Sprintf("machine-%d", i+1) {
				is = k
			}
		}
		switch {
		case is < 0:
			others = append(others, i)
		case g.Voters[is].Peer == g.Leader:
			voters = append([]int{i}, voters...)
		default:
			voters = append(voters, i)
		}
	}
	return voters, others
}

// settled waits for three voters that answer, at every peer.
func (n *night) settled(t *testing.T) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log("it said: " + n.last)
		}
	}()
	for i := range 5 {
		await(t, fmt.Sprintf("whole group at peer %d", i+1), func() bool {
			out, err := n.sh(t, i, "blackholed group status")
			n.last = out
			return err == nil && strings.Contains(out, "3 of 3 voters") && strings.Contains(out, "1 failure")
		})
	}
}

func (n *night) frozen(t *testing.T) {
	m := n.at(t, 4)
	require.NoError(t, m.peers[0].cmd.Process.Signal(syscall.SIGSTOP))
	seen := n.sees(t, 4, "peer", "is frozen")
	out, err := n.sh(t, 4, "blackholed run --data peer --http 127.0.0.1:"+m.words.ports["8500"])
	require.Error(t, err)
	require.Contains(t, out, seen.Text, "the start says the same")
	require.Contains(t, out, "hint: "+seen.Do)
	n.must(t, 4, printed(t, seen, "kill -CONT"))
	n.gone(t, 4, "is frozen")
}

func (n *night) stuckLock(t *testing.T) {
	n.at(t, 3).run(t, "blackholed lock hold stuck -- sleep 1000 &")
	await(t, "holder", func() bool {
		out, _ := n.sh(t, 0, "blackholed lock ls stuck")
		return strings.Contains(out, "holds")
	})
	out, err := n.sh(t, 0, "blackholed lock unlock stuck")
	require.Error(t, err)
	n.last = out
	end := printed(t, advice{Do: out}, "blackholed lock release")
	n.must(t, 0, strings.Replace(end, "NAME", "stuck", 1))
	out, err = n.sh(t, 0, "blackholed lock ls stuck")
	require.NoError(t, err)
	require.NotContains(t, out, "holds")
	n.at(t, 3).run(t, "wait") // the program under the lock has ended
}

// replace lets a spare peer take the vote of the silent voter, by the orders that doctor prints at the leader.
func (n *night) replace(t *testing.T, leader, silent, spare int) {
	t.Helper()
	seen := n.sees(t, leader, "group", "2 of 3 voters of the group answer")
	require.Contains(t, seen.Text, fmt.Sprintf("machine-%d", silent+1))
	var next struct {
		PeerID string `json:"peer_id"`
	}
	n.json(t, spare, "blackholed status -o json", &next)
	for _, order := range []string{printed(t, seen, "blackholed group add"), printed(t, seen, "blackholed group replace")} {
		await(t, "success of "+order, func() bool { // a learner is not caught up at once
			out, err := n.sh(t, leader, strings.Replace(order, "NEW_PEER", next.PeerID, 1))
			n.last = out
			return err == nil
		})
	}
	n.gone(t, leader, "2 of 3 voters")
}

func (n *night) lostVoter(t *testing.T) {
	voters, others := n.members(t, 0)
	lost := voters[2]
	n.stop(t, lost, syscall.SIGKILL)
	n.replace(t, voters[0], lost, others[0])
	n.start(t, lost)
	n.settled(t)
}

func (n *night) damagedLog(t *testing.T) {
	voters, others := n.members(t, 0)
	i := voters[1]
	n.stop(t, i, os.Interrupt)
	n.damage(t, i, "coordination/raft/log/*.log")
	before := n.sees(t, i, "data", "is damaged")
	n.start(t, i)
	seen := n.sees(t, i, "group", "is damaged")
	require.Contains(t, seen.Text, strings.TrimSuffix(before.Text, ": this peer is no member of the group"), "stopped and running, in the same words")
	require.Equal(t, before.Do, seen.Do)
	n.stop(t, i, os.Interrupt)
	n.must(t, i, printed(t, seen, "mv "))
	n.start(t, i)
	n.gone(t, i, "is damaged")
	n.replace(t, voters[0], i, others[0]) // its former member never comes back
	n.settled(t)
}

func (n *night) fullKeys(t *testing.T) {
	for i := range 5 { // until the share of each caller is used up
		_, _ = n.sh(t, i, fmt.Sprintf("for i in $(seq 17); do blackholed kv put full/%d/$i x || break; done", i))
	}
	voters, _ := n.members(t, 0)
	n.sees(t, voters[0], "callers", "keys of the group use over 80 %")
	n.must(t, 0, "blackholed kv del --prefix full/")
	n.gone(t, voters[0], "keys of the group")
}

func (n *night) lostQuorum(t *testing.T) {
	voters, _ := n.members(t, 0)
	lost := voters[:2]
	if slices.Contains(lost, 0) { // the others need their seed
		lost = voters[1:]
	}
	left := voters[slices.IndexFunc(voters, func(i int) bool { return !slices.Contains(lost, i) })]
	for _, i := range lost {
		n.stop(t, i, syscall.SIGKILL)
	}
	seen := n.sees(t, left, "group", "no leader")
	for _, i := range lost {
		require.Contains(t, seen.Text, fmt.Sprintf("machine-%d", i+1))
	}
	require.Contains(t, seen.Do, "Start those that are down")
	for _, i := range lost {
		n.start(t, i)
	}
	n.gone(t, left, "no leader")
	n.settled(t)
}

// damage overwrites the first file of a pattern in the directory of peer i.
func (n *night) damage(t *testing.T, i int, pattern string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.at(t, i).dir, "home/peer", pattern))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("damage"), 20), 8)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func (n *night) damagedFiles(t *testing.T) {
	for _, pattern := range []string{"registry/MANIFEST-*", "instances/*.log", "identity.key"} {
		n.stop(t, 4, os.Interrupt)
		n.damage(t, 4, pattern)
		seen := n.sees(t, 4, "data", "is damaged")
		out, err := n.sh(t, 4, "blackholed run --data peer --network "+n.network)
		require.Error(t, err)
		require.Contains(t, out, seen.Text, "the start says the same")
		require.Contains(t, out, "hint: "+seen.Do)
		n.must(t, 4, printed(t, seen, "mv "))
		n.start(t, 4)
		n.gone(t, 4, "is damaged")
	}
}

// alone runs a sixth peer, for troubles of one peer.
func (n *night) alone(t *testing.T, flags string) {
	t.Helper()
	n.at(t, 5).run(n.t, "blackholed run --data peer "+flags)
}

func (n *night) expired(t *testing.T) {
	home := filepath.Join(n.at(t, 5).dir, "home")
	write := func(until time.Time) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-48 * time.Hour), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
		cert, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
		require.NoError(t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(home, "server.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(home, "server.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	}
	ended := time.Now().Add(-24 * time.Hour)
	write(ended)
	n.at(t, 5).env = append(n.at(t, 5).env, "BLACKHOLE_AUTH_SERVER_CERT="+filepath.Join(home, "server.pem"), "BLACKHOLE_AUTH_SERVER_KEY="+filepath.Join(home, "server.key"))
	n.alone(t, "--network "+n.network+"-tls")
	seen := n.sees(t, 5, "peer", "has expired at "+ended.UTC().Format(time.RFC3339), "--tls-ca server.pem")
	require.Contains(t, seen.Text, filepath.Join(home, "server.pem"))
	require.Contains(t, seen.Do, filepath.Join(home, "server.key"))
	write(time.Now().Add(30 * 24 * time.Hour))
	n.gone(t, 5, "has expired", "--tls-ca server.pem")
	n.stop(t, 5, os.Interrupt)
	n.at(t, 5).env = n.at(t, 5).env[:len(n.at(t, 5).env)-2]
}

func (n *night) wrongSeed(t *testing.T) {
	at, id, _ := strings.Cut(n.seed, "/p2p/")
	var other struct {
		PeerID string `json:"peer_id"`
	}
	n.json(t, 1, "blackholed status -o json", &other)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", taken.Addr().(*net.TCPAddr).Port)
	require.NoError(t, taken.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(n.at(t, 5).dir, "home/peer")))
	n.alone(t, "--network "+n.network+" --bootstrap "+at+"/p2p/"+other.PeerID+" --bootstrap "+nobody+"/p2p/"+id)
	var seen advice
	await(t, "row about the seeds", func() bool {
		list := n.doctor(t, 5, "")
		k := slices.IndexFunc(list, func(a advice) bool {
			return a.Area == "network" && strings.Contains(a.Text, "no bootstrap peer was reached: ")
		})
		if k >= 0 {
			seen = list[k]
			require.Empty(t, slices.DeleteFunc(list, func(a advice) bool { return a.Area == "network" || a.Area == "group" }), "the first cause alone")
		}
		return k >= 0
	})
	require.Contains(t, seen.Text, at+": another peer answers there")
	require.Regexp(t, regexp.QuoteMeta(nobody)+`(/p2p/\w+)?: nobody listens there \(connection refused\)`, seen.Text)
	require.Contains(t, seen.Do, "--bootstrap")
	n.stop(t, 5, os.Interrupt)
	n.alone(t, "--network "+n.network+" --bootstrap "+n.seed)
	n.gone(t, 5, "no bootstrap peer was reached")
	n.stop(t, 5, os.Interrupt)
}

func (n *night) wrongNetwork(t *testing.T) {
	require.NoError(t, os.RemoveAll(filepath.Join(n.at(t, 5).dir, "home/peer")))
	n.alone(t, "--network elsewhere --bootstrap "+n.seed)
	seen := n.sees(t, 5, "network", "belongs to the network")
	flag := regexp.MustCompile(`--network [\w-]+`).FindString(seen.Do)
	require.Equal(t, "--network "+n.network, flag)
	n.stop(t, 5, os.Interrupt)
	require.NoError(t, os.RemoveAll(filepath.Join(n.at(t, 5).dir, "home/peer")))
	n.alone(t, flag+" --bootstrap "+n.seed)
	n.gone(t, 5, "belongs to the network")
	n.stop(t, 5, os.Interrupt)
}

func (n *night) smallDisk(t *testing.T) {
	small := filepath.Join(n.at(t, 5).dir, "small")
	require.NoError(t, os.MkdirAll(small, 0o700))
	if out, err := n.sh(t, 5, "mount -t tmpfs -o size=200m,mode=700 tmpfs "+small); err != nil {
		t.Skip("needs the right to mount a small disk: " + out)
	}
	defer func() { _, _ = n.sh(t, 5, "umount "+small) }()
	n.at(t, 5).run(n.t, "blackholed run --data "+small+" --network "+n.network+" --bootstrap "+n.seed)
	seen := n.sees(t, 5, "disk", "is nearly full")
	require.Contains(t, seen.Do, "df -h "+small)
	n.must(t, 5, "mount -o remount,size=600m "+small)
	n.gone(t, 5, "is nearly full")
	n.stop(t, 5, os.Interrupt)
}
