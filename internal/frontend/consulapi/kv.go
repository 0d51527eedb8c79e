package consulapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// keyOf returns the key in the path of a request, which without a name selects all keys.
func keyOf(r *request, all bool) (string, error) {
	key := r.PathValue("key")
	switch {
	case key == "" && !all:
		return "", fault.New("", fault.Invalid, "Missing key name")
	case strings.Contains(key, mark):
		return "", fault.Invalidf("key", nil, "must not contain a zero byte")
	}
	return key, nil
}

// one refuses parameters that exclude each other.
func (r *request) one(names ...string) error {
	given := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !r.has(name) })
	if len(given) > 1 {
		return fault.New("", fault.Invalid, "Conflicting flags: %s", strings.Join(given, " & "))
	}
	return nil
}

// number reads a parameter that is a number of 64 bits; 0 without it.
func (r *request) number(name string) (n uint64, err error) {
	if text := r.values.Get(name); text != "" {
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, fault.Invalidf(name, text, "must be a number from 0 to 2^64-1")
		}
	}
	return n, nil
}

// reading is what a query read of keys.
type reading struct {
	kvs   []*apiv1.KeyVal
	list  []*entry // that exist
	index int64
	at    int64 // revision of the answer
}

// look reads the keys of a query. The index of a key, or of a prefix with keys, is that of its last change, and otherwise that of the group.
func (s *Server) look(ctx context.Context, span coord.Span, h how) (out reading, err error) {
	if out.kvs, out.at, err = s.read(ctx, span, h); err != nil {
		return out, err
	}
	for _, e := range s.entries(out.kvs) {
		if e.exists {
			out.list, out.index = append(out.list, e), max(out.index, e.modified)
		}
	}
	if len(out.list) == 0 {
		out.index = out.at
	}
	return out, nil
}

// getKey answers keys, and waits first for a change if the client knows the present ones.
func (s *Server) getKey(r *request) error {
	prefix := r.has("recurse") || r.has("keys")
	key, err := keyOf(r, prefix)
	if err == nil {
		err = r.one("recurse", "keys")
	}
	if err != nil {
		return err
	}
	span, h := s.span(key, prefix), how{local: r.has("stale") && r.index == 0, keysOnly: r.has("keys")}
	ctx, cancel := bounded(r)
	defer cancel()
	out, err := s.look(ctx, span, h)
	if err != nil {
		return err
	}
	if r.index > 0 && out.index <= r.index && r.index <= out.at { // an index from the future is told the present one
		if out, err = s.await(r, span, h, out, prefix); err != nil {
			return err
		}
	}
	switch {
	case len(out.list) == 0:
		s.header(r, out.index)
		s.write(r, http.StatusNotFound, "text/plain; charset=utf-8", nil)
		return nil
	case r.has("keys"):
		return s.answer(r, out.index, names(out.list, key, r.values.Get("separator")))
	case r.has("raw") && len(out.list) == 1:
		s.header(r, out.index)
		r.w.Header().Set("Content-Security-Policy", "sandbox")
		s.write(r, http.StatusOK, "text/plain; charset=utf-8", out.list[0].value)
		return nil
	}
	pairs := make([]pair, len(out.list))
	for n, e := range out.list {
		pairs[n] = e.pair()
	}
	return s.answer(r, out.index, pairs)
}

// names lists keys up to the separator after a prefix, each once.
func names(list []*entry, prefix, separator string) []string {
	out := []string{}
	for _, e := range list {
		name := e.key
		if at := strings.Index(name[len(prefix):], separator); separator != "" && at >= 0 {
			name = name[:len(prefix)+at+len(separator)]
		}
		if len(out) == 0 || out[len(out)-1] != name {
			out = append(out, name)
		}
	}
	return out
}

// errChanged ends a watch at its first event.
var errChanged = errors.New("changed")

// await waits until keys change after the index that the client has. Deletions and ends of sessions count, which no entry tells: they are events
// after that index. If the history does not reach back so far, the client gets the present state at once. Without a change the index stays the client's.
func (s *Server) await(r *request, span coord.Span, h how, seen reading, prefix bool) (reading, error) {
	release, err := s.watches.Take(r.Context(), "consulapi.await")
	if err != nil {
		return seen, err
	}
	defer release()
	// The request has arrived, so the bound on reading it must not end the wait.
	_ = http.NewResponseController(r.w).SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(r.Context(), r.wait)
	defer cancel()
	from := r.index + 1
	if !prefix && len(seen.list) > 0 { // its own index tells of all changes so far
		from = seen.at + 1
	}
	changed := int64(0)
	w := coord.Watch{Span: span, From: coord.Revision(from)}
	err = s.Service.Watch(ctx, w.Request(), func(b *apiv1.WatchKeysResponse) error {
		for _, e := range w.Batch(b).Events {
			if !strings.HasSuffix(e.Key, slowMark) {
				changed = int64(e.Revision)
				return errChanged
			}
		}
		return nil
	})
	compacted := new(coord.Compacted)
	switch {
	case errors.As(err, &compacted):
		changed = int64(compacted.Current)
	case changed == 0 && ctx.Err() != nil:
		seen.index = r.index
		return seen, nil
	case changed == 0:
		return seen, err
	}
	h.local = false // it must include the event
	fresh, cancel := bounded(r)
	defer cancel()
	out, err := s.look(fresh, span, h)
	if out.index <= r.index {
		out.index = changed
	}
	return out, err
}

// putKey sets a key, if its state allows what the client asks for.
func (s *Server) putKey(r *request) error {
	key, err := keyOf(r, false)
	if err == nil {
		err = r.one("cas", "acquire", "release")
	}
	if err != nil {
		return err
	}
	flags, err := r.number("flags")
	if err != nil {
		return err
	}
	index, err := r.number("cas")
	if err != nil {
		return err
	}
	id := parseSession(r.values.Get("acquire") + r.values.Get("release"))
	if (r.has("acquire") || r.has("release")) && id == (sessionID{}) {
		return errSession(r.values.Get("acquire") + r.values.Get("release"))
	}
	value, release, err := s.body(r, maxValue)
	if err != nil {
		return err
	}
	defer release()
	return s.changeOne(r, key, func(e *entry) error {
		switch {
		case r.has("acquire"):
			return e.acquire(id, value, flags)
		case r.has("release"):
			return e.release(id, value, flags)
		case r.has("cas"):
			if err := e.cas(int64(index)); err != nil {
				return err
			}
		}
		e.set(value, flags)
		return nil
	})
}

// changeOne changes a key, and answers whether its state allowed it.
func (s *Server) changeOne(r *request, key string, change func(*entry) error) error {
	ctx, cancel := bounded(r)
	defer cancel()
	revision, err := s.change(ctx, func(l *ledger) error {
		e, err := l.get(key)
		if err == nil {
			err = change(e)
		}
		return err
	})
	var no refused
	if err != nil && !errors.As(err, &no) {
		return err
	}
	return s.answer(r, revision, err == nil)
}

// deleteKey deletes a key, or all keys with a prefix.
func (s *Server) deleteKey(r *request) error {
	key, err := keyOf(r, r.has("recurse"))
	if err == nil {
		err = r.one("cas", "recurse")
	}
	if err != nil {
		return err
	}
	if r.has("recurse") {
		ctx, cancel := bounded(r)
		defer cancel()
		a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coord.Under(s.group(key)).DeleteStep()}}))
		if err != nil {
			return err
		}
		return s.answer(r, a.GetTxn().GetHeader().GetRevision(), true)
	}
	index, err := r.number("cas")
	if err != nil {
		return err
	}
	return s.changeOne(r, key, func(e *entry) error {
		if r.has("cas") && e.exists {
			if index == 0 {
				return refused("index 0 deletes no key")
			}
			if err := e.cas(int64(index)); err != nil {
				return err
			}
		}
		e.remove()
		return nil
	})
}
