//go:build planted

package simulation

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// edit replaces a piece of source that occurs once in its file.
type edit struct{ file, old, new string }

// plant is a bug: a real one of the past, or one that a careful reader may miss.
type plant struct {
	name  string
	edits []edit
	rules []string // any of which may notice first; see doc.go and internal/coordination/audit
}

const (
	machineDir    = "internal/coordination/machine/"
	lessorDir     = "internal/coordination/lessor/"
	replicaDir    = "internal/coordination/replica/"
	storageDir    = "internal/coordination/raftlog/"
	membershipDir = "internal/coordination/membership/"
	formationDir  = "internal/coordination/formation/"
	here          = "internal/coordination/simulation/"
)

// diskPlants are those in what a member keeps.
func diskPlants() []plant {
	return []plant{
		{"the disk is not waited for", []edit{
			{storageDir + "database.go", "options = pebble.Sync", "options = pebble.NoSync"},
		}, []string{"C1", "C2", "C3", "P0", "P1", "D1", "Q1", "H1", "H2"}},
		{"a member begins without writes that it acknowledged", []edit{
			{storageDir + "database.go", "lost := d.mark.Check(d.count, store.Position{Index: d.now.end.index, Term: d.now.end.term})", "var lost error"},
		}, []string{"D2"}},
		{"the mark stays behind the log", []edit{
			{storageDir + "database.go", "\tif sync {\n\t\tif err := d.mark.Set(", "\tif sync && next.Write%64 == 1 {\n\t\tif err := d.mark.Set("},
		}, []string{"D2"}},
		{"the end of a log that was replaced stays on the disk", []edit{
			{storageDir + "storage.go", "if last < s.last {\n\t\treturn", "if last < s.last && len(entries) > 1 {\n\t\treturn"},
		}, []string{"D1", "C1"}},
		{"a snapshot during a joint change forgets the voters of before", []edit{
			{replicaDir + "image.go", "ConfState: r.membership.conf}", "ConfState: &pb.ConfState{Voters: r.membership.conf.Voters, Learners: r.membership.conf.Learners, AutoLeave: new(false)}}"},
		}, []string{"C1", "C2", "C3", "P0", "P1", "Q1", "D1"}},
		{"a follower acknowledges before its disk has the entries", []edit{
			{replicaDir + "ready.go", "pb.MsgReadIndexResp, pb.MsgTimeoutNow:", "pb.MsgReadIndexResp, pb.MsgTimeoutNow, pb.MsgAppResp:"},
		}, []string{"C1", "C3", "P0", "P1", "Q1"}},
		{"a vote is sent before it is durable", []edit{
			{replicaDir + "ready.go", "pb.MsgReadIndexResp, pb.MsgTimeoutNow:", "pb.MsgReadIndexResp, pb.MsgTimeoutNow, pb.MsgVote, pb.MsgVoteResp:"},
			{storageDir + "storage.go", "if hard != nil {\n\t\ts.db.setMessage", "if hard != nil && hard.GetTerm()%3 == 0 {\n\t\ts.db.setMessage"},
		}, []string{"C1", "C2", "C3", "P0", "P1", "Q1"}},
		{"a peer without its disk comes back as the same member", []edit{
			{here + "node_test.go", "Rand: randomness{n.rng}", "Rand: bytes.NewReader([]byte(n.name + n.name))"},
			{here + "node_test.go", "import (\n", "import (\n\t\"bytes\"\n"},
			{here + "cluster_test.go", "Rand: randomness{c.rng}", "Rand: bytes.NewReader([]byte(n.name + n.name))"},
		}, []string{"C1", "C2", "C3", "P0", "P1", "Q1"}},
	}
}

// plants are those in the log, the locks and the watches.
func plants() []plant {
	return []plant{
		{"a snapshot names an entry that it does not have", []edit{
			{replicaDir + "image.go", "index, term := r.applied.index, r.applied.term", "index, term := r.applied.index+1, r.applied.term"},
		}, []string{"C1", "P0", "P1", "D1", "replica.Written"}},
		{"the hash of a state depends on the order of a map", []edit{
			{machineDir + "snapshot.go", "\tslices.SortFunc(i.clients, func(a, b client) int { return cmp.Compare(a.id, b.id) })\n", ""},
		}, []string{"C1", "D6"}},
		{"a restored member forgets who wrote a key", []edit{
			{machineDir + "restore.go", "kv.Writer = d.string()", "if kv.Writer = d.string(); kv.Lease == 0 {\n\t\tkv.Writer = \"\"\n\t}"},
		}, []string{"C1", "D6"}},
		{"a client is answered when its command is proposed", []edit{
			{replicaDir + "propose.go", "p.pending[one.id] = term\n", "if p.pending[one.id] = term; one.id%8 == 7 {\n\t\t\t\tr.answer(Answer{ID: one.id})\n\t\t\t}\n"},
		}, []string{"C3", "E1"}},
		{"a retried command is applied again", []edit{
			{machineDir + "machine.go", "if c.sequence == attempt.GetSequence() {", "if c.sequence == attempt.GetSequence() && index%2 == 0 {"},
		}, []string{"E1", "C3", "H1"}},
		{"a leader reads without asking the others", []edit{
			{replicaDir + "read.go", "\tr.reads.staged.reads = append(r.reads.staged.reads, id)\n}", "\tif r.role.leads {\n\t\tr.answer(Answer{ID: id})\n\t\treturn\n\t}\n\tr.reads.staged.reads = append(r.reads.staged.reads, id)\n}"},
		}, []string{"H1", "B1", "B2"}},
		{"a read does not wait until its index is applied", []edit{
			{replicaDir + "read.go", "if round.index > r.applied.index {", "if false {"},
		}, []string{"H1", "B1", "B2"}},
		{"a leader renews leases without asking the others", []edit{
			{replicaDir + "read.go", "\tr.reads.staged.keeps = append(r.reads.staged.keeps, keepalive{id, owner, leases})", "\tr.reads.renew(r, keepalive{id, owner, leases})"},
		}, []string{"L4", "L5", "I5"}},
		{"a keepalive is acknowledged while its lease is expiring", []edit{
			{lessorDir + "lessor.go", "return 0, Expiring", "return e.ttl, Renewed"},
		}, []string{"L4", "B1"}},
		{"a new leader measures from the last renewal it could have seen", []edit{
			{lessorDir + "lessor.go", "l.add(now+l.config.Grace, granted)", "l.add(now-time.Duration(granted.TTL)*time.Millisecond/2, granted)"},
		}, []string{"L4"}},
		{"a leader of old keeps its deadlines, and its expiries are accepted", []edit{
			{replicaDir + "propose.go", "\tr.lessor.Demote()\n", ""},
			{replicaDir + "ready.go", "r.lessor.Promote(r.now, r.role.term, r.machine.Leases())", "if r.lessor.Term() == 0 {\n\t\t\tr.lessor.Promote(r.now, r.role.term, r.machine.Leases())\n\t\t}"},
			{machineDir + "lease.go", "if r.GetTerm() != c.term {", "if false {"},
		}, []string{"L4", "L5"}},
		{"a client counts from when the answer came", []edit{
			{here + "client_test.go", "s.sent(local)", "s.sent(c.local())"},
		}, []string{"L4", "B1"}},
		{"one permit too many", []edit{
			{machineDir + "queue.go", "n < int(c.Permits)", "n <= int(c.Permits)"},
		}, []string{"L3", "L7"}},
		{"a waiter who leaves makes the lock free", []edit{
			{machineDir + "queue.go", "if i < q.held {", "if i <= q.held && q.held > 0 {"},
		}, []string{"L1", "L3", "L7", "P0"}},
		{"a lock is given to the last who came", []edit{
			{machineDir + "queue.go", "\tq.held++\n\treturn q.claims[q.held-1]", "\tif n := len(q.claims) - 1; q.held == 0 && q.claims[0].LockClaim.Mode == coord.Exclusive {\n\t\tq.claims[0], q.claims[n] = q.claims[n], q.claims[0]\n\t}\n\tq.held++\n\treturn q.claims[q.held-1]"},
		}, []string{"L1", "L7", "B2", "P0", "C1"}},
		{"a lock is released by its name alone", []edit{
			{machineDir + "lock.go", "token := coord.Token(r.GetFencingToken())", "held, _ := m.tree.Get(coord.LockKey(r.GetName(), coord.LeaseID(r.GetLeaseId())))\n\ttoken := held.Token()"},
		}, []string{"L6", "B2"}},
		{"a waiter may write as if it held the lock", []edit{
			{machineDir + "queue.go", "return ok && i < q.held", "return ok && (i < q.held || q.claims[i].LockClaim.Mode == coord.Exclusive)"},
		}, []string{"L2", "L6", "L7", "B1", "B2", "H2"}},
		{"a watch begins one revision late", []edit{
			{machineDir + "watch.go", "batch.Events[:had], revision, true", "batch.Events[:had], revision + 1, true"},
		}, []string{"W3", "W6"}},
		{"a leader proposes above the level of the group", []edit{
			{replicaDir + "propose.go", "case !leads || one.level <= level:", "case true || !leads || one.level <= level:"},
		}, []string{"P1", "V1"}},
		{"the level rises before everybody supports it", []edit{
			{membershipDir + "level.go", "level = min(level, o.Levels.Max)", "level = own.Max"},
			{membershipDir + "level.go", "level > present && !o.Levels.Supports(level)", "o.Name == \"\""},
		}, []string{"P1", "D1", "V2", "Q1"}},
		{"a compaction drops one revision more than it says", []edit{
			{machineDir + "history.go", "h.at(0).Revision <= revision {", "h.at(0).Revision <= revision+1 {"},
		}, []string{"W3", "W7", "D1"}},
		{"a watch is not told that its beginning is gone", []edit{
			{machineDir + "watch.go", "if w.From <= s.compacted {", "if w.From < s.compacted {"},
		}, []string{"W3", "W7"}},
	}
}

// directoryPlants are those in the directory.
func directoryPlants() []plant {
	return []plant{
		{"a batch of an earlier generation is accepted", []edit{
			{machineDir + "directory.go", "case r.GetGeneration() < p.Generation:", "case false:"},
		}, []string{"I4"}},
		{"an instance of another owner is replaced", []edit{
			{machineDir + "removal.go", "return since <= kv.Since", "return false"},
		}, []string{"I3", "I6"}},
		{"an instance that was removed comes back with an owner of before", []edit{
			{machineDir + "removal.go", "return ok && d.owner != owner && ", "return false && ok && d.owner != owner && "},
		}, []string{"I6"}},
		{"an instance that is as it was makes an event", []edit{
			{machineDir + "directory.go", "case !ok || kv.Lease != b.lease || !bytes.Equal(kv.Value, e.GetValue()) || kv.Principal != e.GetPrincipal():", "default:\n\t\t\t_, _ = ok, bytes.Equal"},
		}, []string{"I2"}},
		{"what a batch replaces stays when it is the last", []edit{
			{machineDir + "directory.go", "if _, ok := named[key]; !ok {", "if _, ok := named[key]; !ok && len(changes) > 0 {"},
		}, []string{"I2"}},
		{"a removal is remembered after the entry came back", []edit{
			{machineDir + "directory.go", "\t\t\tm.removals.forget(s.key)\n", ""},
		}, []string{"I6", "P0"}},
		{"a digest keeps what is deleted", []edit{
			{machineDir + "usage.go", "\t\ta.published.Remove(kv.Key, kv.Value)\n", "\t\tif kv.Version > 1 {\n\t\t\ta.published.Remove(kv.Key, kv.Value)\n\t\t}\n"},
		}, []string{"I5"}},
	}
}

// boldPlants are those that only bold clients meet.
func boldPlants() []plant {
	return []plant{
		{"a lease that was renewed in time ends with the overdue ones", []edit{
			{lessorDir + "lessor.go", "if e.deadline <= now {\n\t\t\t\treturn e", "if e.at <= now {\n\t\t\t\treturn e"},
			{lessorDir + "lessor.go", "if !ok || e.at == e.deadline {", "if !ok || e.at == e.deadline || s != living {"},
		}, []string{"L4", "B1"}},
		{"a renewal takes milliseconds for seconds", []edit{
			{lessorDir + "lessor.go", "now+e.ttl)", "now+e.ttl*1000)"},
		}, []string{"Q1"}},
		{"a lease of another client is used", []edit{
			{machineDir + "lease.go", "if !principals.MayUse(l.Owner, owner) {", "if false && !principals.MayUse(l.Owner, owner) {"},
		}, []string{"L6"}},
		{"a claim of another client is given back", []edit{
			{machineDir + "lock.go", "if !principals.MayUse(q.claims[i].LockClaim.Holder, owner) {", "if false && !principals.MayUse(q.claims[i].LockClaim.Holder, owner) {"},
		}, []string{"L6"}},
		{"a keepalive renews the leases of another client", []edit{
			{replicaDir + "read.go", "if l, ok := r.machine.Lease(id); !ok || !principals.MayUse(l.Owner, k.owner) {", "if l, ok := r.machine.Lease(id); !ok || false && !principals.MayUse(l.Owner, k.owner) {"},
		}, []string{"L6"}},
		{"one lease more than the quota", []edit{
			{machineDir + "lease.go", "return int64(u.Leases) }", "return int64(u.Leases) - 1 }"},
		}, []string{"U1"}},
		{"less is less or equal", []edit{
			{machineDir + "txn.go", "return order < 0", "return order <= 0"},
		}, []string{"K1"}},
		{"a put that keeps the lease frees the key", []edit{
			{machineDir + "txn.go", "kv.Lease = prev.Lease", "kv.Lease = 0"},
		}, []string{"K1"}},
		{"an absent key passes every comparison", []edit{
			{machineDir + "txn.go", "if !found && err == nil {", "if false && !found {"},
		}, []string{"K1"}},
		{"a transaction within one compares what the steps before it make", []edit{
			{machineDir + "txn.go", "err = t.ascend(&t.m.tree, spanOf(c)", "err = t.ascend(t.now(), spanOf(c)"},
		}, []string{"K1"}},
		{"a generation outlives its lease", []edit{
			{machineDir + "directory.go", "p.Generation, p.lease = 0, 0", "p.lease = 0"},
		}, []string{"I4", "C1"}},
	}
}

// mergePlants are those in the merge of two groups.
func mergePlants() []plant {
	return []plant{
		{"a claim that waits counts as reached", []edit{
			{machineDir + "merge.go", "s.Reached = min(s.Reached,", "_ = min(s.Reached,"},
		}, []string{"M1"}},
		{"a group gives itself up for one with a smaller revision", []edit{
			{machineDir + "merge.go", "case reached < m.revision:", "case false:"},
			{formationDir + "group.go", "return g.Revision < other.Reached || g.Revision == other.Reached && g.losesTie(other)", "return g.losesTie(other)"},
		}, []string{"M1"}},
		{"leases outlive the group", []edit{
			{machineDir + "merge.go", "\tm.end(all, done)\n", "\tm.end(all[:len(all)/2], done)\n"},
		}, []string{"M3", "coord.Restore"}},
		{"a dissolved group goes on", []edit{
			{machineDir + "merge.go", "if g.since == 0 || cmd", "if g.since%2 == 0 || cmd"},
		}, []string{"G1"}},
	}
}

// TestPlanted compiles each bug into the source, and plays seeds until a check notices it.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(plants()), 12)
	for _, p := range slices.Concat(diskPlants(), plants(), directoryPlants()) {
		t.Run(p.name, func(t *testing.T) { p.notice(t, root, "TestSeeds", 4*seeds) })
	}
	for _, p := range boldPlants() {
		t.Run(p.name, func(t *testing.T) { p.notice(t, root, "TestBold", 4*seeds) })
	}
	for _, p := range mergePlants() {
		t.Run(p.name, func(t *testing.T) { p.notice(t, root, "TestMerges", 20*seeds) })
	}
}

// TestPlantsApply finds the place of each bug, and checks the types of the packages that it changes.
func TestPlantsApply(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	s := listSources(t)
	for _, p := range slices.Concat(diskPlants(), plants(), directoryPlants(), boldPlants(), mergePlants()) {
		s.check(t, root, p)
	}
}

// sources are the packages that a simulation consists of.
type sources struct {
	files   map[string][]string // by directory
	imports types.Importer
	set     *token.FileSet
}

func listSources(t *testing.T) sources {
	list := exec.Command("go", "list", "-export", "-deps", "-test", "-json=ImportPath,Dir,Export,GoFiles", ".")
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	s, compiled := sources{files: make(map[string][]string), set: token.NewFileSet()}, make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		require.NoError(t, d.Decode(&p))
		if path, _, _ := strings.Cut(p.ImportPath, " "); !strings.HasSuffix(path, ".test") {
			s.files[p.Dir], compiled[path] = p.GoFiles, p.Export // a package with its tests comes after the one without
		}
	}
	s.imports = importer.ForCompiler(s.set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	return s
}

// check checks the types of the packages that a plant changes, each beside the others without the plant.
func (s *sources) check(t *testing.T, root string, p plant) {
	changed := edited(t, root, p.edits)
	done := make(map[string]bool)
	for path := range changed {
		dir := filepath.Dir(path)
		if done[dir] {
			continue
		}
		done[dir] = true
		require.Contains(t, s.files[dir], filepath.Base(path))
		var files []*ast.File
		for _, name := range s.files[dir] {
			var text any // nil: as it is on the disk
			if c, ok := changed[filepath.Join(dir, name)]; ok {
				text = c
			}
			f, err := parser.ParseFile(s.set, filepath.Join(dir, name), text, parser.SkipObjectResolution)
			require.NoError(t, err, p.name)
			files = append(files, f)
		}
		_, err := (&types.Config{Importer: s.imports}).Check(dir, s.set, files, nil)
		require.NoError(t, err, p.name)
	}
}

// notice requires that a test, which passes without the bug, fails with it within n seeds by the right rule.
func (p plant) notice(t *testing.T, root, test string, n int) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "planted.test")
	compile := exec.Command("go", "test", "-c", "-o", binary, "-overlay", overlay(t, root, dir, p.edits), ".")
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := exec.Command(binary, "-test.run", "^"+test+"$", "-test.failfast")
	run.Env = append(os.Environ(), "TEST_SEEDS="+strconv.Itoa(n)) // which pass without the bug
	out, err = run.CombinedOutput()
	require.Error(t, err, "nobody noticed")
	found := regexp.MustCompile(`seed (\d+) at (\S+): (?:check\.|audit\.)?(\S+): (.{0,120})`).FindSubmatch(out)
	require.NotNil(t, found, "%s", out)
	t.Logf("seed %s, %s: %s: %s", found[1], found[2], found[3], found[4])
	require.True(t, slices.Contains(p.rules, string(found[3])), "%s is not what should notice it", found[3])
}

// edited returns the changed files by path.
func edited(t *testing.T, root string, edits []edit) map[string]string {
	changed := make(map[string]string)
	for _, e := range edits {
		path := filepath.Join(root, e.file)
		text, ok := changed[path]
		if !ok {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			text = string(b)
		}
		require.Equal(t, 1, strings.Count(text, e.old), "%s in %s", e.old, e.file)
		changed[path] = strings.Replace(text, e.old, e.new, 1)
	}
	return changed
}

// overlay writes the changed files and the compiler's list of them.
func overlay(t *testing.T, root, dir string, edits []edit) string {
	replace := make(map[string]string)
	for path, text := range edited(t, root, edits) {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Base(path))
		require.NoError(t, os.WriteFile(replace[path], []byte(text), 0o600))
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(list, b, 0o600))
	return list
}
