package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the sessions of the page.
const (
	codeLife    = 2 * time.Minute // of a link
	sessionLife = 12 * time.Hour
	maxCodes    = 256
	maxSessions = 1024
	maxOfOne    = 16 // links, and sessions, of one caller; the next one ends the oldest
)

// sessionPrefix begins the tokens of sessions. It is no secret, and says nothing about the caller.
const sessionPrefix = "page-"

// sessions let a page in a browser act for a caller without its credentials. The caller gets a code, which works
// once and briefly. The page exchanges the code for a token of its own. Codes and tokens are kept as digests.
type sessions struct {
	mu    sync.Mutex
	codes map[[sha256.Size]byte]session
	open  map[[sha256.Size]byte]session
}

// session is a code or an open session.
type session struct {
	by      callCredentials // of the caller; each use checks them again, so a session ends with them
	name    string          // of the caller
	expires time.Time
}

// Code returns a code for a page that shall act for the caller of ctx, and its end. An anonymous caller gets the
// empty code: the page is anonymous without one. It fails with Forbidden for a page, which must not prolong its own
// session, and with PoolExhausted.
func (g *Guard) Code(ctx context.Context) (code string, expires time.Time, err error) {
	c := of(ctx)
	switch {
	case g == nil || c.Name == "":
		return "", time.Time{}, nil
	case c.page != nil:
		return "", time.Time{}, fault.New("access.Code", fault.Forbidden, "a page cannot make links: run blackholed ui")
	}
	now := g.now()
	code, expires = rand.Text(), now.Add(codeLife)
	g.pages.mu.Lock()
	defer g.pages.mu.Unlock()
	if err := add(&g.pages.codes, maxCodes, code, session{c.by, c.Name, expires}, now); err != nil {
		return "", time.Time{}, err
	}
	return code, expires, nil
}

// Redeem exchanges a code for the bearer token of a session. It fails with Unauthentic for a code that is unknown,
// used or too old, and with PoolExhausted.
func (g *Guard) Redeem(code string) (token string, expires time.Time, err error) {
	if g == nil {
		return "", time.Time{}, fault.New("access.Redeem", fault.Unsupported, "this peer asks nobody who they are: open the page without a code")
	}
	now := g.now()
	g.pages.mu.Lock()
	defer g.pages.mu.Unlock()
	key := sha256.Sum256([]byte(code))
	s, ok := g.pages.codes[key]
	delete(g.pages.codes, key)
	if !ok || !now.Before(s.expires) {
		return "", time.Time{}, fault.New("access.Redeem", fault.Unauthentic, "this link has been used or is too old: blackholed ui makes a new one")
	}
	s.expires = now.Add(sessionLife)
	token = sessionPrefix + rand.Text() + rand.Text()
	return token, s.expires, add(&g.pages.open, maxSessions, token, s, now)
}

// End ends the session of the page that calls. It fails with Invalid for other callers.
func (g *Guard) End(ctx context.Context) error {
	page := of(ctx).page
	if g == nil || page == nil {
		return fault.New("access.End", fault.Invalid, "the caller has no session to end")
	}
	g.pages.mu.Lock()
	defer g.pages.mu.Unlock()
	delete(g.pages.open, *page)
	return nil
}

// add stores a session under a secret. It first drops what has expired, and the caller's oldest one above maxOfOne.
func add(to *map[[sha256.Size]byte]session, most int, secret string, s session, now time.Time) error {
	if *to == nil {
		*to = map[[sha256.Size]byte]session{}
	}
	var oldest *[sha256.Size]byte
	own := 0
	for key, other := range *to {
		switch {
		case !now.Before(other.expires):
			delete(*to, key)
		case other.name == s.name:
			if own++; oldest == nil || other.expires.Before((*to)[*oldest].expires) {
				oldest = &key
			}
		}
	}
	if own >= maxOfOne {
		delete(*to, *oldest)
	}
	if len(*to) >= most {
		return fault.Exhausted("access", "sessions", false, "all %d sessions of pages are in use: sign out in one, or use a token", most)
	}
	(*to)[sha256.Sum256([]byte(secret))] = s
	return nil
}

// paged returns the caller of a session. ok is false for credentials of another kind.
func (g *Guard) paged(e callCredentials) (c caller, ok bool, err error) {
	token, err := bearer(e.authorization)
	if err != nil || !strings.HasPrefix(token, sessionPrefix) {
		return c, false, nil
	}
	key := sha256.Sum256([]byte(token))
	g.pages.mu.Lock()
	s, ok := g.pages.open[key]
	g.pages.mu.Unlock()
	switch {
	case !ok && g.rules.Load().bearers != nil: // a token of the settings may begin like one
		return c, false, nil
	case !ok || !g.now().Before(s.expires):
		return c, true, errSession
	}
	if c, err = g.authenticate(s.by); err != nil {
		return c, true, err
	}
	if c.page = &key; c.expires.IsZero() || s.expires.Before(c.expires) {
		c.expires = s.expires
	}
	return c, true, nil
}
