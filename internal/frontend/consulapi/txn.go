package consulapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxOps bounds the operations of a transaction, as in Consul.
const maxOps = 128

// txnOp is an operation of a transaction. Node, Service and Check are those of the catalog, which this front does not
// change so.
type txnOp struct {
	KV *struct {
		Verb, Key string
		Value     []byte
		Flags     uint64
		Index     int64
		Session   string
		Namespace string
		Partition string
	}
	Node, Service, Check, Session any
}

// txnResult is a result of a transaction.
type txnResult struct{ KV pair }

// txnError says why an operation refused the transaction.
type txnError struct {
	OpIndex int
	What    string
}

type txnAnswer struct {
	Results []txnResult
	Errors  []txnError
}

// txnRead is the answer to a transaction that changes nothing.
type txnRead struct {
	txnAnswer
	Index       int64
	LastContact int
	KnownLeader bool
}

// txn executes operations of keys all together, or none of them, and then says of each why.
func (s *Server) txn(r *request) error {
	text, release, err := s.body(r, maxTxn)
	if err != nil {
		return err
	}
	defer release()
	var ops []txnOp
	if err := decode(text, &ops); err != nil {
		return err
	}
	if len(ops) > maxOps {
		return fault.New("", fault.TooLarge, "Transaction contains too many operations (%d > %d)", len(ops), maxOps)
	}
	for n, op := range ops {
		if op.KV == nil {
			return fault.Invalidf(fmt.Sprintf("[%d]", n), nil, "is no operation of KV, and the others are not supported here")
		}
		if len(op.KV.Value) > maxValue {
			return fault.New("", fault.TooLarge, "Value for key %q is too large (%d > %d bytes)", op.KV.Key, len(op.KV.Value), maxValue)
		}
	}
	var results []*entry
	var failed []txnError
	revision, changed, err := s.change(r, func(l *ledger) error {
		results, failed = nil, nil
		for n, op := range ops { // before anything else, as in Consul
			if strings.ToLower(op.KV.Verb) != "lock" {
				continue
			}
			if e, err := l.get(op.KV.Key); err == nil && e.session == (sessionID{}) && e.delayed {
				failed = append(failed, txnError{n, fmt.Sprintf("failed to lock key %q due to lock delay", op.KV.Key)})
			}
		}
		if len(failed) > 0 {
			return refused("the transaction")
		}
		for n := range ops {
			some, err := l.do(&ops[n])
			var no refused
			if errors.As(err, &no) {
				failed = append(failed, txnError{n, fmt.Sprintf("failed to operate on key %q: %s", ops[n].KV.Key, no)})
			} else if err != nil {
				return err
			}
			results = append(results, some...)
		}
		if len(failed) > 0 {
			return refused("the transaction")
		}
		return nil
	})
	r.reads = !changed
	if errors.Is(err, errNoSession) { // one of them has ended meanwhile
		for n, op := range ops {
			if strings.ToLower(op.KV.Verb) == "lock" {
				failed = append(failed, txnError{n, fmt.Sprintf("failed to operate on key %q: %v", op.KV.Key, err)})
			}
		}
	}
	if len(failed) > 0 && err != nil {
		return s.answerCode(r, http.StatusConflict, revision, txnAnswer{Errors: failed})
	}
	if err != nil {
		return err
	}
	out := txnAnswer{Results: []txnResult{}}
	for _, e := range results {
		if !e.exists {
			e.created, e.modified = 0, 0
		} else if e.modified < 0 { // changed here
			if e.modified = revision; e.created == 0 {
				e.created = revision
			}
		}
		out.Results = append(out.Results, txnResult{e.pair()})
	}
	if r.reads {
		return s.answer(r, revision, txnRead{txnAnswer: out, Index: revision, KnownLeader: s.Led()})
	}
	return s.answer(r, revision, out)
}

// do executes an operation in the ledger, and returns the entries of its result.
func (l *ledger) do(op *txnOp) ([]*entry, error) {
	o := op.KV
	verb := strings.ToLower(o.Verb)
	if verb == "get-tree" || verb == "delete-tree" {
		return l.tree(o.Key, verb == "delete-tree")
	}
	e, err := l.get(o.Key)
	if err != nil {
		return nil, err
	}
	id := parseSession(o.Session)
	if (verb == "lock" || verb == "unlock") && o.Session == "" {
		return nil, refused("missing session")
	}
	shown := func(value bool) []*entry {
		as := *e
		if !value {
			as.value = nil
		}
		return []*entry{&as}
	}
	var no error
	switch verb {
	case "set":
		e.put(o.Value, o.Flags)
	case "cas":
		if no = e.cas(o.Index); no == nil {
			e.put(o.Value, o.Flags)
		}
	case "lock":
		if id != (sessionID{}) && e.session != id { // the group learns of it from a key that the ledger leaves to it alone
			if _, err := l.s.lease(l.ctx, id.lease()); fault.KindOf(err) == fault.NotFound {
				return nil, refused(errNoSession.Error())
			}
		}
		if no = e.acquire(o.Session, o.Value, o.Flags); no != nil {
			no = refused(no.Error())
		}
	case "unlock":
		no = e.release(id, o.Value, o.Flags)
	case "get", "get-or-empty":
		e.exact = true
		if !e.exists && verb == "get" {
			no = refused("key doesn't exist")
		}
		return shown(true), no
	case "check-index":
		if no = e.cas(o.Index); o.Index == 0 && no == nil {
			no = refused("key doesn't exist")
		}
	case "check-session":
		if e.exact = true; !e.exists {
			no = refused("key doesn't exist")
		} else if e.session.String() != o.Session {
			no = refused("current session does not match")
		}
	case "check-not-exists":
		if e.exact = true; e.exists {
			no = refused("key exists")
		}
		return nil, no
	case "delete":
		e.remove()
		return nil, nil
	case "delete-cas":
		if no = e.cas(o.Index); no == nil || !e.exists {
			e.remove()
			return nil, nil
		}
	default:
		return nil, refused(fmt.Sprintf("unknown KV verb %q", o.Verb))
	}
	return shown(false), no
}

// tree reads or deletes all keys with a prefix.
func (l *ledger) tree(prefix string, remove bool) (out []*entry, err error) {
	span := l.s.span(prefix, true)
	kvs, err := l.read(span, pageBytes)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(l.trees, span) {
		l.trees = append(l.trees, span)
	}
	for _, e := range l.s.entries(kvs) {
		if l.entries[e.key] == nil {
			l.add(e, []*entry{e})
		}
	}
	keys := slices.Clone(l.order)
	slices.Sort(keys)
	for _, key := range keys {
		e := &l.entries[key].now
		if e.exact = true; !e.exists || !strings.HasPrefix(key, prefix) {
			continue
		}
		if remove {
			e.remove()
			continue
		}
		as := *e
		out = append(out, &as)
	}
	return out, nil
}
