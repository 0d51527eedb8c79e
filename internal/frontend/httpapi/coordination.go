package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// answerWithin bounds each call to the group, besides a wait for a lock or a requirement. A
// client of a group without a leader thus gets an error in time.
const answerWithin = 10 * time.Second

// Coordination holds the parts of the coordination plane. All are required.
type Coordination struct {
	Writer coord.Writer
	Reader coord.Reader
	Admin  coord.Admin

	// Owner names the client on whose behalf a request acts, or fails if the client may not act.
	Owner func(r *http.Request) (string, error)
}

// coordinationAPI handles the routes of the coordination plane.
type coordinationAPI struct {
	*shared
	Coordination
}

func (p *coordinationAPI) routes() []route {
	return []route{
		{pattern: "POST /v1/coordination/leases", role: access.RoleService, serve: p.bounded(p.grantLease)},
		{pattern: "GET /v1/coordination/leases", role: access.RoleReadOnly, asks: true, serve: p.bounded(p.listLeases)},
		{pattern: "GET /v1/coordination/leases/{id}", role: access.RoleReadOnly, serve: p.bounded(p.getLease)},
		{pattern: "DELETE /v1/coordination/leases/{id}", role: access.RoleService, serve: p.bounded(p.revokeLease)},
		{pattern: "PUT /v1/coordination/leases/{id}/keepalive", role: access.RoleService, serve: p.bounded(p.keepLease)},
		{pattern: "GET /v1/coordination/locks", role: access.RoleReadOnly, asks: true, serve: p.bounded(p.listLocks)},
		{pattern: "POST /v1/coordination/locks/{name}", role: access.RoleService, waits: true, serve: p.unbounded(p.lock)},
		{pattern: "GET /v1/coordination/locks/{name}", role: access.RoleReadOnly, asks: true, serve: p.bounded(p.getLock)},
		{pattern: "DELETE /v1/coordination/locks/{name}", role: access.RoleService, asks: true, serve: p.bounded(p.unlock)},
		{pattern: "GET /v1/coordination/requirements", role: access.RoleReadOnly, serve: p.bounded(p.listRequirements)},
		{pattern: "GET /v1/coordination/requirements/{id}", role: access.RoleReadOnly, asks: true, waits: true, serve: p.unbounded(p.getRequirement)},
		{pattern: "PUT /v1/coordination/requirements/{id}", role: access.RoleService, serve: p.bounded(p.setRequirement)},
		{pattern: "DELETE /v1/coordination/requirements/{id}", role: access.RoleService, serve: p.bounded(p.deleteRequirement)},
		{pattern: "GET /v1/coordination/keys", role: access.RoleReadOnly, asks: true, serve: p.bounded(p.listKeys)},
		{pattern: "GET /v1/coordination/keys/{key}", role: access.RoleReadOnly, asks: true, serve: p.bounded(p.getKey)},
		{pattern: "PUT /v1/coordination/keys/{key}", role: access.RoleService, asks: true, serve: p.bounded(p.putKey)},
		{pattern: "DELETE /v1/coordination/keys/{key}", role: access.RoleService, asks: true, serve: p.bounded(p.deleteKey)},
		{pattern: "POST /v1/coordination/txn", role: access.RoleService, serve: p.bounded(transact(p))},
		{pattern: "GET /v1/coordination/watch", role: access.RoleReadOnly, asks: true, waits: true, serve: p.unbounded(p.watchKeys)},
		{pattern: "GET /v1/coordination/group", role: access.RoleReadOnly, serve: p.bounded(p.group)},
		{pattern: "POST /v1/coordination/group/members", role: access.RoleAdmin, serve: p.bounded(changeMembers(p.Admin))},
		{pattern: "GET /v1/coordination/group/backup", role: access.RoleAdmin, waits: true, serve: p.unbounded(backUp(p))},
	}
}

// call is a request to the coordination plane.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	owner string
}

// callHandler answers a call or returns an error. Its context ends when the client leaves or the
// server closes.
type callHandler func(ctx context.Context, c call) error

// bounded serves calls that end within answerWithin.
func (p *coordinationAPI) bounded(h callHandler) http.Handler {
	return p.unbounded(func(ctx context.Context, c call) error {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return h(ctx, c)
	})
}

// unbounded serves calls with their own bound on time.
func (p *coordinationAPI) unbounded(h callHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, err := p.Owner(r)
		if err == nil {
			ctx, cancel := p.untilClosing(r.Context())
			defer cancel()
			err = h(ctx, call{w, r, owner})
		}
		if err != nil {
			p.writeError(w, p.orClosing(err))
		}
	})
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
		if g := p.state(); g.Missing != "" || kind == fault.Unavailable {
			code, answer.Error, answer.Missing = http.StatusServiceUnavailable, "no_quorum", g.Missing
		}
	}
	writeErrorBody(w, err, code, answer)
}

// errorState bounds the wait for the text of an error: with the call before it, it comes within 5 s.
const errorState = 400 * time.Millisecond

// state returns the state of the group for the text of an error.
func (p *coordinationAPI) state() coord.GroupState {
	ctx, cancel := context.WithTimeout(context.Background(), errorState)
	defer cancel()
	g, err := p.Admin.Group(ctx)
	if err != nil {
		g.Missing = fault.Message(err)
	}
	return g
}

// do executes a command for the owner of a call.
func (p *coordinationAPI) do(ctx context.Context, c call, op coord.Op) (coord.Result, coord.Header, error) {
	return p.Writer.Do(ctx, coord.Command{Owner: c.owner, Op: op})
}

// group describes the group, with an error status while the group cannot serve.
func (p *coordinationAPI) group(ctx context.Context, c call) error {
	g, err := p.Admin.Group(ctx)
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
		return writeJSON(c.w, http.StatusOK, g)
	}
	return writeJSON(c.w, http.StatusServiceUnavailable, struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		coord.GroupState
	}{"no_quorum", g.Missing, g})
}

// changeMembers carries out an operator's order about the members of the group.
func changeMembers(admin coord.Admin) callHandler {
	return func(ctx context.Context, c call) error {
		var order coord.MemberChange
		if err := decode(c, &order); err != nil {
			return err
		}
		order.By = c.owner
		done, err := admin.ChangeMembers(ctx, order)
		if err != nil {
			return err
		}
		if done.Steps == nil {
			done.Steps = []string{}
		}
		return writeJSON(c.w, http.StatusOK, done)
	}
}

// leaseID is the id of a lease, a string in JSON like the ids of a header.
type leaseID coord.LeaseID

// MarshalJSON implements json.Marshaler.
func (id leaseID) MarshalJSON() ([]byte, error) {
	if coord.LeaseID(id) == coord.HiddenLease {
		return []byte(`"hidden"`), nil
	}
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(id), 10)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (id *leaseID) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err == nil {
		*id, err = parseLeaseID(text)
	}
	if err != nil {
		return &json.UnmarshalTypeError{Value: string(b)} // the decoder adds the field
	}
	return nil
}

func parseLeaseID(text string) (leaseID, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fault.Invalidf("lease_id", input.Quote(text), "must be a number above 0, in a string")
	}
	return leaseID(n), nil
}

// decode reads a body into v.
func decode(c call, v any) error {
	body, err := readBody(c.w, c.r)
	if err != nil {
		return err
	}
	return input.Object(body, v)
}

// readPage reads the bound of a page of leases or locks. Zero is the default of the plane.
func readPage(values url.Values) (limit int, err error) {
	n, err := input.Number(values, "limit")
	return int(min(n, maxListed)), err
}
