package machine_test

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
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestScenarios plays the histories in testdata/*.txt. A history is text: a command, a line "----",
// and the answer up to the next empty line. Run with -update to write the answers anew, and read
// the difference before you commit it.
//
//	OWNER: lease ID TTL                          grants a lease
//	OWNER: revoke ID
//	OWNER: lock NAME lease=ID [shared] [permits=N] [wait] [value=TEXT]
//	OWNER: unlock NAME lease=ID token=N
//	OWNER: cancel NAME lease=ID token=N
//	OWNER: put KEY VALUE [lease=ID] [holds=LOCK/TOKEN] [unchanged=REVISION]
//	OWNER: txn [if COMPARISON, ...] [then STEP, ...] [else STEP, ...]      see txnOf
//	OWNER: limits txn_bytes=N changes=N          smaller limits
//	leader: compact REVISION
//	leader: expire ID... [term=N]                the leader's clock passed the deadlines
//	leader: term N                               a new leader
//	watch PREFIX from=REVISION
//	show NAME                                    the queue of a lock
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			got := play(t, string(b))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			require.Equal(t, string(b), got)
		})
	}
}

// scenario is one history under way.
type scenario struct {
	m    *machine.Machine
	next uint64
	term uint64
}

// play writes a history with the machine's answers.
func play(t *testing.T, text string) string {
	s := &scenario{m: machine.New(), term: 1}
	var out strings.Builder
	skip := false // the answer in the file
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "----":
			fmt.Fprintf(&out, "----\n%s", untagged(s.answer(t, last)))
			skip = true
		case line == "":
			skip = false
			out.WriteString("\n")
		case !skip:
			last = line
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// untagged shows the leases 1 to 9 in keys of claims by their ids.
func untagged(text string) string {
	for id := coord.LeaseID(1); id < 10; id++ {
		text = strings.ReplaceAll(text, coord.LockKey("", id), fmt.Sprintf("/%d", id))
	}
	return text
}

func (s *scenario) answer(t *testing.T, line string) string {
	words := strings.Fields(line)
	switch words[0] {
	case "watch":
		return s.watch(t, words[1], number(t, argument(words, "from")))
	case "show":
		return s.show(words[1])
	}
	owner := strings.TrimSuffix(words[0], ":")
	require.NotEqual(t, owner, words[0], line)
	if words[1] == "term" {
		s.term = uint64(number(t, words[2]))
		return fmt.Sprintf("term %d begins\n", s.term)
	}
	s.next++
	r, e := coordtest.Apply(s.m, s.next, s.term, coordtest.Command(owner, s.operation(t, words[1], words[2:])))
	return describe(r, e)
}

// operation reads the command of one line.
func (s *scenario) operation(t *testing.T, verb string, words []string) proto.Message {
	if verb == "txn" {
		return txnOf(t, words)
	}
	id := func(text string) coord.LeaseID { return coord.LeaseID(number(t, text)) }
	lease, token := id(argument(words, "lease")), coord.Token(number(t, argument(words, "token")))
	switch verb {
	case "lease":
		ttl, err := time.ParseDuration(words[1])
		require.NoError(t, err)
		return &apiv1.LeaseGrantRequest{Id: int64(id(words[0])), TtlMs: ttl.Milliseconds()}
	case "revoke":
		return &apiv1.LeaseRevokeRequest{Id: int64(id(words[0]))}
	case "unlock":
		return &apiv1.UnlockRequest{Name: words[0], LeaseId: int64(lease), FencingToken: int64(token)}
	case "cancel":
		return &coordv1.Cancel{Name: words[0], Lease: int64(lease), Token: int64(token)}
	case "lock":
		return lockOf(t, words)
	case "put":
		return putOf(t, words)
	case "compact":
		return &coordv1.Compact{Revision: number(t, words[0])}
	case "limits":
		limits := s.m.Limits()
		limits.TxnBytes, limits.Changes = uint32(number(t, argument(words, "txn_bytes"))), uint32(number(t, argument(words, "changes")))
		return &coordv1.Configure{Limits: limits.Message()}
	case "expire":
		o := &coordv1.Expire{Term: s.term}
		if term := argument(words, "term"); term != "" {
			o.Term = uint64(number(t, term))
		}
		for _, word := range words {
			if l, ok := s.m.Lease(id(word)); ok {
				o.Leases = append(o.Leases, &coordv1.LeaseRef{Id: int64(l.ID), Granted: l.Granted})
			}
		}
		return o
	}
	require.Fail(t, "no such command", verb)
	return nil
}

func lockOf(t *testing.T, words []string) proto.Message {
	o := &apiv1.LockRequest{
		TimeoutMs: -1, Name: words[0], LeaseId: number(t, argument(words, "lease")), Permits: uint32(number(t, argument(words, "permits"))),
		Metadata: []byte(argument(words, "value")),
	}
	if o.Permits > 0 {
		o.Mode = apiv1.ShareMode_SHARE_MODE_PERMIT
	}
	if slices.Contains(words, "shared") {
		o.Mode = apiv1.ShareMode_SHARE_MODE_SHARED
	}
	if slices.Contains(words, "wait") {
		return o
	}
	return &apiv1.TryLockRequest{Name: o.Name, LeaseId: o.LeaseId, Mode: o.Mode, Permits: o.Permits, Metadata: o.Metadata}
}

func putOf(t *testing.T, words []string) proto.Message {
	o := &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coordtest.Put(words[0], words[1], coord.LeaseID(number(t, argument(words, "lease"))))}}
	if holds := argument(words, "holds"); holds != "" {
		lock, token, _ := strings.Cut(holds, "/")
		o.Compare = append(o.Compare, coordtest.IfHolds(lock, coord.Token(number(t, token))))
	}
	if mod := argument(words, "unchanged"); mod != "" {
		o.Compare = append(o.Compare, coordtest.IfRevision(words[0], coord.Revision(number(t, mod))))
	}
	return o
}

// argument returns VALUE of NAME=VALUE, or "".
func argument(words []string, name string) string {
	for _, word := range words {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}

// number reads a number; "" and NAME=VALUE count as 0.
func number(t *testing.T, text string) int64 {
	if text == "" || strings.Contains(text, "=") {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// describe returns a result and its effects as text.
func describe(r ops.Result, e machine.ApplyEffects) string {
	var b strings.Builder
	switch {
	case r.Err != nil:
		fmt.Fprintf(&b, "refused: %s, %s: %s\n", fault.KindOf(r.Err), fault.FieldOf(r.Err), fault.Message(r.Err))
		return b.String()
	case r.Txn.Failed > 0 || len(r.Txn.Steps) > 1 || len(r.Txn.Steps) == 1 && r.Txn.Steps[0].Keys != nil:
		b.WriteString(describeTxn(r.Txn))
	case r.TTL > 0:
		fmt.Fprintf(&b, "lease %d lives %v\n", r.Lease, time.Duration(r.TTL)*time.Millisecond)
	case r.Lock.Granted:
		fmt.Fprintf(&b, "holds with token %d, claimed %d times\n", r.Lock.Token, r.Lock.Count)
	case r.Lock.Position > 0:
		fmt.Fprintf(&b, "waits with token %d at position %d behind %s\n", r.Lock.Token, r.Lock.Position, r.Lock.Predecessor)
	case r.Lock.Key != "" && r.Lock.Token == 0:
		fmt.Fprintf(&b, "not granted: behind %s\n", r.Lock.Predecessor)
	case r.Lock.Key != "":
		fmt.Fprintf(&b, "given back\n")
	default:
		fmt.Fprintf(&b, "done\n")
	}
	for _, event := range e.Events {
		b.WriteString(eventLine(event))
	}
	for _, id := range e.Ended {
		fmt.Fprintf(&b, "  lease %d ends\n", id)
	}
	for _, g := range e.Grants {
		fmt.Fprintf(&b, "  lease %d comes to hold %s with token %d\n", g.Lease, g.Lock, g.Token)
	}
	return b.String()
}

func eventLine(e coord.Event) string {
	switch {
	case e.Deletes():
		return fmt.Sprintf("  @%d delete %s\n", e.Revision, e.Key)
	case e.KV.LockClaim != nil:
		return fmt.Sprintf("  @%d claim %s\n", e.Revision, e.Key)
	}
	return fmt.Sprintf("  @%d put %s = %s\n", e.Revision, e.Key, e.KV.Value)
}

func (s *scenario) watch(t *testing.T, prefix string, from int64) string {
	batch, err := s.m.Events(coord.Watch{Span: coord.Under(prefix), From: coord.Revision(from), Prev: true})
	require.NoError(t, err)
	var b strings.Builder
	for _, event := range batch.Events {
		b.WriteString(eventLine(event))
	}
	fmt.Fprintf(&b, "next is %d\n", batch.Next)
	return b.String()
}

func (s *scenario) show(name string) string {
	info, ok := s.m.Lock(name)
	if !ok {
		return "free\n"
	}
	var b strings.Builder
	for _, kv := range info.Holding {
		fmt.Fprintf(&b, "%s holds: token %d, lease %d%s\n", kv.LockClaim.Holder, kv.Token(), kv.Lease, valueOf(kv))
	}
	for _, kv := range info.Waiting {
		fmt.Fprintf(&b, "%s waits: token %d, lease %d%s\n", kv.LockClaim.Holder, kv.Token(), kv.Lease, valueOf(kv))
	}
	return b.String()
}

func valueOf(kv *coord.KeyValue) string {
	if len(kv.LockClaim.Metadata) == 0 {
		return ""
	}
	return ", says " + string(kv.LockClaim.Metadata)
}
