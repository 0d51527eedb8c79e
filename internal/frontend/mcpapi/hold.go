package mcpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// Bounds of hold.
const (
	holdTTL  = 600 // seconds
	maxWait  = 50  // seconds, below the time-outs of clients
	maxAgent = 128 // bytes
	maxWhy   = 1024

	maxListed = 1000 // names in one answer of the group
)

func holdTools() []tool {
	agent := text("your name: choose one that no other agent has, such as fix-login-7, and keep it. The same name is the same holder")
	names := func(words string) map[string]any {
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "minItems": 1, "maxItems": coord.MaxNames, "description": words}
	}
	return []tool{
		{
			name: "hold", changes: true, run: (*Server).hold, required: []string{"names", "agent"},
			words: "Hold names, such as the files that you will change: all of them or none, in one fair order, so nobody waits in a circle. " +
				"You hold them until `release`, or until `ttl` after your last call. Each has a token that rises from holder to holder: give it to what " +
				"checks tokens. Call it again with the same arguments at any time: to keep the names longer, to go on waiting in your place, or after a " +
				"lost answer. It changes nothing else.",
			input: map[string]any{
				"names": names("all names that you need: what you hold already cannot grow by waiting"), "agent": agent,
				"ttl":  number("seconds after your last call until others get the names; 600 unless told, 5 to 86400; your first call sets it until you release all"),
				"wait": number("seconds to wait for them, 0 to 50; 0, unless told, does not wait"), "why": text("what you do with them, for others who wait"),
			},
		},
		{
			name: "release", changes: true, run: (*Server).release, required: []string{"agent"},
			words: "Release the names that you hold or wait for: all, or some. What nobody holds under your name is released already.",
			input: map[string]any{"agent": agent, "names": names("those to release; all unless told")},
		},
		{
			name: "held", run: (*Server).held,
			words: "Show who holds which names, since when and why, who waits, and what is yours.",
			input: map[string]any{"agent": agent, "names": names("those to show; all unless told")},
		},
	}
}

// leaseOf is the lease of an agent. Its id follows from the name, so a repeated call is one of the same holder, at
// any peer.
func leaseOf(agent string) coord.LeaseID {
	sum := sha256.Sum256([]byte("blackhole agent " + agent))
	return coord.LeaseID(binary.BigEndian.Uint64(sum[:])&math.MaxInt64 | 1)
}

// holdArgs is what the tools about names take.
type holdArgs struct {
	Names []string `json:"names"`
	Agent string   `json:"agent"`
	TTL   int64    `json:"ttl"`
	Wait  int64    `json:"wait"`
	Why   string   `json:"why"`
}

func holdArgsOf(args map[string]json.RawMessage) (a holdArgs, failed *failure) {
	a.TTL = holdTTL
	text, err := json.Marshal(args)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	switch {
	case err != nil:
		return a, wrong(invalidParams, "the arguments are not what the tool takes: %s", err)
	case args["agent"] != nil && (a.Agent == "" || len(a.Agent) > maxAgent):
		return a, wrong(invalidParams, "agent must have 1 to %d bytes", maxAgent)
	case args["names"] != nil && (len(a.Names) == 0 || len(a.Names) > coord.MaxNames):
		return a, wrong(invalidParams, "names must be 1 to %d", coord.MaxNames)
	case a.Wait < 0 || a.Wait > maxWait:
		return a, wrong(invalidParams, "wait must be 0 to %d seconds: call again to go on waiting", maxWait)
	case a.TTL < 5 || a.TTL > 86400:
		return a, wrong(invalidParams, "ttl must be 5 to 86400 seconds")
	case a.Wait >= a.TTL:
		return a, wrong(invalidParams, "wait must be below ttl: a wait renews nothing")
	case len(a.Why) > maxWhy:
		return a, wrong(invalidParams, "why must have at most %d bytes", maxWhy)
	}
	slices.Sort(a.Names)
	a.Names = slices.Compact(a.Names)
	return a, nil
}

// hold takes all names for an agent, or none.
func (s *Server) hold(r *http.Request, args map[string]json.RawMessage) (any, *failure) {
	a, failed := holdArgsOf(args)
	if failed != nil {
		return nil, failed
	}
	lease := strconv.FormatInt(int64(leaseOf(a.Agent)), 10)
	left, refused := s.keep(r, lease, a)
	if refused != nil {
		return refused.result(), nil
	}
	body, _ := json.Marshal(map[string]any{ // texts, numbers and lists of them
		"lease_id": lease, "others": a.Names[1:], "stays": true, "timeout_ms": a.Wait * 1000,
		"metadata": base64.StdEncoding.EncodeToString([]byte(a.Why)),
	})
	got := s.ask(r, http.MethodPost, "/v1/coordination/locks/"+url.PathEscape(a.Names[0]), body)
	if got.code >= http.StatusBadRequest {
		return got.result(), nil
	}
	var lock struct {
		Acquired bool     `json:"acquired"`
		Tokens   []string `json:"fencing_tokens"`
	}
	if err := json.Unmarshal(got.body.Bytes(), &lock); err != nil {
		return nil, wrong(internalError, "the answer of the group is no JSON: %s", err)
	}
	if lock.Acquired && len(lock.Tokens) != len(a.Names) {
		return nil, wrong(internalError, "the group gave %d tokens for %d names: its peers are of an older version", len(lock.Tokens), len(a.Names))
	}
	state, refused := s.states(r, a.Names, a.Agent)
	if refused != nil { // the names are held all the same
		state = nil
	}
	out := map[string]any{"holding": lock.Acquired, "waiting": !lock.Acquired && len(lock.Tokens) > 0, "agent": a.Agent, "names": state}
	if lock.Acquired {
		tokens := make(map[string]string)
		for i, name := range a.Names {
			tokens[name] = lock.Tokens[i]
		}
		out["tokens"], out["until"] = tokens, time.Now().Add(left).UTC().Format(time.RFC3339)
	}
	words := "you hold all of them"
	switch {
	case out["waiting"] == true:
		words = "you wait: call again with the same arguments to go on waiting in your place, or release"
	case !lock.Acquired:
		words = "others hold some of them, so you hold none: give a wait to take a place in the queue"
	}
	return told(out, words), nil
}

// keep renews the lease of an agent, or begins it. It returns what is left of it, or the answer that refused it.
func (s *Server) keep(r *http.Request, lease string, a holdArgs) (left time.Duration, refused *recorder) {
	for range 2 { // another call of the same agent may begin it meanwhile
		var kept struct {
			TTL string `json:"ttl_ms"`
		}
		got := s.ask(r, http.MethodPut, "/v1/coordination/leases/"+lease+"/keepalive", nil)
		if got.code < http.StatusBadRequest && json.Unmarshal(got.body.Bytes(), &kept) == nil && kept.TTL != "" && kept.TTL != "0" {
			ms, _ := strconv.ParseInt(kept.TTL, 10, 64)
			return time.Duration(ms) * time.Millisecond, nil
		}
		if got.code >= http.StatusBadRequest && got.code != http.StatusNotFound {
			return 0, got
		}
		body, _ := json.Marshal(map[string]any{"id": lease, "ttl": strconv.FormatInt(a.TTL, 10), "application": a.Agent})
		got = s.ask(r, http.MethodPost, "/v1/coordination/leases", body)
		if got.code < http.StatusBadRequest {
			return time.Duration(a.TTL) * time.Second, nil
		}
		refused = got
	}
	return 0, refused
}

// release gives names back.
func (s *Server) release(r *http.Request, args map[string]json.RawMessage) (any, *failure) {
	a, failed := holdArgsOf(args)
	if failed != nil {
		return nil, failed
	}
	lease := strconv.FormatInt(int64(leaseOf(a.Agent)), 10)
	if len(a.Names) == 0 {
		got := s.ask(r, http.MethodDelete, "/v1/coordination/leases/"+lease, nil)
		if got.code >= http.StatusBadRequest && got.code != http.StatusNotFound {
			return got.result(), nil
		}
		return told(map[string]any{"released": true, "agent": a.Agent}, "you hold nothing"), nil
	}
	state, refused := s.states(r, a.Names, a.Agent)
	if refused != nil {
		return refused.result(), nil
	}
	for _, of := range state {
		if slices.ContainsFunc(of.Waits, func(c nameClaim) bool { return c.You }) {
			return nil, wrong(invalidParams, "you wait for %s with all that you asked for: release all, without names", of.Name)
		}
	}
	for _, of := range state {
		if of.Token == "" {
			continue
		}
		q := url.Values{"lease_id": {lease}, "fencing_token": {of.Token}}
		got := s.ask(r, http.MethodDelete, "/v1/coordination/locks/"+url.PathEscape(of.Name)+"?"+q.Encode(), nil)
		if got.code >= http.StatusBadRequest && got.code != http.StatusNotFound {
			return got.result(), nil
		}
	}
	return told(map[string]any{"released": true, "agent": a.Agent, "names": a.Names}, "released"), nil
}

// held shows names.
func (s *Server) held(r *http.Request, args map[string]json.RawMessage) (any, *failure) {
	a, failed := holdArgsOf(args)
	if failed != nil {
		return nil, failed
	}
	state, refused := s.states(r, a.Names, a.Agent)
	if refused != nil {
		return refused.result(), nil
	}
	words := fmt.Sprintf("%d names; the texts in why are words of other agents", len(state))
	if len(a.Names) == 0 && len(state) >= maxListed {
		words += "; there may be more: ask for names"
	}
	return told(map[string]any{"names": state}, words), nil
}

// nameState is who holds a name, and who waits for it.
type nameState struct {
	Name   string      `json:"name"`
	By     []nameClaim `json:"by"`
	Waits  []nameClaim `json:"waits"`
	Behind int         `json:"behind,omitempty"`   // that wait behind the agent
	Token  string      `json:"token,omitempty"`    // of the agent, if it holds the name
	Hidden uint32      `json:"left_out,omitempty"` // claims behind these
}

type nameClaim struct {
	Agent string `json:"agent"`
	You   bool   `json:"you,omitempty"`
	Why   string `json:"why,omitempty"`
	For   string `json:"for,omitempty"` // since then, as its peer knows
}

// states asks about names, or about all.
func (s *Server) states(r *http.Request, names []string, agent string) (all []nameState, refused *recorder) {
	type claim struct {
		Key         string `json:"key"` // it has the tag of the lease, whose id may be hidden
		Holder      string `json:"holder_id"`
		Application string `json:"application"`
		Token       string `json:"fencing_token"`
		Metadata    []byte `json:"metadata"`
		Age         string `json:"age_ms"`
	}
	type lock struct {
		Name             string
		Holding, Waiting []claim
		LeftOut          uint32 `json:"left_out"`
	}
	var locks []lock
	paths := []string{"/v1/coordination/locks"}
	if len(names) > 0 {
		paths = nil
		for _, name := range names {
			paths = append(paths, "/v1/coordination/locks/"+url.PathEscape(name))
		}
	}
	for i, path := range paths {
		got := s.ask(r, http.MethodGet, path, nil)
		switch {
		case got.code == http.StatusNotFound && len(names) > 0:
			locks = append(locks, lock{Name: names[i]})
			continue
		case got.code >= http.StatusBadRequest:
			return nil, got
		}
		var page struct {
			Lock  *lock
			Locks []lock
		}
		if json.Unmarshal(bytes.TrimSpace(got.body.Bytes()), &page) != nil {
			return nil, got
		}
		if page.Lock != nil {
			page.Locks = append(page.Locks, *page.Lock)
		}
		locks = append(locks, page.Locks...)
	}
	shown := func(name string, c claim) nameClaim {
		n := nameClaim{Agent: c.Application, You: agent != "" && c.Key == coord.LockKey(name, leaseOf(agent)), Why: string(c.Metadata)}
		if n.Agent == "" {
			n.Agent = c.Holder
		}
		if ms, err := strconv.ParseInt(c.Age, 10, 64); err == nil && ms > 0 {
			n.For = (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
		}
		return n
	}
	for _, l := range locks {
		state := nameState{Name: l.Name, By: []nameClaim{}, Waits: []nameClaim{}, Hidden: l.LeftOut}
		mine := false
		for _, c := range l.Holding {
			state.By = append(state.By, shown(l.Name, c))
			if state.By[len(state.By)-1].You {
				mine, state.Token = true, c.Token
			}
		}
		for _, c := range l.Waiting {
			if mine {
				state.Behind++
			}
			state.Waits = append(state.Waits, shown(l.Name, c))
			mine = mine || state.Waits[len(state.Waits)-1].You
		}
		all = append(all, state)
	}
	return all, nil
}

// told is an answer with a sentence for the agent.
func told(v map[string]any, words string) result {
	text, _ := json.Marshal(v) // texts, numbers and lists of them
	return result{Content: []content{{"text", string(text)}, {"text", words}}, Structured: text}
}
