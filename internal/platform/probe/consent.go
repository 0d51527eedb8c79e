package probe

import (
	"fmt"
	"strings"
)

// A stranger's offer may name any path of any host, and a request for a path may do something there: confirm,
// unsubscribe, vote. Until the host consents, by naming the provider's peer as a domain does, checks ask for what
// anybody would ask the host for.

const itsPath = "its path"

// Withheld says what a check leaves out as long as the host does not consent; "" for nothing.
func (t Target) Withheld() string {
	path, _, query := strings.Cut(t.Path, "?")
	switch {
	case t.kind.root && strings.Trim(path, "/") != "":
		return itsPath
	case query:
		return "its query"
	}
	return ""
}

// Bare returns the target that may be checked without the consent of its host.
func (t Target) Bare() Target {
	if left := t.Withheld(); left != "" {
		t.without = left
		t.Path, _, _ = strings.Cut(t.Path, "?")
		if t.kind.root {
			t.Path = ""
		}
	}
	return t
}

// Partial says that checks leave a part out, and how the host changes that for a provider; "" for a whole target.
func (t Target) Partial(peer string) string {
	left := t.Withheld()
	if left == "" {
		return ""
	}
	d, ok := Domain(strings.TrimSuffix(t.Host, "."), peer)
	if !ok || !t.Secure {
		return "other peers check the endpoint without " + left + ": only a host with a name of its own and TLS can ask for more"
	}
	return fmt.Sprintf("other peers check the endpoint without %s until its host names this peer: "+
		"publish a TXT record of %s with the text %s, or that line at https://%s",
		left, txtLabel+d.Host, peerIs+peer, d.Host+wellKnown)
}

// Within reports whether the host is a domain or a name below it, so that whoever speaks for the domain speaks for
// the host.
func (t Target) Within(domain string) bool {
	host := strings.TrimSuffix(t.Host, ".")
	return domain != "" && (host == domain || strings.HasSuffix(host, "."+domain))
}
