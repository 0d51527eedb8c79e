package consulapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// request is a request of a client with its parameters.
type request struct {
	*http.Request
	w      http.ResponseWriter
	values url.Values
	room   *access.Growing // for what is read and answered, until the handler returns
	index  int64           // that the client has; 0: it does not wait
	wait   time.Duration
	reads  bool // it changed nothing, whatever its method

	nodes map[string]nodeEntry // by name, of the instances that it answers
}

// has reports whether a parameter is there; its value does not count.
func (r *request) has(name string) bool { return r.values.Has(name) }

// take takes room for n bytes instead of what the request had. It waits until others have read.
func (r *request) take(n int) error { return r.room.To(r.Context(), n, patience) }

// giveBack gives the room back.
func (r *request) giveBack() { _ = r.take(0) }

// none refuses what is not in the default namespace and partition, in the body of a request.
func (r *request) none(in scope) error {
	for field, v := range map[string]string{"Namespace": in.Namespace, "Partition": in.Partition} {
		if v != "" && v != "default" {
			return fault.Invalidf(field, v, "must be default: there are no others")
		}
	}
	return nil
}

// misleads reports whether a parameter changes what a request does or selects: where it cannot, its client must know.
// All others have no effect there, as in Consul, whose library sends some with every request.
func misleads(parameter, value string) bool {
	switch parameter {
	case "acquire", "cas", "connect", "enable", "filter", "keys", "peer", "recurse", "release", "sg":
		return true
	}
	return parameter == "near" && value != "_agent"
}

// read checks the parameters of a request.
func (r *request) read(known []string) error {
	for name := range r.values {
		if misleads(name, r.values.Get(name)) && !slices.Contains(known, name) {
			return fault.Invalidf(name, nil, "is not supported here: leave it out")
		}
	}
	for _, name := range []string{"ns", "partition"} {
		if v := r.values.Get(name); v != "" && v != "default" {
			return fault.Invalidf(name, v, "must be default: there are no others")
		}
	}
	if dc := r.values.Get("dc"); dc != "" && dc != Datacenter {
		return errDatacenter
	}
	if !slices.Contains(known, "index") {
		return nil // it answers at once, whatever the client knows
	}
	if text := r.values.Get("index"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return fault.Invalidf("index", text, "must be a number: send X-Consul-Index from an answer")
		}
		r.index = n
	}
	r.wait = defaultWait
	if text := r.values.Get("wait"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return fault.Invalidf("wait", text, "needs a duration such as 30s")
		}
		r.wait = min(cmp.Or(d, defaultWait), maxWait)
	}
	return nil
}

// bounded bounds a call to the group.
func bounded(r *request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), answerWithin)
}

// body reads a body of at most some bytes. The release ends its use.
func (s *Server) body(r *request, most int64) (text []byte, release func(), err error) {
	size := most
	if n := r.ContentLength; 0 <= n && n <= most {
		size = n
	}
	if release, err = s.Bodies.TakeBytes(r.Context(), "consulapi", int(size), 0); err != nil {
		return nil, nil, err
	} else if release == nil {
		release = func() {}
	}
	text, err = io.ReadAll(http.MaxBytesReader(r.w, r.Body, most))
	if err != nil {
		release()
		if large := new(http.MaxBytesError); errors.As(err, &large) {
			return nil, nil, fault.New("", fault.TooLarge, "Request body too large, max size: %d bytes", most)
		}
		return nil, nil, fault.Invalidf("body", nil, "cannot be read: %w", err)
	}
	return text, release, nil
}

// object reads a JSON object as Consul does, whatever the case of its names, and without those that it does not know.
func (s *Server) object(r *request, into any) error {
	text, release, err := s.body(r, maxBody)
	if err != nil {
		return err
	}
	defer release()
	if len(text) == 0 {
		return nil
	}
	return decode(text, into)
}

func decode(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if err == nil || fault.FieldOf(err) != "" {
		return err
	}
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		return fault.Invalidf(cmp.Or(wrong.Field, "body"), nil, "must not be a JSON %s", wrong.Value)
	}
	return fault.Invalidf("body", nil, "is no JSON of this request: %w", err)
}
