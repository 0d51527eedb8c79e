package probe

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/blackhole/blackhole/internal/platform/endpoint"
)

// What names the peers of a domain: TXT records of a name below it, or lines of a file at it.
const (
	txtLabel  = "_blackhole."
	wellKnown = "/.well-known/blackhole"
	peerIs    = "peer=" // and the id of one peer
)

// Domain returns the target of a probe that asks whether a domain names a peer: Answers means yes, Refuses means no. It reports
// false for a domain that belongs to nobody: a public suffix, an address, or a name for documentation.
func Domain(name, peer string) (Target, bool) {
	_, err := publicsuffix.EffectiveTLDPlusOne(name)
	if _, no := netip.ParseAddr(name); no == nil {
		return Target{}, false
	}
	t := Target{Kind: "domain", Host: name, Port: 443, Path: wellKnown, Secure: true, peer: peer}
	t.kind = kind{name: t.Kind, late: true, speak: speakDomain}
	return t, err == nil && !endpoint.Reserved(name)
}

// speakDomain looks into DNS first.
func speakDomain(ctx context.Context, s *session) (Outcome, error) {
	names := func(text string) bool { return strings.TrimSpace(text) == peerIs+s.target.peer }
	texts, noTexts := s.prober.texts(ctx, txtLabel+s.target.Host)
	if slices.ContainsFunc(texts, names) {
		return s.answered("a TXT record of " + txtLabel + s.target.Host + " names the peer"), nil
	}
	err := s.resolve(ctx)
	if err == nil {
		var a *answer
		if a, err = s.ask(ctx, &dialect{}, s.target.Path); err == nil && a.status == http.StatusOK && slices.ContainsFunc(strings.Split(string(a.body), "\n"), names) {
			return s.answered("the file " + wellKnown + " names the peer"), nil
		}
	}
	if noTexts != nil && Interpret(noTexts).State != NoSuchName {
		return Outcome{}, noTexts // the record may be there
	}
	if err != nil && Interpret(err).State != NoSuchName {
		return Outcome{}, err
	}
	return Outcome{State: Refuses, Detail: "neither " + txtLabel + s.target.Host + " nor " + wellKnown + " names the peer"}, nil
}
