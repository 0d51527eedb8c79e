package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// answerWithin bounds every call to the group beside the time that it may wait for a lock: who
// asks a group without a leader is told so, in time.
const answerWithin = 10 * time.Second

// Coordination are the parts of the coordination plane; all of them are required.
type Coordination struct {
	Actor    coord.Actor
	Reader   coord.Reader
	Overseer coord.Overseer

	// Owner tells on whose behalf a request is, or why it may not be.
	Owner func(r *http.Request) (string, error)
}

// call is a request to the coordination plane.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	owner string
}

// planeHandler answers a call, or returns why not. Its context ends when the client goes or
// the server closes, and is for the handler to bound.
type planeHandler func(ctx context.Context, c call) error

// plane makes a handler of the server: it finds out who calls, and writes the error.
func (s *Server) plane(h planeHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, err := s.Coordination.Owner(r)
		if err == nil {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(s.closing, cancel)()
			err = h(ctx, call{w, r, owner})
		}
		if err != nil {
			s.refuse(w, err)
		}
	})
}

// planeError is an error of the coordination plane in the one form.
type planeError struct {
	errorBody
	Missing string `json:"missing,omitempty"` // what the group is without
}

// refuse writes an error in the words of the coordination plane.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	kind := fault.KindOf(err)
	if s.closing.Err() != nil && (kind == fault.Canceled || kind == fault.Unavailable) {
		writeError(w, fault.New("httpapi", fault.Unavailable, "the peer is shutting down"))
		return
	}
	code, body := bodyOf(err)
	answer := planeError{errorBody: body}
	switch body.Field { // as this API has it
	case "lease":
		answer.Field = "lease_id"
	case "token":
		answer.Field = "fencing_token"
	}
	switch kind {
	case fault.NotFound:
		answer.Error = "not_found"
	case fault.Exists:
		answer.Error = "already_exists"
	case fault.Unavailable, fault.Timeout:
		if g := s.state(); g.Missing != "" || kind == fault.Unavailable {
			code, answer.Error, answer.Missing = http.StatusServiceUnavailable, "no_quorum", g.Missing
		}
	}
	writeJSON(w, code, answer)
}

// state is that of the group, as far as it is known soon.
func (s *Server) state() coord.GroupState {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	g, err := s.Coordination.Overseer.Group(ctx)
	if err != nil {
		g.Missing = fault.Message(err)
	}
	return g
}

// do executes a command for the owner of a call.
func (s *Server) do(ctx context.Context, c call, op coord.Op) (coord.Result, headerBody, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	r, h, err := s.Coordination.Actor.Do(ctx, coord.Command{Owner: c.owner, Op: op})
	return r, fromHeader(h), err
}

// group tells how the group stands, with the status of an error while it cannot serve.
func (s *Server) group(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	g, err := s.Coordination.Overseer.Group(ctx)
	if err != nil {
		return err
	}
	if g.Voters == nil {
		g.Voters = []coord.Member{}
	}
	if g.Learners == nil {
		g.Learners = []coord.Member{}
	}
	if g.Missing == "" {
		writeJSON(c.w, http.StatusOK, g)
		return nil
	}
	writeJSON(c.w, http.StatusServiceUnavailable, struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		coord.GroupState
	}{"no_quorum", g.Missing, g})
	return nil
}

// headerBody is a header; the ids have more digits than a number of JavaScript.
type headerBody struct {
	Cluster  uint64         `json:"cluster_id,string"`
	Member   uint64         `json:"member_id,string"`
	Revision coord.Revision `json:"revision"`
	Term     uint64         `json:"raft_term"`
}

func fromHeader(h coord.Header) headerBody {
	return headerBody{Cluster: h.Group, Member: h.Member, Revision: h.Revision, Term: h.Term}
}

// leaseID is the id of a lease: a string, for the same reason.
type leaseID coord.LeaseID

// MarshalJSON implements json.Marshaler.
func (id leaseID) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(id), 10)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (id *leaseID) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err == nil {
		*id, err = parseLeaseID(text)
	}
	if err != nil {
		return &json.UnmarshalTypeError{Value: string(b)} // which names the field
	}
	return nil
}

func parseLeaseID(text string) (leaseID, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fault.Invalidf("lease_id", input.Shown(text), "must be a number above 0, in a string")
	}
	return leaseID(n), nil
}

// decode reads a body that is one JSON object into v, and knows every field of it.
func decode(c call, v any) error {
	body, err := readBody(c.w, c.r)
	if err != nil {
		return err
	}
	return input.Object(body, v)
}
