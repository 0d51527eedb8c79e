package httpapi

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const (
	// answerWithin bounds each call to the group, besides a wait for a lock or a requirement. A client of a group without
	// a leader thus gets an error in time.
	answerWithin = 10 * time.Second

	maxWait    = 30 * 24 * time.Hour // caps timeout_ms
	maxTxnBody = 6 << 20             // bytes: the group's bound on a transaction, in base64 and with names
	maxBackups = 2                   // downloads at a time: each reads the whole state of the group
)

// Coordination holds the parts of the coordination plane. All are required.
type Coordination struct {
	Calls  grpcapi.Calls // for the caller in the context
	Reader coord.Service // for requirements and events
}

// coordinationAPI handles the routes of the coordination plane. Most are calls of gRPC, bound to paths by the schema.
type coordinationAPI struct {
	*shared
	Coordination
}

func (p *coordinationAPI) routes() []route {
	routes := []route{
		{pattern: "GET /v1/coordination/requirements", role: access.RoleReadOnly, serve: p.serve(p.listRequirements)},
		{pattern: "GET /v1/coordination/requirements/{id}", role: access.RoleReadOnly, asks: true, waits: true, serve: p.serve(p.getRequirement)},
		{pattern: "PUT /v1/coordination/requirements/{id}", role: access.RoleService, serve: p.serve(p.setRequirement)},
		{pattern: "DELETE /v1/coordination/requirements/{id}", role: access.RoleService, serve: p.serve(p.deleteRequirement)},
		{pattern: "PUT /v1/coordination/keys/{key}", role: access.RoleService, asks: true, serve: p.serve(p.putKey)},
		{pattern: "DELETE /v1/coordination/keys/{key}", role: access.RoleService, asks: true, serve: p.serve(p.deleteKey)},
	}
	for _, c := range p.calls() {
		serve, waits := p.answer, c.Descriptor.Input().Fields().ByName("timeout_ms") != nil
		switch c.Descriptor.Name() {
		case "Watch":
			serve, waits = p.watchKeys, true
		case "Backup":
			serve, waits = p.backUp, true
		}
		routes = append(routes, route{pattern: c.Pattern, role: grpcapi.Need(c.Method), asks: c.Asks, waits: waits, serve: p.call(&c, serve)})
	}
	return routes
}

func (p *coordinationAPI) calls() []transcode.Call {
	var all []transcode.Call
	for _, service := range p.Calls.Services() {
		all = append(all, transcode.Of(p.Calls, service, nil, nil)...)
	}
	return all
}

// serve serves requests of which the context ends when the client leaves or the server closes.
func (p *coordinationAPI) serve(h func(ctx context.Context, w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := p.untilClosing(r.Context())
		defer cancel()
		if err := h(ctx, w, r); err != nil {
			p.writeError(w, p.orClosing(err))
		}
	})
}

// calling is a call of gRPC with its request over HTTP.
type calling struct {
	*transcode.Call
	w   http.ResponseWriter
	r   *http.Request
	req proto.Message
}

// call serves a call of gRPC.
func (p *coordinationAPI) call(c *transcode.Call, answer func(context.Context, calling) error) http.Handler {
	return p.serve(func(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
		var body []byte
		if c.Body {
			most := int64(maxBody)
			if c.Descriptor.Name() == "Txn" {
				most = maxTxnBody
			}
			var err error
			if body, err = readUpTo(w, r, most); err != nil {
				return err
			}
		}
		req, err := c.Request(r, body)
		if err != nil {
			return err
		}
		return answer(ctx, calling{c, w, r, req})
	})
}

// answer answers with the only message of a call.
func (p *coordinationAPI) answer(ctx context.Context, c calling) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	ctx, room := budget.Growing(ctx, p.answers, "httpapi")
	defer func() { _ = room.To(ctx, 0, 0) }()
	var resp proto.Message
	err := c.Run(ctx, c.req, func(m proto.Message) error { resp = m; return nil })
	if err == nil {
		err = absent(c, resp)
	} else if c.Descriptor.Name() == "Unlock" && fault.KindOf(err) == fault.NotFound {
		err = fault.As("httpapi.unlock", fault.Conflict, err) // the client wrongly believes that it holds the lock
	}
	if err != nil {
		return err
	}
	code := http.StatusOK
	if g, ok := resp.(*api.GroupResponse); ok && g.GetMissing() != "" {
		code = http.StatusServiceUnavailable
	}
	_ = room.To(ctx, min(proto.Size(resp), room.Occupied()), 0) // less never fails
	return writeMessage(c.w, code, resp, room.Occupied())
}

// bounded bounds the time of a call: answerWithin, after the wait that the request asks for.
func (c calling) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	w, ok := c.req.(interface{ GetTimeoutMs() int64 })
	if !ok || w.GetTimeoutMs() == 0 {
		return context.WithTimeout(ctx, answerWithin)
	}
	// The request has arrived, so the bound on reading it must not end the wait.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	if w.GetTimeoutMs() < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, answerWithin+time.Duration(min(w.GetTimeoutMs(), maxWait.Milliseconds()))*time.Millisecond)
}

// absent returns NotFound if the object in the path does not exist, where the answer of gRPC is empty.
func absent(c calling, resp proto.Message) error {
	switch m := resp.(type) {
	case *api.LeaseKeepAliveResponse:
		if m.GetTtlMs() == 0 {
			return fault.Refused(fault.NotFound, "lease", "is unknown or belongs to another client: grant a new lease")
		}
	case *api.RangeResponse:
		if len(c.Path()) > 0 && len(m.GetKvs()) == 0 {
			return fault.Refused(fault.NotFound, "key", "does not exist at revision %d", m.GetRevision())
		}
	}
	return nil
}

// writeMessage writes an answer, a long one element by element. The budget holds the message, of which it
// has some bytes already, and the text of its largest element, at most of a value.
func writeMessage(w http.ResponseWriter, code int, m proto.Message, reserved int) error {
	size := proto.Size(m)
	if size > pieceBytes && code == http.StatusOK {
		release, err := reserve(w, size-reserved+2*min(size, coord.MaxValue), 0)
		if err != nil {
			return err
		}
		defer release()
		return writePieces(w, 0, func(put func([]byte)) error { return transcode.Pieces(m, put) })
	}
	text, err := transcode.JSON(m)
	if err != nil {
		return fault.As("httpapi", fault.Internal, err)
	}
	write(w, code, append(text, '\n'))
	return nil
}

// planeError is an error of the coordination plane.
type planeError struct {
	errorBody
	Missing string `json:"missing,omitempty"` // reason why the group cannot serve
}

// writeError writes an error with the names of this plane.
func (p *coordinationAPI) writeError(w http.ResponseWriter, err error) {
	code, body := bodyOf(err)
	answer := planeError{errorBody: body}
	switch body.Field {
	case "lease":
		answer.Field = "lease_id"
	case "token":
		answer.Field = "fencing_token"
	case "at":
		answer.Field = "revision"
	}
	switch kind := fault.KindOf(err); kind {
	case fault.NotFound:
		answer.Error = "not_found"
	case fault.Exists:
		answer.Error = "already_exists"
	case fault.Unavailable, fault.Timeout:
		if p.closing.Err() != nil {
			break
		}
		if missing := p.missing(); missing != "" || kind == fault.Unavailable {
			code, answer.Error, answer.Missing = http.StatusServiceUnavailable, "no_quorum", missing
		}
	}
	writeErrorBody(w, err, code, answer)
}

// errorState bounds the wait for the text of an error: with the call before it, it comes within 5 s.
const errorState = 400 * time.Millisecond

// missing says what the group lacks, for the text of an error.
func (p *coordinationAPI) missing() string {
	ctx, cancel := context.WithTimeout(context.Background(), errorState)
	defer cancel()
	g, err := p.Calls.Group(ctx, &api.GroupRequest{})
	if err != nil {
		return fault.Message(err)
	}
	return g.GetMissing()
}
