package consulapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/access"
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
	count int      // entries that exist
	list  []*entry // all that exist; nil where there are too many to keep
	bytes int      // that the list takes
	index int64
	at    int64 // revision of the answer
}

// look reads the keys of a query, and keeps them if they are few. The index of a key, or of a prefix with keys, is
// that of its last change, and otherwise that of the group. A prefix takes room for a page first; a key has one value.
func (s *Server) look(r *request, span coord.Span, h how, prefix bool) (out reading, err error) {
	if prefix {
		h.before = func() error { return r.take(pageBytes) }
	}
	all := 0
	out.at, err = s.visit(r.Context(), span, h, func(e *entry) error {
		if !e.exists {
			return nil
		}
		out.count, out.index = out.count+1, max(out.index, e.modified)
		if all += len(e.key) + len(e.value); all > maxAnswer {
			return tooLarge()
		}
		if out.bytes += entryBytes + len(e.key) + len(e.value); out.bytes <= keptBytes {
			out.list = append(out.list, e)
		} else {
			out.list = nil
		}
		return nil
	})
	if out.count == 0 {
		out.index = out.at
	}
	return out, err
}

// getKey answers keys, and waits first for a change if the client knows the present ones.
func (s *Server) getKey(r *request) error {
	prefix := r.has("recurse") || r.has("keys")
	key, err := keyOf(r, prefix)
	if err != nil {
		return err
	}
	span, h := s.span(key, prefix), how{local: r.has("stale") && r.index == 0, keysOnly: r.has("keys")}
	out, err := s.look(r, span, h, prefix)
	if err != nil {
		return err
	}
	if r.index > 0 && out.index <= r.index && r.index <= out.at { // an index from the future is told the present one
		out.list = nil // it keeps nothing while it waits
		r.giveBack()
		changed, err := s.await(r, span, out, prefix)
		if err = cmp.Or(access.Revoked(r.Context()), err); err != nil {
			return err
		}
		h.local = false // it must include the event
		if out, err = s.look(r, span, h, prefix); err != nil {
			return err
		}
		switch {
		case changed > 0 && out.index <= r.index:
			out.index = changed
		case changed == 0 && (out.count == 0 || out.index <= r.index):
			out.index = r.index
		}
	}
	switch {
	case out.count == 0:
		s.header(r, out.index)
		s.write(r, http.StatusNotFound, "text/plain; charset=utf-8", nil)
		return nil
	case r.has("raw") && len(out.list) == 1 && !prefix:
		s.header(r, out.index)
		r.w.Header().Set("Content-Security-Policy", "sandbox")
		s.write(r, http.StatusOK, "text/plain; charset=utf-8", out.list[0].value)
		return nil
	}
	if out.list == nil || r.room.To(r.Context(), out.bytes, 0) != nil {
		out.list = nil // it keeps nothing while it waits for others
		r.giveBack()
		// It needs a page more than it keeps: readers that take nothing of their answers leave their caller room to look.
		if err = r.take(2 * pageBytes); err != nil {
			return err
		}
		_ = r.take(pageBytes)
	}
	return s.stream(r, out.index, func(put func(any) error) error {
		show := func(e *entry) error { return put(e.pair()) }
		if h.keysOnly {
			show = names(key, r.values.Get("separator"), put)
		}
		for _, e := range out.list {
			if err := show(e); err != nil {
				return err
			}
		}
		if out.list != nil {
			return nil
		}
		h.at = out.at
		_, err := s.visit(r.Context(), span, h, func(e *entry) error {
			if !e.exists {
				return nil
			}
			return show(e)
		})
		return err
	})
}

// names lists keys up to the separator after a prefix, each once.
func names(prefix, separator string, put func(any) error) func(*entry) error {
	last, any := "", false
	return func(e *entry) error {
		name := e.key
		if at := strings.Index(name[len(prefix):], separator); separator != "" && at >= 0 {
			name = name[:len(prefix)+at+len(separator)]
		}
		if any && name == last {
			return nil
		}
		last, any = name, true
		return put(name)
	}
}

// errChanged ends a watch at its first event.
var errChanged = errors.New("changed")

// await waits until keys change after the index that the client has, and returns the revision; 0: they did not.
// Deletions and ends of sessions count, which no entry tells: they are events after that index. If the history does not
// reach back so far, the present state is news.
func (s *Server) await(r *request, span coord.Span, seen reading, prefix bool) (changed int64, err error) {
	release, err := s.watches.Take(r.Context(), "consulapi.await")
	if err != nil {
		return 0, err
	}
	defer release()
	// The request has arrived, so the bound on reading it must not end the wait.
	_ = http.NewResponseController(r.w).SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(r.Context(), r.wait)
	defer cancel()
	from := r.index + 1
	if !prefix && seen.count > 0 && seen.index == r.index { // its own index tells of all changes so far: none
		from = seen.at + 1
	}
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
		return int64(compacted.Current), nil
	case changed > 0 || ctx.Err() != nil:
		return changed, nil
	}
	return 0, err
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
	of := r.values.Get("acquire") + r.values.Get("release")
	if of == "" && r.has("release") {
		return errMissing
	}
	value, release, err := s.body(r, maxValue)
	if err != nil {
		return err
	}
	defer release()
	return s.changeOne(r, key, func(e *entry) error {
		switch {
		case r.has("acquire"):
			return e.acquire(of, value, flags)
		case r.has("release"):
			return e.release(parseSession(of), value, flags)
		case r.has("cas"):
			if err := e.cas(int64(index)); err != nil {
				return err
			}
		}
		e.put(value, flags)
		return nil
	})
}

// changeOne changes a key, and answers whether its state allowed it.
func (s *Server) changeOne(r *request, key string, change func(*entry) error) error {
	revision, _, err := s.change(r, func(l *ledger) error {
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

// deleteTree deletes all keys of a span. The marks of delays that run stay.
func (s *Server) deleteTree(r *request, span coord.Span) error {
	ctx, cancel := bounded(r)
	defer cancel()
	for range maxTries {
		txn, from := &apiv1.TxnRequest{}, span.From
		_, err := s.visit(ctx, span, how{keysOnly: true}, func(e *entry) error {
			if e.slowMod == 0 {
				return nil
			}
			name := s.group(e.key)
			txn.Compare = append(txn.Compare, coord.WhileAt(name+slowMark, coord.Revision(e.slowMod)), coord.WhileAt(name+heldMark, coord.Revision(e.heldMod)))
			if e.heldMod == 0 { // nobody holds it any more
				txn.Then = append(txn.Then, coord.Span{From: from, To: name + slowMark}.DeleteStep())
				from = name + slowMark + "\x00"
			}
			return nil
		})
		if err != nil {
			return err
		}
		txn.Then = append(txn.Then, coord.Span{From: from, To: span.To}.DeleteStep())
		a, err := s.Service.Execute(ctx, coord.CommandOf("", txn))
		if err != nil {
			return err
		}
		if a.GetTxn().GetSucceeded() {
			return s.answer(r, a.GetTxn().GetHeader().GetRevision(), true)
		}
	}
	return errContended
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
		return s.deleteTree(r, s.span(key, true))
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
